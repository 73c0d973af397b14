"""Speed: every benchmark of speed in turn, and the table and plot of their results in docs/results_archive.md.

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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import RESULTS, ROOT

mpl.use("Agg")
import matplotlib.pyplot as plt

PAGE, PLOT = ROOT / "docs" / "results_archive.md", ROOT / "docs" / "speed.png"
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
    """How many times as fast ``what`` is as what is ``beside`` it: the median of turns, and its 95 % interval."""

    what: str
    beside: str
    median: float
    low: float
    high: float


def ratio(what: str, beside: str, found: dict[str, Any], inverse: bool = False) -> Ratio:
    """A ratio of a record; ``inverse`` for one of times."""
    values = [found["median"], *(found.get("interval_95") or found["interval_95_of_median"])]
    if inverse:
        values = [1.0 / values[0], 1.0 / values[2], 1.0 / values[1]]
    return Ratio(what, beside, *values)


def of_reward(of: dict[str, Any]) -> Iterator[Ratio]:
    """Fits of MLPs."""
    for row in of["rows"]:
        networks = f"{row['members']} network{'s' if row['members'] > 1 else ''} of {row['hidden']}-{row['hidden']}"
        for name, beside in (("imitation", "imitation"), ("torch", "plain stacked torch")):
            yield ratio(f"reward fit, {networks}, {row['length']} steps", beside, row["ratio"][name])


def of_fragments(of: dict[str, Any]) -> Iterator[Ratio]:
    """Fragments and selection."""
    for row in of["random"]:
        what = f"1,000 random pairs, {row['trajectories']} trajectories, {row['length']} steps"
        yield ratio(what, "imitation", row["times_imitation"])
    yield ratio("100 of 1,000 pairs by disagreement, 5 networks of 32-32", "imitation", of["active"])
    yield ratio("selection, 5 networks of 32-32", "its forward passes alone", of["of_forward_limit"])


def of_cores(of: dict[str, Any]) -> Iterator[Ratio]:
    """Trainings on one core of a machine and on more, wall time."""
    for training in of["trainings"].values():
        name, _, steps = training["words"][:3]
        for cores, found in training["over_one"].items():
            what = f"{name}, {int(steps):,} steps, wall time, {cores} cores of {of['machine']['cores']}"
            yield ratio(what, "one core", found, inverse=True)


def of_labelling(of: dict[str, Any]) -> Iterator[Ratio]:
    """What labelling costs PPO."""
    people = {"10 s": "a scripted teacher that takes 10 s", "people": "a person at the page, an answer a second"}
    for arm, who in people.items():
        row = of["arms"][arm]
        yield ratio(
            f"asynchronous {of['preset']}, {who}", "no labelling, wall time", row | {"median": row["against_off"]}
        )


TAX = ("Pendulum training, everything included, networks of 64-64", "RLlib's PPO on the true reward")
OTHERS = {"rllib": "RLlib's learner", "sb3": "Stable-Baselines3", "torch": "plain torch", "sbx": "SBX (JAX)"}
READERS: dict[str, Callable[[dict[str, Any]], Iterable[Ratio]]] = {
    "end_to_end": lambda of: [
        ratio("whole Pendulum run, as a command", f"{arm} of 64-64", found, inverse=True)
        for arm, found in of["ratios"].items()
    ],
    "ppo_tax_pendulum": lambda of: [ratio(*TAX, of | {"median": of["ratio_median_of_turns"]}, inverse=True)],
    "sampling": lambda of: [
        ratio(f"sampling {row['environment']}, {row['copies']} copies, policy of 64-64", beside, row[f"times_{name}"])
        for row in of["rows"]
        for name, beside in (("rllib", "RLlib's env runner"), ("sb3", "Stable-Baselines3"))
    ],
    "ppo_update": lambda of: [
        ratio("PPO minibatch of 128, policy of 64-64", beside, of[f"ours_over_{name}"], inverse=True)
        for name, beside in OTHERS.items()
        if f"ours_over_{name}" in of
    ],
    "sac_update": lambda of: [
        ratio(
            f"SAC's gradient step, batch of 256, networks of {size}",
            beside,
            row[f"ours_over_{name}"],
            inverse=True,
        )
        for size, row in of["sizes"].items()
        for name, beside in OTHERS.items()
        if f"ours_over_{name}" in row
    ],
    "reward_training": of_reward,
    "pixels": lambda of: [
        ratio(f"reward fit from pixels, 2 convolutions of 32, {arm}", "imitation", of[arm]["times_imitation"])
        for arm in ("float32", "bfloat16")
        if arm in of
    ],
    "fragments": of_fragments,
    "whole_run": lambda of: [
        ratio(
            f"{of['training'].split()[0]}, about a fifth of the preset, as a command",
            f"the same at {of['before']}",
            of["now_over_before"],
            inverse=True,
        )
    ],
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
