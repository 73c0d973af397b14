"""Run every calibration of benchmarks/agent_calibrations and write benchmarks/results/agent_calibration.json.

python benchmarks/agent_calibration.py [--seeds 0 1 2] [--only TOPIC …] [--workers 2]

Trains the agents first (on the true reward of examples/worlds) unless benchmarks/agents has them. The file's
other topics and seeds stay as they are. Each says at which commit it was measured.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import pkgutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import agent_calibrations
from benchmarks.record import RESULTS, record_topic

NAME = "agent_calibration"


def main() -> None:
    topics = sorted(found.name for found in pkgutil.iter_modules(agent_calibrations.__path__))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--only", nargs="+", choices=topics, default=topics)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    begun = time.monotonic()
    done: dict[str, dict[int, tuple[list[dict[str, Any]], float]]] = {topic: {} for topic in options.only}
    with ProcessPoolExecutor(options.workers, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        _train(pool, options.seeds, options.only)
        # The longest first, so that no worker is left alone with them at the end.
        order = sorted(options.only, key=_seconds_before, reverse=True)
        waiting = {pool.submit(_measure, topic, seed): (topic, seed) for topic in order for seed in options.seeds}
        for future in as_completed(waiting):
            topic, seed = waiting[future]
            rows, seconds = done[topic][seed] = future.result()
            for row in rows:
                print(
                    f"{'ok  ' if row['passed'] else 'FAIL'} {row['id']:4} {row['what']}: {row['value']} ({row['bound']})"
                )
            print(
                f"     {topic}, seed {seed}: {seconds} CPU seconds, {time.monotonic() - begun:.0f} s in all", flush=True
            )
            if len(done[topic]) == len(options.seeds):
                rows = [{"seed": seed, **row} for seed in options.seeds for row in done[topic][seed][0]]
                record_topic(NAME, topic, options.seeds, sum(taken for _, taken in done[topic].values()), rows)
    if not all(row["passed"] for of in done.values() for rows, _ in of.values() for row in rows):
        sys.exit("Some rows are out of bounds.")


def _measure(topic: str, seed: int) -> tuple[list[dict[str, Any]], float]:
    begun = time.process_time()
    rows = importlib.import_module(f"benchmarks.agent_calibrations.{topic}").rows([seed])
    return [dataclasses.asdict(row) for row in rows], round(time.process_time() - begun, 1)


def _train(pool: ProcessPoolExecutor, seeds: list[int], topics: list[str]) -> None:
    """Train the agents that the topics name in ``AGENTS``, several at a time."""
    names = {
        name
        for topic in topics
        for name in getattr(importlib.import_module(f"benchmarks.agent_calibrations.{topic}"), "AGENTS", ())
    }
    waiting = [pool.submit(_load, name, seed) for name in sorted(names) for seed in seeds]
    for future in as_completed(waiting):
        print(f"     {future.result()}", flush=True)


def _load(name: str, seed: int) -> str:
    begun = time.monotonic()
    agent = agent_calibrations.agent_for(name, seed)
    return f"{agent.name}: {time.monotonic() - begun:.0f} s"


def _seconds_before(topic: str) -> float:
    """Return the CPU time that a topic took last time."""
    path = RESULTS / f"{NAME}.json"
    before = json.loads(path.read_text())["topics"] if path.exists() else {}
    return max((float(part["cpu_seconds"]) for part in before.get(topic, {}).values()), default=1e9)


if __name__ == "__main__":
    main()
