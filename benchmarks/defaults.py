"""On which environments `rlhf-ray train ENVIRONMENT` works from the defaults, and what its summary says where it does not.

What is run, for each environment and seed: `rlhf-ray train ENVIRONMENT --seed SEED --reference --evaluation-episodes 100`, in a
process of its own, with no setting changed: 200 comparisons, 100,000 environment steps.

    python benchmarks/defaults.py --seeds 0 1 2
    python benchmarks/defaults.py --environments fixed/Acrobot-v1 --seeds 3

Runs that are in benchmarks/results/defaults.json already are kept, and made anew where they are asked for again. Prints a table
of all of them.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.learning import run
from benchmarks.record import RESULTS, about
from rlhf_ray.runs.folder import RunFolder, read_metrics

ENVIRONMENTS = ("Pendulum-v1", "rlhf_ray/CartPoleFixed-v0", "fixed/Acrobot-v1", "fixed/MountainCarContinuous-v0")


def measure(environment: str, seed: int, folder: Path) -> dict[str, Any]:
    """One run: its result, with the ties among its answers, what was chosen for it, and its command."""
    result = run(environment, seed, folder, reference=True, kills=0, settings=[])
    last = read_metrics(RunFolder(folder).metrics)
    chosen = ("fragments_length", "first_clips_env_steps", "first_clips_gathered", "labels_held_back")
    return (
        result
        | about()
        | {
            "ties": next((row["ties"] for row in reversed(last) if "ties" in row), None),
            "chosen": {name: last[-1].get(name) for name in chosen},
            "alarms": sorted({alarm["name"] for row in last for alarm in row["raised"]}),
            "command": f"rlhf-ray train {environment} --seed {seed} --reference --evaluation-episodes 100",
        }
    )


def table(runs: list[dict[str, Any]]) -> str:
    """All runs by environment, as Markdown."""
    lines = [
        "| environment | learned, each seed | PPO on the true reward | random | labels, of them ties | verdicts |",
        "|---|---|---|---|---|---|",
    ]
    for environment in dict.fromkeys(one["environment"] for one in runs):
        of = [one for one in runs if one["environment"] == environment]

        def each(agent: str, of: list[dict[str, Any]] = of) -> str:
            return ", ".join(f"{one[agent]['true_return_mean']:.4g}" for one in of)

        labels = ", ".join(f"{one['comparisons']} ({one['ties']:.0f})" for one in of)
        said = sorted({verdict["name"] for one in of for verdict in one["verdicts"]})
        cells = (environment, each("trained"), each("reference"), each("random"), labels, ", ".join(said) or "–")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--environments", nargs="+", default=ENVIRONMENTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where the run folders go")
    parser.add_argument("--results", type=Path, default=RESULTS / "defaults.json")
    options = parser.parse_args()
    folder = options.runs / f"defaults-{time.strftime('%Y%m%d-%H%M%S')}"
    folder.mkdir(parents=True)
    for seed in options.seeds:
        for environment in options.environments:
            made = measure(environment, seed, folder / f"{environment.replace('/', '-')}-seed{seed}")
            runs = json.loads(options.results.read_text())["runs"] if options.results.exists() else []
            runs = [one for one in runs if (one["environment"], one["seed"]) != (environment, seed)] + [made]
            runs.sort(key=lambda one: (one["environment"], one["seed"]))
            options.results.write_text(json.dumps({"runs": runs}, indent=1) + "\n")
    print(table(runs))


if __name__ == "__main__":
    main()
