"""Rewards with a flaw each that no tool was written for (from K12 on): the report names it, and finds none in right rewards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.calibrations import Row
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import AGENT, GOAL, KEY, WALL, enters_goal
from rlhf_ray.interpret.effects.regions import regions_in
from rlhf_ray.interpret.reward.steps import counterfactuals, shortcuts
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import run_step, why_not

PENDULUM, CART, CAR = "Pendulum-v1", "CartPole-v1", "rlhf_ray/MountainCar-v0"
RANDOM, KEYS, TWO = "rlhf_ray/RandomGoal-v0", "rlhf_ray/Key-v0", "rlhf_ray/TwoGoals-v0"
STEPS = 1500


def angle(o: Array) -> FloatArray:
    """The pendulum's angle."""
    return np.asarray(np.arctan2(o[:, 1], o[:, 0]), np.float64)


def swing(o: Array, a: Array, p: Array, d: Array) -> FloatArray:
    """The pendulum's true reward."""
    return np.asarray(-(angle(o) ** 2) - 0.1 * o[:, 2] ** 2 - 0.001 * a[:, 0] ** 2)


def beside(o: Array, a: Array, p: Array, d: Array) -> Array:
    """1 where the agent stands beside a wall."""
    grid = p.reshape(-1, *make_env(RANDOM).unwrapped.grid)  # type: ignore[attr-defined]
    near = [np.roll(grid == WALL, by, axis) for axis in (1, 2) for by in (1, -1)]
    return np.asarray(1.0 * ((grid == AGENT) & np.any(near, 0)).any((1, 2)))


def noise(o: Array, a: Array, p: Array, d: Array) -> Array:
    """Differs between any two steps, and means nothing."""
    return np.asarray(np.sin(1e7 * o.astype(np.float64) @ np.arange(1.0, o.shape[1] + 1)))


def rows(seeds: Sequence[int]) -> list[Row]:
    """Look at each reward for the first seed, as nothing is learned."""
    seed = seeds[0]
    data = {name: wander(name, seed) for name in (PENDULUM, CART, CAR, RANDOM, KEYS, TWO)}

    def row(id_: str, what: str, name: str, function: Callable[..., Array], *words: str) -> Row:
        kinds = ("rewards", "warning") if words else ("warning",)
        said = statements(name, function, data[name], seed, kinds)
        passed = all(any(word in text for text in said) for word in words) if words else not said
        bound = f"the report says: {' … '.join(words)}" if words else "no warning"
        return Row(id_, what, "as it should be" if passed else " ".join(said)[:300], bound, passed)

    return [
        row("K12", "ignores the velocity", PENDULUM, lambda o, a, p, d: -(angle(o) ** 2),
            "ignores angular velocity, on which the true reward depends"),
        row("K13", "pays for turning one way", PENDULUM, lambda o, a, p, d: swing(o, a, p, d) + 4 * np.sign(o[:, 2]),
            "where angular velocity in the state"),
        row("K14", "pays for the action's sign", PENDULUM, lambda o, a, p, d: swing(o, a, p, d) + 3 * (a[:, 0] > 0),
            "depends on actions as such"),
        row("K15", "punishes the goal", PENDULUM, lambda o, a, p, d: np.where(abs(angle(o)) < 0.2, -10, swing(o, a, p, d)),
            "cos(angle) in the state is at least 0.9"),
        row("K16", "is cut off below", PENDULUM, lambda o, a, p, d: np.maximum(swing(o, a, p, d), -3),
            "exactly its lowest value, -3"),
        row("K17", "pays for the cart's position", CART, lambda o, a, p, d: p[:, 0] * 1.0, "Cart position is the sole cause"),
        row("K18", "pays for falling", CART, lambda o, a, p, d: 1 + 5.0 * d, "terminates the episode gets"),
        row("K19", "pays for speed", CAR, lambda o, a, p, d: 20.0 * abs(p[:, 1]), "Velocity is the sole cause"),
        row("K20", "pays beside walls", RANDOM, beside, "follows whether the agent is beside the wall in the next state"),
        row("K21", "pays when the key vanishes", KEYS, lambda o, a, p, d: 1.0 * ((o == KEY).any(1) & ~(p == KEY).any(1)),
            "rewards the disappearance of the key"),
        row("K22", "counts goals", TWO, lambda o, a, p, d: (p == GOAL).sum(1) * 1.0,
            "The number of cells that show the goal in the next state alone tells 100 %"),
        row("K23", "noise", PENDULUM, noise, "It looks like noise"),
        row("K24", "no flaw: the true reward", PENDULUM, swing),
        row("K25", "no flaw: scaled, shifted and shaped", PENDULUM,
            lambda o, a, p, d: 5 + 2 * swing(o, a, p, d) + 0.99 * (3 * p[:, 0] + p[:, 1]) - (3 * o[:, 0] + o[:, 1])),
        row("K26", "no flaw: the true reward of a grid", RANDOM, lambda o, a, p, d: enters_goal(o, a, p)),
    ]  # fmt: skip


def wander(name: str, seed: int) -> Transitions:
    """Record episodes of random actions that last some steps, mixed with the environment's expert's, if it has one."""
    env, rng = make_env(name), np.random.default_rng(seed)
    env.action_space.seed(seed)
    expert = getattr(env.unwrapped, "expert", None)
    found: list[tuple[Any, ...]] = []
    episode = 0
    while len(found) < STEPS:
        before, _ = env.reset(seed=int(rng.integers(2**31)))
        number, over, held = 0, False, env.action_space.sample()
        while not over:
            held = env.action_space.sample() if rng.random() < 0.2 else held
            action = held if expert is None or rng.random() < (0.9 if episode % 2 else 0.3) else expert(rng)
            after, reward, terminated, truncated, _ = env.step(action)
            found.append((before, action, after, terminated, float(reward), episode, number))
            before, number, over = after, number + 1, terminated or truncated
        episode += 1
    columns: list[Any] = [np.array(column) for column in zip(*found, strict=True)]
    return Transitions(*columns)


def statements(
    name: str, function: Callable[..., Array], data: Transitions, seed: int, kinds: Sequence[str]
) -> list[str]:
    """Return what the sections on shortcuts and counterfactuals say among the first six statements of each kind."""
    env = make_env(name)
    reward = CallableReward(function, env.observation_space, env.action_space)
    subject = Subject(reward, data, environment=name, regions=regions_in(name, reward), seed=seed, effort=0.3)
    found = [shortcuts.statements(shortcuts.measure(subject))]
    if why_not(counterfactuals, subject) is None:
        found.append(list(run_step(counterfactuals, subject).statements))
    most = 6 // len(found)
    return [
        each.text
        for kind in kinds
        for of in found
        for each in sorted((each for each in of if each.kind == kind), key=lambda each: -each.weight)[:most]
    ]
