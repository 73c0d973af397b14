"""Rewards in named environments, some without a flaw: the true one up to scale, shaping or a constant that changes nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np

from benchmarks.calibrations.flaws import angle, beside, noise, swing, wander
from benchmarks.planted_causes import Case, only
from benchmarks.planted_causes.vectors import EFFORT, FUNCTION, NO_ACTION, NO_NOISE
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import GOAL, KEY, enters_goal
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward

PENDULUM, CAR, SCORE = "Pendulum-v1", "rlhf_ray/MountainCar-v0", "rlhf_ray/ScoreShortcut-v0"
RANDOM, KEYS, TWO = "rlhf_ray/RandomGoal-v0", "rlhf_ray/Key-v0", "rlhf_ray/TwoGoals-v0"
PARTS = ["cos(angle)", "sin(angle)", "angular velocity"]

TRAINED = ("vanishing key", "sign flipped", "level", "standing still", "true")
"""Cases with the incentive test, whose training of small agents takes as long as all other steps of all rewards."""
played: Callable[[str], Transitions] = cache(partial(wander, seed=0))


def potential(o: Array) -> Array:
    """A potential that nothing of the task has."""
    return 3 * o[:, 0] + o[:, 1]


def case(name: str, truth: str, where: str, function: FUNCTION, first: tuple[str, ...], *false: str,
         flawed: bool = True) -> Case:  # fmt: skip
    """A case in an environment whose true reward is known."""

    def subject() -> Subject:
        env = make_env(where)
        reward = CallableReward(function, env.observation_space, env.action_space)
        return Subject(reward, played(where), environment=where, effort=EFFORT)

    return Case(name, truth, subject, first, false, flawed, () if name in TRAINED else ("incentive",))


SAME = ("same|equal|equivalent|close to|teaches|true reward",)
"""The first line of a reward without a flaw."""
CASES = [
    case("ignores velocity", "the truth without the angular velocity", PENDULUM, lambda o, a, p, d: -(angle(o) ** 2),
         ("angular velocity", "ignores|misses|not at all"), *only(PARTS[:2], PARTS), NO_ACTION, NO_NOISE),
    case("action's sign", "the truth, and 3 for a positive action", PENDULUM,
         lambda o, a, p, d: swing(o, a, p, d) + 3 * (a[:, 0] > 0), (r"\baction",),
         *only(PARTS, PARTS), r"ignores [^:]*the action", NO_NOISE),
    case("beside walls", "whether the agent is beside a wall after the step", RANDOM, beside, ("wall",), NO_NOISE,
         r"ignores (the )?agent\b"),
    case("vanishing key", "whether the key vanishes in this step", KEYS,
         lambda o, a, p, d: 1.0 * ((o == KEY).any(1) & ~(p == KEY).any(1)), ("key", "disappear|vanish"), NO_NOISE,
         r"rewards (the disappearance of|that) the goal", r"ignores (the )?key\b"),
    case("noise", "nothing: rewards of steps that are alike differ", PENDULUM, noise, ("noise",), "teaches the task",
         "close to the true"),
    case("score display", "whether the display above the game lights up", SCORE, lambda o, a, p, d: (p[:, 0, 0, 0] > 200) * 1.0,
         (r"score|display|rows? 0",), NO_ACTION, NO_NOISE),
    case("cut off above", "the truth, cut off above -3", PENDULUM, lambda o, a, p, d: np.minimum(swing(o, a, p, d), -3),
         ("cut off|saturat|highest value|no longer rises",), *only(PARTS, PARTS), NO_NOISE, "lowest value"),
    case("sign flipped", "the truth with the other sign", PENDULUM, lambda o, a, p, d: -swing(o, a, p, d),
         ("opposite|sign|reverse|wrong way",), *only(PARTS, PARTS), NO_NOISE, "close to the true", "teaches the task",
         "no better than chance"),
    case("level", "one minus the goals in sight: the true reward, with the level -1", TWO,
         lambda o, a, p, d: 1.0 - (p == GOAL).sum(1), ("level|constant|shift",), NO_NOISE, "ranks behaviour differently",
         "no constant mends", "changed ranking", "far from the true"),
    case("standing still", "minus the distance that the car moves", CAR, lambda o, a, p, d: -20.0 * abs(p[:, 0] - o[:, 0]),
         ("position|velocity|still|move",), NO_NOISE, "close to the true", r"looks at the action\b"),
    case("true", "the true reward", PENDULUM, swing, SAME, NO_NOISE, NO_ACTION, flawed=False),
    case("tiny scale", "the true reward, times 1e-8", PENDULUM, lambda o, a, p, d: 1e-8 * swing(o, a, p, d), SAME, NO_NOISE,
         NO_ACTION, "same on all|constant:", *only(PARTS, PARTS), flawed=False),
    case("large offset", "1e8 more than the true reward, where no episode ends early", PENDULUM,
         lambda o, a, p, d: 1e8 + swing(o, a, p, d), SAME, NO_NOISE, NO_ACTION, "same on all|constant:",
         *only(PARTS, PARTS), flawed=False),
    case("shaped", "the true reward, shaped by a potential", PENDULUM,
         lambda o, a, p, d: swing(o, a, p, d) + 5 * (0.99 * potential(p) - potential(o)), SAME, NO_NOISE, NO_ACTION, flawed=False),
    case("scaled, shifted and shaped", "the true reward, scaled, shifted and shaped", PENDULUM,
         lambda o, a, p, d: 5 + 2 * swing(o, a, p, d) + 0.99 * potential(p) - potential(o), SAME, NO_NOISE, NO_ACTION,
         flawed=False),
    case("true in a grid", "the true reward", RANDOM, lambda o, a, p, d: enters_goal(o, a, p), SAME, NO_NOISE,
         r"rewards the disappearance of the goal, not", flawed=False),
]  # fmt: skip
