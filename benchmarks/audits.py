"""Does an audit of a reward say what an agent will get from it? Sixty learned rewards, audited first, then learned from anew.

    python benchmarks/audits.py [--parallel 2] [--runs runs/results]

The rewards are those at the end of runs of `benchmarks/page.py`, with each teacher: four seeds of two tasks, two of two others. A
fresh agent, with another seed, learns from the reward as it is (`rlhf-ray train ENVIRONMENT --reward-from RUN`), in as many steps.
Written are the audit's figures (`rlhf-ray interpret reward RUN --steps header effects`), the true returns, of the agent that
learned beside the reward, and of the fresh one, and the page's of random actions and of the true reward, their scale. A row that
benchmarks/results/audits.json has is kept.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.cells import DISCRETE, EPISODES, Cell, kept, run_command
from benchmarks.page import ALL, FIRST_SEED, NAME, cells
from benchmarks.record import RESULTS, about, record
from benchmarks.tables import REFERENCE, Table, estimate

SEEDS: Mapping[str, int] = {
    "Pendulum-v1": 4,
    "rlhf_ray/CartPoleFixed-v0": 4,
    "rlhf_ray/AcrobotFixed-v0": 2,
    "Reacher-v5": 2,
}
ANEW = 1000
"""Added to a run's seed: that of the fresh agent."""
_LOCK = threading.Lock()


def audited() -> list[Cell]:
    """The cells whose rewards are audited."""
    return [
        cell
        for cell in cells()
        if cell.variant in ALL and cell.seed < FIRST_SEED + SEEDS.get(cell.task, 0) and cell.experiment == NAME
    ]


def rows() -> dict[str, Any]:
    """What was measured, by the cell's key."""
    path = RESULTS / "audits.json"
    return dict(json.loads(path.read_text())["rewards"]) if path.exists() else {}


def measure(cell: Cell, runs: Path) -> dict[str, Any]:
    """Audit the reward of a cell's run, then train on it."""
    (folder,) = runs.resolve().glob(f"{cell.key.replace('/', '-')}-*/run")
    with tempfile.TemporaryDirectory() as work:
        words = ("--steps", "header", "effects", "--out", f"{work}/audit")
        _, audit = run_command([sys.executable, "-m", "rlhf_ray", "interpret", "reward", str(folder), *words])
        report = json.loads(Path(work, "audit", "report.json").read_text())
        words = (*("--seed", str(cell.seed + ANEW)), *("--evaluation-episodes", str(EPISODES)))
        own = ("--reward-from", str(folder), "--preferences.comparisons", "0", "--run-dir", f"{work}/run")
        run_command([sys.executable, "-m", "rlhf_ray", "train", cell.task, *own, *words])
        if any(part in cell.task for part in DISCRETE):
            words = ("--episodes", str(EPISODES), "--sample-actions", "--json")
            printed, _ = run_command([sys.executable, "-m", "rlhf_ray", "evaluate", f"{work}/run", *words])
            anew = json.loads(printed)["true_return_mean"]
        else:
            anew = json.loads(Path(work, "run", "result.json").read_text())["trained"]["true_return_mean"]
    return {**figures(report), "anew": anew, "audit_cpu_minutes": round(audit / 60, 2), "commit": about()["commit"]}


def figures(report: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a report's twin in JSON that say how good the reward is; None for what needs the true reward as a function."""
    header, effects = (
        next(each for each in report["sections"] if each["name"] == name) for name in ("header", "effects")
    )
    values, top = header["values"], next(table for table in effects["effects"] if table["name"] == "inputs")["rows"][0]
    share = values["taught"]["share"] if values["taught"] else None
    return {
        "taught": share and [share["mean"], share["low"], share["high"]],
        "steps": values["linear"] and values["linear"]["mean"],
        "ranks": values["rank"] and values["rank"]["mean"],
        "returns": values["returns"] and values["returns"]["mean"],
        "pairs": values["pairs"] and values["pairs"]["mean"],
        "epic": values["distances"]["epic"]["value"] if "epic" in values["distances"] else None,
        "top": top["name"],
        "top_difference": top["figures"]["difference"]["mean"] if "difference" in top["figures"] else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parallel", type=int, default=2, help="rewards at a time")
    parser.add_argument("--runs", type=Path, default=Path("runs") / NAME, help="where benchmarks/page.py left its runs")
    options = parser.parse_args()
    runs, page = kept(f"method_{NAME}"), Table(NAME, cells())

    def one(cell: Cell) -> None:
        try:
            found = measure(cell, options.runs)
        except (RuntimeError, ValueError, subprocess.SubprocessError) as error:
            print(f"FAILED {cell.key}: {error}", flush=True)
            return
        found["run"] = runs[cell.key]["return"]
        found["scale"] = [page.random(cell.task), estimate(page.returns(cell.task, REFERENCE)).value]
        with _LOCK:
            record("audits", {"rewards": rows() | {cell.key: found}})
        print(f"{cell.key}: {found}", flush=True)

    with ThreadPoolExecutor(options.parallel) as pool:
        list(pool.map(one, [cell for cell in audited() if cell.key in runs and cell.key not in rows()]))


if __name__ == "__main__":
    main()
