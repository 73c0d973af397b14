"""Time of a vector step of copies that compute for a while in Python, in this process and in one for each copy (docs/scaling.md).

python benchmarks/env_processes.py        # half a minute; writes benchmarks/results/env_processes.json
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record
from rlhf_ray.envs import make_vector_env

COPIES = 16
TURN = 20.0
"""Milliseconds of CPU time of a turn: short, so that on a busy machine some are not disturbed."""


class Computes(gym.Env[Any, Any]):
    """An environment whose step takes ``milliseconds`` of CPU time."""

    observation_space = gym.spaces.Box(-1.0, 1.0, (8,), np.float32)
    action_space = gym.spaces.Discrete(2)
    render_mode = None

    def __init__(self, milliseconds: float):
        self.seconds = milliseconds / 1000

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        super().reset(seed=seed)
        return np.zeros(8, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        end = time.thread_time() + self.seconds
        while time.thread_time() < end:
            pass
        return np.zeros(8, np.float32), 0.0, False, False, {}


def main() -> None:
    """Print a row for each cost of a step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--milliseconds", type=float, nargs="+", default=[0.01, 0.05, 0.2, 1.0])
    parser.add_argument("--turns", type=int, default=100, help="interleaved turns")
    arguments = parser.parse_args()
    gym.register("Computes-v0", Computes)
    actions = np.zeros(COPIES, np.int64)
    print(f"{COPIES} copies; {os.getloadavg()[0]:.1f} processes ran in the last minute")
    print("step of a copy (ms) | time in this process, in one for each copy (ms): fastest turns | median turns")
    rows = {}
    for milliseconds in arguments.milliseconds:
        both = [make_vector_env("Computes-v0", COPIES, number, milliseconds=milliseconds) for number in (1, 2)]
        steps = max(1, int(TURN / (COPIES * (milliseconds + 0.02))))
        for envs in both:
            envs.reset(seed=0)
        took: tuple[list[float], list[float]] = [], []
        for _ in range(arguments.turns):
            for number, envs in enumerate(both):
                began = time.perf_counter()
                for _ in range(steps):
                    envs.step(actions)
                took[number].append(1000 * (time.perf_counter() - began) / steps)
        pairs = [[how(times) for times in took] for how in (min, statistics.median)]
        rows[str(milliseconds)] = dict(zip(("fastest", "median"), pairs, strict=True))
        print(" | ".join([str(milliseconds), *(f"{one:.2f}, {two:.2f}" for one, two in pairs)]), flush=True)
        for envs in both:
            envs.close()
    record("env_processes", {"copies": COPIES, "turns": arguments.turns, "milliseconds_here_and_in_processes": rows})


if __name__ == "__main__":
    main()
