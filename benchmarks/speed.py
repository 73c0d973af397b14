"""Speed: every benchmark of speed in turn, and the table and plot of their results in docs/results.md.

python benchmarks/speed.py             # runs them all, 3 hours, on a machine with nothing else to do
python benchmarks/speed.py --only cap  # those whose name contains this
python benchmarks/speed.py --page      # runs none: the table and the plot of what is there
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import RESULTS, ROOT

mpl.use("Agg")
import matplotlib.pyplot as plt

PAGE, PLOT = ROOT / "docs" / "results.md", ROOT / "docs" / "speed.png"
BLUE, GREY = "#0072b2", "#555555"

COMMANDS = (
    "sampling.py",
    "ppo_update.py",
    "sac_update.py",
    "reward_training.py",
    "pixels.py",
    "fragments.py",
    "ppo_tax.py pendulum",
    "cap.py",
    "start.py",
    "end_to_end.py",
    "whole_run.py",
    "cores.py",
    "labelling.py pendulum --turns 20 --teachers 10",
)
"""What is run."""


@dataclass(frozen=True)
class Ratio:
    """How many times as fast as something else.

    Attributes:
        what: is measured.
        beside: what it is compared with.
        median: of the turns' ratios.
        low, high: its 95 % interval.
    """

    what: str
    beside: str
    median: float
    low: float
    high: float


def ratio(what: str, beside: str, found: dict[str, Any], *, inverse: bool = False) -> Ratio:
    """A ratio of a record; ``inverse`` for one of times."""
    values = [found["median"], *(found.get("interval_95") or found["interval_95_of_median"])]
    if inverse:
        values = [1.0 / values[0], 1.0 / values[2], 1.0 / values[1]]
    return Ratio(what, beside, *values)


def of_sampling(kept: dict[str, Any]) -> Iterator[Ratio]:
    """Sampling."""
    for row in kept["rows"]:
        what = f"sampling {row['environment']}, {row['copies']} copies, policy of 64-64"
        yield ratio(what, "RLlib's env runner", row["times_rllib"])
        yield ratio(what, "Stable-Baselines3", row["times_sb3"])


def of_sac(kept: dict[str, Any]) -> Iterator[Ratio]:
    """SAC's gradient steps."""
    for size, row in kept["sizes"].items():
        what = f"SAC's gradient step, batch of 256, networks of {size}"
        yield ratio(what, "Stable-Baselines3", row["ours_over_sb3"], inverse=True)
        yield ratio(what, "plain torch", row["ours_over_torch"], inverse=True)


def of_update(kept: dict[str, Any]) -> Iterator[Ratio]:
    """PPO's update."""
    for name, beside in (("rllib", "RLlib's learner"), ("sb3", "Stable-Baselines3"), ("torch", "plain torch")):
        yield ratio("PPO minibatch of 128, policy of 64-64", beside, kept[f"ours_over_{name}"], inverse=True)


def of_reward(kept: dict[str, Any]) -> Iterator[Ratio]:
    """Fits of MLPs."""
    for row in kept["rows"]:
        networks = f"{row['members']} network{'s' if row['members'] > 1 else ''} of {row['hidden']}-{row['hidden']}"
        for name, beside in (("imitation", "imitation"), ("torch", "plain stacked torch")):
            yield ratio(f"reward fit, {networks}, {row['length']} steps", beside, row["ratio"][name])


def of_pixels(kept: dict[str, Any]) -> Iterator[Ratio]:
    """Fits of CNNs."""
    for precision in ("float32", "bfloat16"):
        if precision in kept:
            yield ratio(
                f"reward fit from pixels, 2 convolutions of 32, {precision}",
                "imitation",
                kept[precision]["times_imitation"],
            )


def of_fragments(kept: dict[str, Any]) -> Iterator[Ratio]:
    """Fragments and selection."""
    for row in kept["random"]:
        what = f"1,000 random pairs, {row['trajectories']} trajectories, {row['length']} steps"
        yield ratio(what, "imitation", row["times_imitation"])
    yield ratio("100 of 1,000 pairs by disagreement, 5 networks of 32-32", "imitation", kept["active"])
    yield ratio("selection, 5 networks of 32-32", "its forward passes alone", kept["of_forward_limit"])


def of_tax(kept: dict[str, Any]) -> Iterator[Ratio]:
    """A training."""
    found = {"median": kept["ratio_median_of_turns"], "interval_95": kept["interval_95_of_median"]}
    yield ratio(
        "Pendulum training, everything included, networks of 64-64",
        "RLlib's PPO on the true reward",
        found,
        inverse=True,
    )


def of_whole_runs(kept: dict[str, Any]) -> Iterator[Ratio]:
    """Whole runs."""
    for arm, found in kept["ratios"].items():
        yield ratio("whole Pendulum run, as a command", f"{arm} of 64-64", found, inverse=True)


