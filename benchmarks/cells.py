"""Cells of a table of experiments: one run each, in a process of its own, kept in one file, so that a table resumes.

A cell is an experiment, a task, a variant and a seed. Its command is a training, or one that writes such a `result.json`. Where
actions are Discrete, returns are those of actions drawn from the policy, as in training, elsewhere of its most probable ones: the
most probable action of some good policies never starts to swing. A cell that the file holds already is not run again, and of cells
with the same command, in whatever tables, one is run. `benchmarks/method_tables.py` makes tables and plots of them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import RESULTS, ROOT, about

_LOCK = threading.Lock()

SEEDS, FEW_SEEDS = 5, 3
FIRST_SEED = 200

FEW = ("Hopper", "Walker2d", "reacher", "-v5", "coinrun", "MetaWorld")
"""What the names of tasks with three seeds contain: slow ones."""


@dataclass(frozen=True)
class Cell:
    """One run: what it is in the table, and its command after `python`, without the seed and the folder."""

    experiment: str
    task: str
    variant: str
    seed: int
    words: tuple[str, ...]

    @property
    def key(self) -> str:
        """Its name in the file."""
        return f"{self.experiment}/{self.task}/{self.variant}/{self.seed}"

    @property
    def command(self) -> str:
        """What is run, but for the folder."""
        return " ".join(["python", *self.words, "--seed", str(self.seed)])


def seeds_of(task: str, first: int = FIRST_SEED) -> tuple[int, ...]:
    """Five seeds, three for slow tasks."""
    return tuple(range(first, first + (FEW_SEEDS if any(part in task for part in FEW) else SEEDS)))


def cells_of(experiment: str, task: str, variant: str, words: Sequence[str], first: int = FIRST_SEED) -> list[Cell]:
    """The cells of all seeds of a variant."""
    return [Cell(experiment, task, variant, seed, tuple(words)) for seed in seeds_of(task, first)]


TRAINING = ("-m", "rlhf_ray", "train")
EPISODES = 50
"""Episodes of each evaluation."""


def train(*words: str) -> tuple[str, ...]:
    """The words of a training."""
    return (*TRAINING, *words, "--evaluation-episodes", str(EPISODES))


def reference(task: str, *words: str, first: int = FIRST_SEED) -> list[Cell]:
    """The cells of the same agent trained on the true reward."""
    return cells_of("reference", task, "true reward", train(*words, "--true-reward"), first)


DISCRETE = ("cartpole", "CartPole", "acrobot", "Acrobot", "coinrun", "MovingDot", "Shop")
"""What the names of tasks with Discrete actions contain."""


def file_of(name: str) -> Path:
    return RESULTS / f"{name}.json"


def kept(name: str) -> dict[str, Any]:
    """The finished cells of the table ``name``, by key."""
    path = file_of(name)
    return dict(json.loads(path.read_text())["cells"]) if path.exists() else {}


def write(name: str, table: Mapping[str, Any]) -> None:
    """Write the table ``name``, a cell on each line."""
    head = json.dumps({key: value for key, value in table.items() if key != "cells"}, indent=1).removesuffix("\n}")
    lines = [f"  {json.dumps(key)}: {json.dumps(cell)}" for key, cell in sorted(table["cells"].items())]
    file_of(name).write_text(f'{head},\n "cells": {{\n' + ",\n".join(lines) + "\n }\n}\n")


def run(name: str, cells: Sequence[Cell], parallel: int, runs: Path) -> None:
    """Run the cells that are missing, ``parallel`` at a time. Report failures at the end."""
    missing = [cell for cell in cells if cell.key not in kept(name)]
    print(f"{name}: {len(cells) - len(missing)} of {len(cells)} cells are there", flush=True)
    failed: list[str] = []

    def one(cell: Cell) -> None:
        started = time.perf_counter()
        try:
            found = _same(cell) or _run(cell, runs)
        except RuntimeError as error:
            failed.append(str(error))
            print(f"FAILED {cell.key}: {error}", flush=True)
            return
        with _LOCK:
            write(name, {**about(), "cells": kept(name) | {cell.key: found}})
        print(f"{cell.key}: {found['return']:.1f} ({time.perf_counter() - started:.0f} s)", flush=True)

    with ThreadPoolExecutor(parallel) as pool:
        list(pool.map(one, missing))
    if failed:
        raise SystemExit(f"{len(failed)} cells failed: {failed}")


def _same(cell: Cell) -> dict[str, Any] | None:
    """The result of the same command at the same commit, of any table."""
    tables = (kept(path.stem) for path in sorted(RESULTS.glob("method_*.json")))
    wanted = (cell.command, about()["commit"])
    among = (found for table in tables for found in table.values())
    return next((found for found in among if (found["command"], found["commit"]) == wanted), None)


def _run(cell: Cell, runs: Path) -> dict[str, Any]:
    runs.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=cell.key.replace("/", "-") + "-", dir=runs)) / "run"
    command = [sys.executable, *cell.words, "--seed", str(cell.seed), "--run-dir", str(folder)]
    _, seconds = run_command(command)
    result = json.loads((folder / "result.json").read_text())
    agent = result["trained"] or result["reference"]
    if agent is None:
        raise RuntimeError(f"{cell.key} has stopped early: {folder}")
    before, is_training, _ = " ".join(cell.words).partition(" ".join(TRAINING))
    if is_training and any(part in cell.task for part in DISCRETE):
        evaluate = (sys.executable, *before.split(), "-m", "rlhf_ray", "evaluate", str(folder))
        agent = json.loads(run_command([*evaluate, "--episodes", str(EPISODES), "--sample-actions", "--json"])[0])
    return {
        "return": agent["true_return_mean"],
        "random": (result["random"] or {}).get("true_return_mean"),
        "success_rate": agent.get("success_rate"),
        "env_steps": result["env_steps"],
        "cpu_minutes": round(seconds / 60, 2),
        "comparisons": result["comparisons"],
        "held_out_accuracy": result.get("held_out_accuracy"),
        "checks": [check["name"] for check in result.get("checks", []) if not check["passed"]],
        "commit": about()["commit"],
        "command": cell.command,
        "curve": curve(folder),
    }


def curve(folder: Path, points: int = 20) -> list[tuple[int, float]]:
    """Environment steps and true return of a run, thinned to about ``points``."""
    metrics = folder / "metrics.jsonl"
    rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.exists() else []
    known = [
        (row["env_steps"], round(row["true_return_mean"], 2)) for row in rows if row.get("true_return_mean") is not None
    ]
    return known[: -1 : max(1, len(known) // points)] + known[-1:]


def run_command(command: Sequence[str]) -> tuple[str, float]:
    """What the command prints on its standard output, and the CPU seconds of its process and of those that it has waited for."""
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=out, stderr=err)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        for file in (out, err):
            file.seek(0)
        printed = out.read()
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)} failed: {printed[-250:]} {err.read()[-500:]}")
    return printed, used.ru_utime + used.ru_stime
