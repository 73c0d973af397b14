"""Fragments and selection: pairs to ask about, from trajectories, beside imitation's fragmenters; and selection beside its limit.

Random pairs: ours cuts fragments out of trajectories, takes them into the pool, draws pairs that differ, and hashes them;
imitation's `RandomFragmenter` takes views. Active selection: a thousand candidates scored by the disagreement of an ensemble of
five, of which a hundred are asked; imitation's `ActiveSelectionFragmenter` with the same networks. The limit of selection is the
time of the ensemble's forward passes over the pool, which is part of it.

    python benchmarks/fragments.py     # 2 minutes; writes benchmarks/results/fragments.json
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", TQDM_DISABLE="1")

import argparse
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from imitation.algorithms import preference_comparisons as pc
from imitation.data.types import TrajectoryWithRew
from imitation.rewards.reward_nets import BasicRewardNet
from imitation.rewards.reward_nets import RewardEnsemble as TheirEnsemble
from imitation.util.logger import configure

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.intervals import cpu_seconds, in_turns, ratio
from benchmarks.record import record
from rlhf_ray.data.fragments import Trajectory, cut_fragments
from rlhf_ray.queries.pool import CutFragments, FragmentPool
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings

OBSERVATIONS = gym.spaces.Box(-np.inf, np.inf, (4,), np.float32)
ACTIONS = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
SIZES = ((20, 500, 50), (200, 500, 50), (1000, 200, 100))
"""Trajectories, their steps, and the steps of a fragment."""

MODEL = RewardModelSettings(ensemble_size=5, hidden=(32, 32), activation="relu", normalize_inputs="none")


def trajectories(count: int, steps: int, seed: int) -> list[tuple[Any, Any, Any]]:
    """Observations, actions and rewards of made-up trajectories."""
    rng = np.random.default_rng(seed)
    return [
        (
            rng.standard_normal((steps + 1, 4)).astype(np.float32),
            rng.uniform(-1, 1, (steps, 1)).astype(np.float32),
            rng.standard_normal(steps),
        )
        for _ in range(count)
    ]


def pool_of(given: list[tuple[Any, Any, Any]], length: int, fragments: int, selection: str, seed: int) -> FragmentPool:
    """A pool of fragments of trajectories."""
    cut = cut_fragments(
        [Trajectory(*of, terminated=False) for of in given],
        length=length,
        count=fragments,
        start_share=0.0,
        policy_version=0,
        rng=np.random.default_rng(seed),
    )
    settings = FragmentSettings(length=length, pool=fragments, start_share=0.0)
    pool = FragmentPool(
        settings.resolved(horizon=None, total_env_steps=10**6),
        PreferenceSettings(selection=selection),
        MODEL,
        OBSERVATIONS,
        ACTIONS,
        seed,
    )
    pool.add(CutFragments(0, 0, cut, ()))
    return pool


def theirs(given: list[tuple[Any, Any, Any]]) -> list[TrajectoryWithRew]:
    """The same for imitation."""
    return [TrajectoryWithRew(obs=o, acts=a, infos=None, terminal=True, rews=r) for o, a, r in given]


def times(rounds: int, **arms: Callable[[int], Any]) -> dict[str, Any]:
    """How many times as fast the first of two is as the second, in CPU time; each is told the number of its turn."""

    def counted(arm: Callable[[int], Any]) -> Callable[[], Any]:
        turns = itertools.count()
        return lambda: arm(next(turns))

    mine, other = in_turns({name: cpu_seconds(counted(arm)) for name, arm in arms.items()}, rounds).values()
    return {**ratio(other, mine), "seconds": list(zip(mine, other, strict=True))}


def random_pairs(rounds: int, count: int, steps: int, length: int) -> dict[str, Any]:
    """A thousand random pairs."""
    given = trajectories(count, steps, 0)
    wrapped = theirs(given)

    def mine(turn: int) -> Any:
        return pool_of(given, length, 2000, "random", turn).propose(1000, 0, None)

    def other(turn: int) -> Any:
        return pc.RandomFragmenter(rng=np.random.default_rng(turn), warning_threshold=0)(wrapped, length, 1000)

    return times(rounds, mine=mine, other=other)


def active(rounds: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """A hundred of a thousand pairs, by disagreement; and the share of the forward passes in ours."""
    given = trajectories(40, 500, 0)
    wrapped = theirs(given)
    state = RewardEnsemble(OBSERVATIONS, ACTIONS, MODEL).state()
    ensemble = TheirEnsemble(OBSERVATIONS, ACTIONS, [BasicRewardNet(OBSERVATIONS, ACTIONS) for _ in range(5)])
    silent = configure(None, format_strs=[])

    def mine(turn: int) -> Any:
        return pool_of(given, 50, 2000, "disagreement", turn).propose(100, 0, state | {"version": np.int64(1)})

    def other(turn: int) -> Any:
        base = pc.RandomFragmenter(rng=np.random.default_rng(turn), warning_threshold=0, custom_logger=silent)
        chosen = pc.ActiveSelectionFragmenter(pc.PreferenceModel(ensemble), base, 10.0, custom_logger=silent)
        return chosen(wrapped, 50, 100)

    pool = pool_of(given, 50, 2000, "disagreement", 0)
    fragments, _ = pool._different()
    model = RewardEnsemble(OBSERVATIONS, ACTIONS, MODEL)

    def select(turn: int) -> Any:
        return pool.propose(100, turn, state | {"version": np.int64(1)})

    def forward(turn: int) -> Any:
        return model.fragment_returns(fragments)

    return times(rounds, mine=mine, other=other), times(rounds, select=select, forward=forward)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    outcome: dict[str, Any] = {"random": []}
    for count, steps, length in SIZES:
        row = {"trajectories": count, "steps": steps, "length": length}
        row |= {"times_imitation": random_pairs(options.rounds, count, steps, length)}
        outcome["random"].append(row)
        print(row["trajectories"], row["length"], row["times_imitation"]["median"], flush=True)
    outcome["active"], outcome["of_forward_limit"] = active(options.rounds)
    print(outcome["active"]["median"], outcome["of_forward_limit"]["median"])
    if options.rounds >= 8:
        record("fragments", outcome)


if __name__ == "__main__":
    main()