def of_an_earlier_commit(kept: dict[str, Any]) -> Iterator[Ratio]:
    """A training from pixels."""
    what = f"{kept['training'].split()[0]}, about a fifth of the preset, as a command"
    yield ratio(what, f"the same at {kept['before']}", kept["now_over_before"], inverse=True)


def of_cores(kept: dict[str, Any]) -> Iterator[Ratio]:
    """Trainings on one core of a machine and on more, wall time."""
    for training in kept["trainings"].values():
        name, _, steps = training["words"][:3]
        for cores, found in training["over_one"].items():
            what = f"{name}, {int(steps):,} steps, wall time, {cores} cores of {kept['machine']['cores']}"
            yield ratio(what, "one core", found, inverse=True)


def of_labelling(kept: dict[str, Any]) -> Iterator[Ratio]:
    """What labelling costs PPO."""
    for arm, what in (
        ("10 s", "a scripted teacher that takes 10 s"),
        ("people", "a person at the page, an answer a second"),
    ):
        row = kept["arms"][arm]
        found = {"median": row["against_off"], "interval_95": row["interval_95_of_median"]}
        yield ratio(f"asynchronous {kept['preset']}, {what}", "no labelling, wall time", found)


READERS: dict[str, Callable[[dict[str, Any]], Iterator[Ratio]]] = {
    "end_to_end": of_whole_runs,
    "ppo_tax_pendulum": of_tax,
    "sampling": of_sampling,
    "ppo_update": of_update,
    "sac_update": of_sac,
    "reward_training": of_reward,
    "pixels": of_pixels,
    "fragments": of_fragments,
    "whole_run": of_an_earlier_commit,
    "cores_2": of_cores,
    "cores_16": of_cores,
    "labelling_pendulum": of_labelling,
}
"""What of each record is shown."""


def kept(name: str) -> dict[str, Any] | None:
    """The record of this name, if there is one."""
    path = RESULTS / f"{name}.json"
    return dict(json.loads(path.read_text())) if path.exists() else None


def number(value: float) -> str:
    """Two or three digits."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def shown(one: Ratio) -> str:
    """A ratio with its interval, which a single turn has none of."""
    interval = "" if one.low == one.high else f" ({number(one.low)} to {number(one.high)})"
    return f"**{number(one.median)}**{interval}"


def table() -> str:
    """The ratios of all records."""
    lines = ["| what | beside | times as fast (95 % interval) | from |", "|---|---|---|---|"]
    for name, read in READERS.items():
        if (found := kept(name)) is not None:
            source = f"`{found['command'].removeprefix('python ')}`, {found['date']}, {found['commit']}"
            lines += [f"| {one.what} | {one.beside} | {shown(one)} | {source} |" for one in read(found)]
    return "\n".join(lines)


def filled(page: str) -> str:
    """``page`` with the table between its marks made anew."""
    marks = re.compile(r"(<!-- speed -->\n).*?(<!-- end of speed -->)", re.DOTALL)
    return marks.sub(lambda match: f"{match[1]}\n{table()}\n\n{match[2]}", page)


def plot(ratios: Sequence[Ratio]) -> None:
    """Draw the ratios with their intervals."""
    figure, panel = plt.subplots(figsize=(8.4, 0.27 * len(ratios) + 0.9), constrained_layout=True)
    for row, one in enumerate(ratios):
        panel.plot([one.low, one.high], [row, row], color=BLUE, linewidth=1.8)
        panel.plot(one.median, row, "o", color=BLUE, markersize=5)
    panel.axvline(1.0, color=GREY, linewidth=0.9, linestyle=":")
    panel.set_xscale("log")
    ticks = [1, 2, 5, 10, 20, 50]
    panel.set_xticks(ticks, map(str, ticks))
    panel.minorticks_off()
    panel.set_yticks(range(len(ratios)), [f"{one.what} / {one.beside}" for one in ratios], fontsize=8)
    panel.invert_yaxis()
    panel.set_xlabel("times as fast")
    panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(PLOT, dpi=130)
    plt.close(figure)


def write_page() -> None:
    """Write the table and the plot of what is there."""
    PAGE.write_text(filled(PAGE.read_text()))
    plot([one for name, read in READERS.items() if (found := kept(name)) is not None for one in read(found)])


def main() -> None:
    """Run the benchmarks and write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only benchmarks whose name contains this")
    parser.add_argument("--page", action="store_true", help="run none")
    options = parser.parse_args()
    for command in COMMANDS:
        if options.only in command and not options.page:
            print(f"benchmarks/{command}", flush=True)
            script, *words = command.split()
            subprocess.run([sys.executable, str(ROOT / "benchmarks" / script), *words], cwd=ROOT, check=True)
    write_page()


if __name__ == "__main__":
    main()
