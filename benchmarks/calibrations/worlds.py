"""Environments whose reward is known: each shaping, and what each step pays, is equivalent to the reward without shaping."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from benchmarks.calibrations import Row
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.envs import make_env
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.measure.distances import epic
from rlhf_ray.measure.mdp import TabularMDP
from rlhf_ray.reward.functions import RewardFunction

MAZES = ("EmptyMaze4", "EmptyMaze10", "KeyMaze6", "KeyMaze10")
GRIDS = ("FixedGoal", "CoinFlip", "TwoGoals", "NoGoal", "Key", "Walls")
SHAPINGS = ("dense", "antidense", "random")
GAMMAS = (0.99, 0.9)
"""Of even and odd seeds."""
BOUND = 1e-6


def rows(seeds: Sequence[int]) -> list[Row]:
    """Measure the rows P5 and P6; seeds draw random potentials and trajectories."""
    found = []
    for seed in seeds:
        for what, names, reward in (
            ("mazes, goal", MAZES, "goal"),
            ("mazes, path", MAZES, "path"),
            ("grids", GRIDS, ""),
        ):
            worst = {"model": 0.0, "steps": 0.0}
            for name in names:
                for key, value in _table_distances(name, {"reward": reward} if reward else {}, seed).items():
                    worst[key] = max(worst[key], value)
            found.append(_row("P5", f"EPIC of each shaping of {what} to the truth (seed {seed})", worst))
        found.append(_row("P5", f"EPIC of each shaping of MountainCar to the truth (seed {seed})", _mountain_car(seed)))
        ends = max(abs(error) for name in GRIDS for error in _last_steps(name, seed))
        found.append(
            Row(
                "P6",
                f"reward of terminal steps, next potential 0, against the formula (seed {seed})",
                ends,
                "= 0",
                ends == 0,
            )
        )
    defects = _defects()
    found.append(
        Row(
            "P5",
            "EPIC of three wrong shapings: the measure sees them",
            defects,
            "> 0.02 each",
            min(defects.values()) > 0.02,
        )
    )
    return found


def _row(name: str, what: str, worst: dict[str, float]) -> Row:
    return Row(name, what, worst, "< 1e-6", max(worst.values()) < BOUND)


def _table_distances(name: str, options: dict[str, Any], seed: int) -> dict[str, float]:
    """The largest EPIC distance of a tabular environment's models, and of what its steps pay, to the reward without shaping."""
    gamma, worst = GAMMAS[seed % 2], {"model": 0.0, "steps": 0.0}
    plain: Any = make_env(f"rlhf_ray/{name}-v0", **options).unwrapped
    transitions, truth, initial, terminal = plain.mdp_tables()
    mdp = TabularMDP(transitions, initial, gamma, terminal)
    for shaping in SHAPINGS:
        env: Any = make_env(f"rlhf_ray/{name}-v0", shaping=shaping, gamma=gamma, shaping_seed=seed, **options).unwrapped
        shaped = env.mdp_tables()[1]
        for key, table in (("model", shaped), ("steps", _with_steps(env, shaped, seed))):
            worst[key] = max(worst[key], epic(table, truth, mdp))
    return worst


def _with_steps(env: Any, table: FloatArray, seed: int, steps: int = 300) -> FloatArray:
    """``table`` with what the environment itself pays in place of its entries, on ``steps`` steps."""
    paid = table.copy()
    number = {np.asarray(one).tobytes(): i for i, one in enumerate(env.state_observations())}
    for before, action, after, reward, _ in _walk(env, seed, steps):
        paid[number[np.asarray(before).tobytes()], action, number[np.asarray(after).tobytes()]] = reward
    return paid


def _walk(env: Any, seed: int, steps: int, expert: float = 0.5) -> Iterator[tuple[Array, int, Array, float, bool]]:
    """Steps of an environment, this share of them the expert's and the others random; a new episode after each end."""
    rng = np.random.default_rng(seed)
    before, _ = env.reset(seed=seed)
    for _ in range(steps):
        action = env.expert(rng) if rng.random() < expert else int(rng.integers(env.action_space.n))
        after, reward, terminated, _, _ = env.step(action)
        yield before, action, after, reward, terminated
        before = env.reset()[0] if terminated else after


def _mountain_car(seed: int) -> dict[str, float]:
    """EPIC over all pairs of the states of a trajectory that swings up; and with what its steps paid."""
    gamma, worst = GAMMAS[seed % 2], {"model": 0.0, "steps": 0.0}
    for shaping in SHAPINGS:
        options = {"shaping": shaping, "gamma": gamma, "shaping_seed": seed}
        walk = list(_walk(make_env("rlhf_ray/MountainCar-v0", **options).unwrapped, seed, 200, expert=0.95))
        seen = np.stack([*(before for before, *_ in walk), walk[-1][2]])
        assert seen[:, 0].max() > 0.5, "the trajectory must reach the reward"
        name = "rlhf_ray/MountainCar-v0"
        given, true = (_table(each, seen) for each in (ground_truth(name, **options), ground_truth(name)))
        paid = given.copy()
        for at, (_, action, _, reward, _) in enumerate(walk):
            paid[at, action, at + 1] = reward
        count = len(seen)
        mdp = TabularMDP(np.full((count, 3, count), 1 / count), np.full(count, 1 / count), gamma)
        for key, table in (("model", given), ("steps", paid)):
            worst[key] = max(worst[key], epic(table, true, mdp))
    return worst


def _table(reward: RewardFunction, observations: Array) -> FloatArray:
    count = len(observations)
    before, action, after = (part.ravel() for part in np.indices((count, 3, count)))
    rewards = reward(observations[before], action, observations[after], np.zeros(len(before), bool))
    return rewards.reshape(count, 3, count)


def _last_steps(name: str, seed: int) -> Iterator[float]:
    """What terminal steps paid, less the reward for the goal minus the potential of the state before."""
    for shaping in SHAPINGS:
        env: Any = make_env(f"rlhf_ray/{name}-v0", shaping=shaping, shaping_seed=seed).unwrapped
        yield 0.0
        for before, _, _, reward, terminated in _walk(env, seed, 300):
            if terminated:
                yield reward - (1.0 - float(env.formula.potential(before[None])[0]))


def _defects() -> dict[str, float]:
    """EPIC of three wrong ways to shape EmptyMaze10: a potential in s only, a goal written over the shaping, Phi(s') for both."""
    env: Any = make_env("rlhf_ray/EmptyMaze10-v0", shaping="antidense").unwrapped
    _, right, initial, _ = env.mdp_tables()
    truth = make_env("rlhf_ray/EmptyMaze10-v0").unwrapped.mdp_tables()[1]  # type: ignore[attr-defined]
    potential = env.formula.potential(np.arange(env.states))
    mdp = TabularMDP(env.mdp_tables()[0], initial, 0.99)
    goal = env.goal_at[0] * env.size + env.goal_at[1]
    overwritten = right.copy()
    overwritten[goal] = 1.0
    wrong = {
        "potential of s only": truth - 0.01 * potential[:, None, None],
        "goal written over it": overwritten,
        "potential of s' only": truth - 0.01 * potential[None, None, :],
    }
    return {name: epic(table, truth, mdp) for name, table in wrong.items()}
