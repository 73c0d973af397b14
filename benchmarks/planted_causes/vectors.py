"""Rewards of vectors and images that come from no environment: six features of independent draws, small frames with one object."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.calibrations.causes import steps_of
from benchmarks.planted_causes import Case, only
from benchmarks.planted_causes.shapes import drawn
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward

EFFORT = 0.3
LENGTH = 20
"""Steps of an episode of `steps_of`."""
VECTOR, FRAME = gym.spaces.Box(-9, 9, (6,)), gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
CHOICE = gym.spaces.Discrete(3)
FEATURES = [f"feature {at}" for at in range(6)]
FUNCTION = Callable[[Array, Array, Array, Array], Array]


@cache
def vectors() -> Transitions:
    """Steps whose true reward is feature 0 before the step."""
    return steps_of(0)[0]


@cache
def pictures() -> Transitions:
    """Steps whose true reward a blob shows, and a corner pixel."""
    return steps_of(0)[1]


@cache
def timed() -> Transitions:
    """`vectors` whose feature 5 is the time since the start, 0 to 1."""
    data = vectors()
    seen, after = data.observations.copy(), data.next_observations.copy()
    seen[:, 5], after[:, 5] = data.steps / LENGTH, (data.steps + 1) / LENGTH
    return data.with_(observations=seen, next_observations=after)


@cache
def with_last_action() -> Transitions:
    """`vectors` whose features 3 to 5 say which action came before; none at the start."""
    data = vectors()
    after = data.next_observations.copy()
    after[:, 3:] = np.eye(3)[data.actions]
    seen = data.observations.copy()
    seen[:, 3:] = np.where(data.steps[:, None] == 0, 0, np.roll(after[:, 3:], 1, 0))
    return data.with_(observations=seen, next_observations=after)


def late(by: int) -> Transitions:
    """`vectors` whose true reward is feature 0 ``by`` steps later, so that a reward of feature 0 comes that much late."""
    data = vectors()
    truth = np.where(data.steps >= LENGTH - by, 0.0, np.roll(data.observations[:, 0], -by))
    return data.with_(rewards=truth.astype(np.float64))


@cache
def painted() -> Transitions:
    """`pictures` whose whole background is green where there is a reward."""
    data = pictures()
    hit, images = data.rewards > 0, data.next_observations.copy()
    images[:, :8] = np.where(hit[:, None, None, None], (0, 90, 0), (0, 0, 90))
    images[:, 8:, :12] = images[:, :8, :12]
    return data.with_(next_observations=images)


@cache
def objects(agree: float = 0.8, count: int = 800) -> Transitions:
    """Frames with a square or a cross, red or blue, somewhere; the true reward is 1 for a square, which is red in 80 % of steps."""
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 40, (count, 16, 16, 3)).astype(np.uint8)
    square = rng.random(count) < 0.5
    red = np.where(rng.random(count) < agree, square, ~square)
    corner = rng.integers(0, 12, (count, 2))
    for i in range(count):
        drawn(square[i], red[i], *corner[i], frames[i])
    number = np.arange(count) % LENGTH
    seen = np.roll(frames, 1, 0)
    seen[number == 0] = rng.integers(0, 40, (count // LENGTH, 16, 16, 3))
    told = {"state.object_row": corner[:, 0] * 1.0, "state.object_column": corner[:, 1] * 1.0}
    ends = number == LENGTH - 1
    return Transitions(
        seen, rng.integers(0, 3, count), frames, ends, square * 1.0, np.arange(count) // LENGTH, number, told
    )


def redness(p: Array) -> FloatArray:
    """How much redder than blue each pixel is."""
    return np.asarray(p[..., 0].astype(float) - p[..., 2], np.float64)


def red(o: Array, a: Array, p: Array, d: Array) -> Array:
    """1 where the object is red."""
    return (redness(p).max((1, 2)) > 150) * 1.0


def column_of(o: Array, a: Array, p: Array, d: Array) -> Array:
    """The column of the object, 0 to 1."""
    there = np.abs(redness(p)) > 150
    return np.asarray((there * np.arange(16)).sum((1, 2)) / np.maximum(there.sum((1, 2)), 1) / 15)


def green(o: Array, a: Array, p: Array, d: Array) -> Array:
    """1 on a green background."""
    return (np.median(p[..., 1].reshape(len(p), -1), 1) > 60) * 1.0


ROTATION = np.linalg.qr(np.random.default_rng(3).normal(size=(6, 6)))[0]
"""Its columns are directions in the six features; each has all of them."""


@cache
def rotated() -> Transitions:
    """`vectors` whose true reward is one direction in all features."""
    data = vectors()
    return data.with_(rewards=(data.observations @ ROTATION[:, 0]).astype(np.float64))


def of(data: Callable[[], Transitions], function: FUNCTION, space: gym.Space[Any] = VECTOR) -> Callable[[], Subject]:
    """Return what makes the subject."""
    return lambda: Subject(CallableReward(function, space, CHOICE), data(), effort=EFFORT)


def vector(name: str, truth: str, function: FUNCTION, first: tuple[str, ...], causes: list[int], *false: str,
           data: Callable[[], Transitions] = vectors) -> Case:  # fmt: skip
    """A case of vectors that depends on these features alone; without ``causes``, on none."""
    wrong = only([f"feature {at}" for at in causes], FEATURES)
    return Case(name, truth, of(data, function), first, (*wrong, *false))


NO_ACTION = r"(looks at|depends on) the action\b|the action (matters|makes)|pays for actions"
NO_NOISE = r"looks like noise"
CASES = [
    Case("corner pixel", "looks at one pixel in one channel of the next state",
         of(pictures, lambda o, a, p, d: (p[:, 0, 15, 2] > 100) * 1.0, FRAME), (r"rows? 0\b.*columns? 1[45]",), (NO_ACTION,)),
    Case("background", "looks at the background colour", of(painted, green, FRAME), ("background",), (NO_ACTION,)),
    Case("constant", "rewards nothing", of(vectors, lambda o, a, p, d: np.zeros(len(o))), ("same on all|constant",),
         ("looks at", "follows the true", NO_NOISE)),
    vector("xor", "the signs of features 1 and 2, multiplied", lambda o, a, p, d: np.sign(o[:, 1] * o[:, 2]),
           ("feature 1", "feature 2", "together|and|with"), [1, 2], NO_ACTION, NO_NOISE),
    vector("action", "the action alone", lambda o, a, p, d: a * 1.0, (r"\baction",), [], NO_NOISE, r"ignores [^:]*the action"),
    vector("termination", "the truth, and a bonus for the end", lambda o, a, p, d: o[:, 0] + 4 * d,
           (r"terminat|\bend",), [0], NO_ACTION, r"ignores [^:]*terminat", "same order|equivalent"),
    vector("rare state", "the truth, but -6 where feature 3 > 1.6 and the action is 2",
           lambda o, a, p, d: np.where((o[:, 3] > 1.6) & (a == 2), -6, o[:, 0]), ("feature 3",), [0, 3]),
    vector("vanishing cue", "feature 2 falls below 0 in this step",
           lambda o, a, p, d: ((o[:, 2] > 0) & (p[:, 2] <= 0)) * 1.0, ("feature 2",), [2], NO_ACTION, NO_NOISE),
    vector("one step late", "the true reward, a step late", lambda o, a, p, d: o[:, 0], (r"\b1 step", "late|after"), [0],
           r"\b[2-9] steps? (late|after)", r"step (early|before)", data=partial(late, 1)),
    vector("saturation", "the truth, cut off above 0", lambda o, a, p, d: np.minimum(o[:, 0], 0),
           ("saturat|cut off|no longer rises|flat|highest",), [0], NO_ACTION),
    Case("colour", "the object's colour, not its shape", of(objects, red, FRAME), ("colour|red|channel",),
         (NO_ACTION, NO_NOISE, r"looks at [^:]*\bchannel 1\b")),
    Case("column", "the object's column, whatever it is", of(objects, column_of, FRAME), ("column|where|position|horizontal",),
         (NO_ACTION, NO_NOISE)),
    vector("time", "the time since the start", lambda o, a, p, d: o[:, 5] * 1.0, ("feature 5|time|step of the episode",), [5],
           NO_ACTION, NO_NOISE, data=timed),
    vector("previous action", "whether the action before was 2", lambda o, a, p, d: o[:, 5] * 1.0, ("feature 5",), [5],
           NO_ACTION, NO_NOISE, data=with_last_action),
    vector("threshold", "whether feature 2 is above 1", lambda o, a, p, d: (o[:, 2] > 1) * 1.0, ("feature 2",), [2],
           NO_ACTION, NO_NOISE),
    vector("three steps late", "the true reward, three steps late", lambda o, a, p, d: o[:, 0], (r"\b3 steps", "late|after"), [0],
           r"\b[124-9] steps? (late|after)", r"steps? (early|before)", data=partial(late, 3)),
    vector("rotated", "another direction in all features than the true one", lambda o, a, p, d: o @ ROTATION[:, 1],
           (r"features? [0-5]",), list(range(6)), NO_ACTION, NO_NOISE, "true reward 0.0 %|does not change the true", data=rotated),
    vector("at the end only", "feature 0, at terminal steps only", lambda o, a, p, d: 4 * d * o[:, 0], (r"terminat|\bend",), [0],
           NO_ACTION, r"ignores [^:]*terminat", "saturat"),
    vector("after the step", "feature 3 after the step", lambda o, a, p, d: p[:, 3] * 1.0, ("feature 3",), [3],
           NO_ACTION, NO_NOISE, r"looks at feature 3 in the state\b"),
    vector("periodic", "the sine of 5 times feature 2", lambda o, a, p, d: np.sin(5 * o[:, 2]), ("feature 2",), [2],
           NO_ACTION, NO_NOISE),
]  # fmt: skip
