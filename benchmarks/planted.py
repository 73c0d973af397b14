"""Report on every planted cause of benchmarks/planted_causes, and write benchmarks/results/planted.json.

python benchmarks/planted.py [--only NAME …] [--workers 2] [--work FOLDER]

Each report is kept in the work folder, and a kept one is not made again: the same command continues, and judges anew.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.planted_causes import Case, agents, environments, judge, vectors
from benchmarks.record import about, record
from rlhf_ray.interpret.agent.report import report_agent
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.interpret.reward.report import report_reward

REWARDS = (*vectors.CASES, *environments.CASES)
CASES = {case.name: case for case in (*REWARDS, *agents.CASES)}
STEPS = ["header", "effects"]
"""The steps that show a cause."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=CASES, default=list(CASES), metavar="NAME")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "planted")
    options = parser.parse_args()
    options.work.mkdir(parents=True, exist_ok=True)
    waiting = [name for name in reversed(options.only) if not kept(options.work, name).exists()]  # agents take longest
    with ProcessPoolExecutor(options.workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        for future in as_completed([pool.submit(measure, name, options.work) for name in waiting]):
            print(f"     {future.result()}", flush=True)
    rows = [judged(CASES[name], options.work) for name in options.only]
    for row in rows:
        print(
            f"{'ok  ' if passes(row) else 'FAIL'} {row['name']}: {', '.join(row['rows'])} {row['beyond_control'] or ''}"
        )
    print(json.dumps(totals(rows), indent=1))
    if set(options.only) == set(CASES):
        record("planted", {**totals(rows), "cases": rows})


def kept(work: Path, name: str) -> Path:
    """Return the file of a case's report."""
    return work / f"{name.replace(' ', '_').replace(',', '')}.json"


def measure(name: str, work: Path) -> str:
    """Make the report of a case, keep its twin, and return the case's name and its time."""
    begun, case = time.process_time(), CASES[name]
    folder = kept(work, name).with_suffix("")
    shutil.rmtree(folder, ignore_errors=True)  # of a stopped run: its CPU time would not count
    report = json.loads(study(case, folder).read_text())
    seconds = round(time.process_time() - begun, 1)
    kept(work, name).write_text(json.dumps({"seconds": seconds, "commit": about()["commit"], "report": report}))
    return f"{name}: {seconds} CPU seconds"


def study(case: Case, folder: Path) -> Path:
    """Run the steps of a case's study; return its twin in JSON."""
    subject = case.subject()
    if isinstance(subject, AgentSubject):
        return report_agent(subject, folder, STEPS).with_suffix(".json")
    return report_reward(subject, folder, STEPS).page.with_suffix(".json")


def judged(case: Case, work: Path) -> dict[str, Any]:
    """Judge the kept report of a case."""
    found = json.loads(kept(work, case.name).read_text())
    return {**judge(case, found["report"]), "cpu_seconds": found["seconds"], "commit": found["commit"]}


def passes(row: dict[str, Any]) -> bool:
    """Return whether a cause is shown; without one, whether no row is beyond its control."""
    return bool(row["shown"]) if row["flawed"] else not row["beyond_control"]


def totals(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Count planted causes that are shown, and cases without one whose rows are beyond their controls."""
    groups = {"rewards": {case.name for case in REWARDS}, "agents": {case.name for case in agents.CASES}}
    counts: dict[str, Any] = {}
    for group, names in groups.items():
        flawed = [row for row in rows if row["name"] in names and row["flawed"]]
        clean = [row for row in rows if row["name"] in names and not row["flawed"]]
        counts[group] = {
            "planted": len(flawed),
            "shown": sum(map(passes, flawed)),
            "nothing_planted": len(clean),
            "with_rows_beyond_control": sum(not passes(row) for row in clean),
        }
    return counts | {"cpu_seconds": round(sum(row["cpu_seconds"] for row in rows), 1)}


if __name__ == "__main__":
    main()
