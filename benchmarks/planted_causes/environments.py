"""Rewards in named environments, some without a flaw: the true one up to scale, shaping or a constant that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np

import examples.worlds  # noqa: F401 - registers them
from benchmarks.planted_causes import Case
from benchmarks.planted_causes.vectors import EFFORT, FUNCTION
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import AGENT, GOAL, KEY, WALL, enters_goal
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward

PENDULUM, CAR, SCORE = "Pendulum-v1", "rlhf_ray/MountainCar-v0", "rlhf_ray/ScoreShortcut-v0"
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


played: Callable[[str], Transitions] = cache(partial(wander, seed=0))


def potential(o: Array) -> Array:
    """A potential that nothing of the task has."""
    return 3 * o[:, 0] + o[:, 1]


def case(name: str, truth: str, where: str, function: FUNCTION, cause: str, flawed: bool = True) -> Case:
    """A case in an environment whose true reward is known."""

    def subject() -> Subject:
        env = make_env(where)
        reward = CallableReward(function, env.observation_space, env.action_space)
        return Subject(reward, played(where), environment=where, effort=EFFORT)

    return Case(name, truth, subject, cause, flawed=flawed)


CASES = [
    case("ignores velocity", "the truth without the angular velocity", PENDULUM, lambda o, a, p, d: -(angle(o) ** 2),
         "angular velocity"),
    case("action's sign", "the truth, and 3 for a positive action", PENDULUM,
         lambda o, a, p, d: swing(o, a, p, d) + 3 * (a[:, 0] > 0), "^the action"),
    case("beside walls", "whether the agent is beside a wall after the step", RANDOM, beside, "wall|agent"),
    case("vanishing key", "whether the key vanishes in this step", KEYS,
         lambda o, a, p, d: 1.0 * ((o == KEY).any(1) & ~(p == KEY).any(1)), "key"),
    case("noise", "nothing: rewards of steps that are alike differ", PENDULUM, noise, "by a hair"),
    case("score display", "whether the display above the game lights up", SCORE, lambda o, a, p, d: (p[:, 0, 0, 0] > 200) * 1.0,
         "rows 0"),
    case("cut off above", "the truth, cut off above -3", PENDULUM, lambda o, a, p, d: np.minimum(swing(o, a, p, d), -3),
         "angle|velocity"),
    case("sign flipped", "the truth with the other sign", PENDULUM, lambda o, a, p, d: -swing(o, a, p, d), "angle"),
    case("level", "one minus the goals in sight: the true reward, with the level -1", TWO,
         lambda o, a, p, d: 1.0 - (p == GOAL).sum(1), "goal"),
    case("standing still", "minus the distance that the car moves", CAR, lambda o, a, p, d: -20.0 * abs(p[:, 0] - o[:, 0]),
         "position|velocity"),
    case("true", "the true reward", PENDULUM, swing, "", False),
    case("tiny scale", "the true reward, times 1e-8", PENDULUM, lambda o, a, p, d: 1e-8 * swing(o, a, p, d), "", False),
    case("large offset", "1e8 more than the true reward, where no episode ends early", PENDULUM,
         lambda o, a, p, d: 1e8 + swing(o, a, p, d), "", False),
    case("shaped", "the true reward, shaped by a potential", PENDULUM,
         lambda o, a, p, d: swing(o, a, p, d) + 5 * (0.99 * potential(p) - potential(o)), "", False),
    case("scaled, shifted and shaped", "the true reward, scaled, shifted and shaped", PENDULUM,
         lambda o, a, p, d: 5 + 2 * swing(o, a, p, d) + 0.99 * potential(p) - potential(o), "", False),
    case("true in a grid", "the true reward", RANDOM, lambda o, a, p, d: enters_goal(o, a, p), "", False),
]  # fmt: skip
