"""The runs of docs/results.md, all by one version of the code; resumable.

    python benchmarks/page.py [--only NAME] [--parallel 2] [--runs FOLDER]

Settings are the defaults, frozen before. Seeds take turns between two arithmetics: this
machine's, and that of a CPU with AVX2 alone (`benchmarks/kernels.py`). `benchmarks/page_tables.py` writes the page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.cells import Cell, run, train
from benchmarks.method import ERRING, beside

NAME = "results"
FIRST_SEED = 8000
ARITHMETICS = ("own", "avx2")
REFERENCES = 5
"""Seeds that learn from the true reward."""
RIVALS = 3
"""Seeds of imitation."""

ALL = ("none wrong", "10 % wrong", "20 % wrong", "30 % wrong", "human-like")
STEPS, LABELS = 400_000, 300
"""The defaults' environment steps, and the comparisons of every task."""

IMITATION: Mapping[str, tuple[str, ...]] = {"imitation": ()}
"""imitation as its documentation has it: variants, and their options."""


@dataclass(frozen=True)
class Task:
    """How many seeds of an environment learn from each of which teachers, and whether imitation does too."""

    seeds: int
    imitation: bool = False
    teachers: Sequence[str] = ALL


UP_TO_20 = ("none wrong", "10 % wrong", "20 % wrong", "human-like")

TASKS: Mapping[str, Task] = {
    "Pendulum-v1": Task(5),
    "rlhf_ray/CartPoleFixed-v0": Task(5),
    "rlhf_ray/AcrobotFixed-v0": Task(5),
    "Reacher-v5": Task(5),
    "benchmarks.puck_and_shop:Puck-v0": Task(5),
    "benchmarks.puck_and_shop:Shop-v0": Task(5),
    "HalfCheetah-v5": Task(3, teachers=UP_TO_20),
    "rlhf_ray/HopperFixed-v0": Task(3, teachers=UP_TO_20),
}


def cells() -> list[Cell]:
    """Seed by seed, so that a table that is cut short has as many of each row."""
    made: list[Cell] = []
    for number in range(max(REFERENCES, *(task.seeds for task in TASKS.values()))):
        seed = FIRST_SEED + number
        for name, task in TASKS.items():
            if number < REFERENCES:
                made.append(_training("reference", name, "true reward", seed, "--true-reward"))
            if number < task.seeds:
                labels = ("--preferences.comparisons", str(LABELS))
                made += [_training(NAME, name, who, seed, *labels, *ERRING[who]) for who in task.teachers]
                if task.imitation and number < RIVALS:
                    made += [
                        Cell(NAME, name, rival, seed, beside(name, STEPS, LABELS, *more))
                        for rival, more in IMITATION.items()
                    ]
    return made


def _training(table: str, name: str, variant: str, seed: int, *words: str) -> Cell:
    return Cell(table, name, variant, seed, (*_arithmetic(seed), *train(name, *words)))


def _arithmetic(seed: int) -> tuple[str, str]:
    return "benchmarks/kernels.py", ARITHMETICS[seed % 2]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only cells whose name contains this")
    parser.add_argument("--parallel", type=int, default=2, help="runs at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs") / NAME, help="where the run folders go")
    options = parser.parse_args(arguments)
    run(f"method_{NAME}", [cell for cell in cells() if options.only in cell.key], options.parallel, options.runs)


if __name__ == "__main__":
    main()
