"""Run every calibration of benchmarks/calibrations and write benchmarks/results/calibration.json.

python benchmarks/calibration.py [--seeds 0 1 2] [--only TOPIC …]

The file's other topics and seeds stay as they are. Each says at which commit it was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import pkgutil
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import calibrations
from benchmarks.record import record_topic


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
        record_topic("calibration", topic, options.seeds, seconds, [dataclasses.asdict(row) for row in found])
    if not passed:
        sys.exit("Some rows are out of bounds.")


if __name__ == "__main__":
    main()
