"""Run every calibration of benchmarks/calibrations and write benchmarks/results/calibration.json.

python benchmarks/calibration.py [--seeds 0 1 2] [--only TOPIC …]

With --only, the file's other topics stay as they are. Each topic says at which commit it was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pkgutil
import sys
import time
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import calibrations
from benchmarks.record import RESULTS, about, record


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    topics = sorted(found.name for found in pkgutil.iter_modules(calibrations.__path__))
    parser.add_argument("--only", nargs="+", choices=topics, default=topics)
    options = parser.parse_args()
    torch.set_num_threads(1)
    passed = True
    for topic in options.only:
        begun = time.process_time()
        found = importlib.import_module(f"benchmarks.calibrations.{topic}").rows(options.seeds)
        seconds = round(time.process_time() - begun, 1)
        for row in found:
            print(f"{'ok  ' if row.passed else 'FAIL'} {row.id:4} {row.what}: {row.value} ({row.bound})")
        print(f"     {topic}: {seconds} CPU seconds", flush=True)
        passed &= all(row.passed for row in found)
        _keep(topic, options.seeds, seconds, [dataclasses.asdict(row) for row in found])
    if not passed:
        sys.exit("Some rows are out of bounds.")


def _keep(topic: str, seeds: list[int], seconds: float, rows: list[dict[str, Any]]) -> None:
    """Write a topic's rows beside those of the other topics, if these had the same seeds."""
    path = RESULTS / "calibration.json"
    before = json.loads(path.read_text()) if path.exists() else {}
    topics = before.get("topics", {}) if before.get("seeds") == seeds else {}
    topics[topic] = {"commit": about()["commit"], "cpu_seconds": seconds, "rows": rows}
    total = round(sum(each["cpu_seconds"] for each in topics.values()), 1)
    record("calibration", {"seeds": seeds, "cpu_seconds": total, "topics": dict(sorted(topics.items()))})


if __name__ == "__main__":
    main()
