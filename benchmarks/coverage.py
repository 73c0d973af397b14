"""How often do 95 % intervals over episodes hold the value of many episodes?

Rewards with a known error, on 3, 5, 9 and 20 episodes: the share of data sets whose interval holds the value of `MANY` episodes,
and the intervals' mean width. Families of data:

* drift: the learned reward is the true one and a number that an episode draws once;
* autocorrelated: it is the true one and an error that changes slowly within episodes;
* uneven: episodes of 20 to 400 steps, each with noise of its own size.

    python benchmarks/coverage.py --data-sets 100 --out benchmarks/results/coverage.json
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from scipy.signal import lfilter

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.exchange import DIFFERENCE, StepPairs
from rlhf_ray.interpret.effects.exchange import LEARNED as OF_LEARNED
from rlhf_ray.interpret.effects.parts import StepPart
from rlhf_ray.interpret.reward.steps.header import pairs_in_order
from rlhf_ray.measure.intervals import estimate_mean, linear_correlation
from rlhf_ray.reward import sampled_distances
from rlhf_ray.reward.functions import CallableReward

SPACES = gym.spaces.Box(-99, 99, (3,), np.float32), gym.spaces.Discrete(2)
FAMILIES = ("drift", "autocorrelated", "uneven")
EPISODES = (3, 5, 9, 20)
LENGTH, MANY, TIMES = 100, 300, 5
GAMMA = 0.9


def _slow(rng: np.random.Generator, length: int) -> np.ndarray:
    """Draw a series with standard deviation 1 that forgets in some 30 steps."""
    noise = rng.normal(size=length + 200)
    return np.asarray(lfilter([math.sqrt(1 - 0.97**2)], [1, -0.97], noise)[200:])


def data_of(family: str, episodes: int, seed: int) -> Transitions:
    """Return steps whose observations are the true reward, the error of the learned one, and noise."""
    rng = np.random.default_rng(seed)
    rows = []
    for number in range(episodes):
        length = int(rng.integers(20, 400)) if family == "uneven" else LENGTH
        error = {
            "drift": lambda n: np.full(n, rng.normal()),
            "autocorrelated": lambda n: _slow(rng, n),
            "uneven": lambda n: rng.uniform(0.2, 2) * rng.normal(size=n),
        }[family](length)
        columns = (_slow(rng, length), error, rng.normal(size=length), np.full(length, number), np.arange(length))
        rows.append(np.stack(columns, 1))
    table = np.concatenate(rows)
    seen = table[:, :3].astype(np.float32)
    # The next state is a state of its own: a reward of the next state alone is nearly all shaping along slow episodes.
    before = rng.permutation(len(seen))
    numbers = table[:, 3].astype(int), table[:, 4].astype(int)
    actions, terminated = rng.integers(2, size=len(seen)), np.zeros(len(seen), bool)
    return Transitions(seen[before], actions, seen, terminated, seen[:, 0].astype(float), *numbers)


def reward(weight: float) -> CallableReward:
    """Return the true reward and ``weight`` times the error."""
    return CallableReward(
        lambda o, a, n, t: n[:, 0].astype(float) + weight * n[:, 1], *SPACES, f"true + {weight} error"
    )


TRUE, LEARNED = reward(0.0), reward(1.0)


def returns_of(data: Transitions) -> np.ndarray:
    """Return each episode's mean true reward and a number of its own."""
    return np.array([LEARNED.of(data[data.episodes == each]).mean() for each in np.unique(data.episodes)])


def effect(data: Transitions, seed: int, column: str) -> Any:
    """Return the effect of the learned reward's error."""
    mask = np.arange(3) == 1
    exchange = StepPairs(LEARNED, TRUE, data, 1000, np.random.default_rng(seed))
    return exchange.effects([StepPart("error", mask, mask)])[0].figures[column]


KINDS: dict[str, Callable[[Transitions, int], Any]] = {
    "correlation": lambda data, seed: sampled_distances.correlation(TRUE, LEARNED, data),
    "rank correlation": lambda data, seed: sampled_distances.correlation(TRUE, LEARNED, data, ranks=True),
    "EPIC": lambda data, seed: sampled_distances.epic(TRUE, LEARNED, data, GAMMA, np.random.default_rng(seed)),
    "DARD": lambda data, seed: sampled_distances.dard(TRUE, LEARNED, data, GAMMA, np.random.default_rng(seed)),
    "STARC": lambda data, seed: sampled_distances.starc(TRUE, LEARNED, data, GAMMA, np.random.default_rng(seed)),
    "effect": lambda data, seed: effect(data, seed, OF_LEARNED),
    "difference of effects": lambda data, seed: effect(data, seed, DIFFERENCE),
    "pairs in order": lambda data, seed: pairs_in_order(
        data.rewards, LEARNED.of(data), data.episodes, np.random.default_rng(seed)
    ),
    "correlation (measure)": lambda data, seed: linear_correlation(data.rewards, LEARNED.of(data), data.episodes),
    "mean return": lambda data, seed: estimate_mean(returns_of(data)),
}


def ends_of(found: Any) -> tuple[float, float, float]:
    """Return the value and both ends of any estimate; NaN ends if there is no interval."""
    value = found.mean if hasattr(found, "mean") else found.value
    low, high = (math.nan if end is None else end for end in (found.low, found.high))
    return float(value), low, high


def covers(kind: str, family: str, episodes: int, data_sets: int, target: float) -> dict[str, Any]:
    """Return in how many data sets there is an interval, how many of those hold the target, and their mean width."""
    found = [ends_of(KINDS[kind](data_of(family, episodes, seed), seed)) for seed in range(data_sets)]
    known = [(low, high) for _, low, high in found if not math.isnan(low)]
    held = sum(low <= target <= high for low, high in known)
    width = float(np.mean([high - low for low, high in known])) if known else math.nan
    return {"intervals": len(known), "hold": held, "width": round(width, 3) if known else None}


def target_of(kind: str, family: str) -> float:
    """Return the mean value of `TIMES` data sets of `MANY` episodes."""
    return float(np.mean([ends_of(KINDS[kind](data_of(family, MANY, 10**6 + seed), seed))[0] for seed in range(TIMES)]))


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-sets", type=int, default=100)
    parser.add_argument("--kinds", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--out", type=Path)
    command = parser.parse_args()
    rows = []
    for kind in command.kinds:
        for family in FAMILIES:
            target = target_of(kind, family)
            for episodes in EPISODES:
                row = {"kind": kind, "family": family, "episodes": episodes, "value": round(target, 3)}
                rows.append(row | covers(kind, family, episodes, command.data_sets, target))
                print(rows[-1], flush=True)
    if command.out is not None:
        about = {
            "command": " ".join(["benchmarks/coverage.py", *sys.argv[1:]]),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.machine(),
            "data_sets": command.data_sets,
            "rows": rows,
        }
        command.out.write_text(json.dumps(about, indent=1) + "\n")


if __name__ == "__main__":
    main()
