"""Rewards of vectors and images that come from no environment: six features of independent draws, small frames with one object."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.planted_causes import Case
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
FUNCTION = Callable[[Array, Array, Array, Array], Array]


def steps_of(seed: int, count: int = 1600, length: int = 20) -> tuple[Transitions, Transitions]:
    """Return steps of vectors ``[6]`` and of images ``[16, 16, 3]`` whose true reward a blob in the image and feature 0 show."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(count, 6)).astype(np.float32)
    after = np.where(
        np.arange(count)[:, None] % length == length - 1, rng.normal(size=(count, 6)), np.roll(states, -1, 0)
    )
    number = np.arange(count) % length
    rest = (number == length - 1, states[:, 0].astype(np.float64), np.arange(count) // length, number)
    vectors = Transitions(states, rng.integers(0, 3, count), after.astype(np.float32), *rest)
    hit = rng.random(count) < 0.2
    images = rng.integers(0, 40, (count, 16, 16, 3)).astype(np.uint8)
    later = rng.integers(0, 40, (count, 16, 16, 3)).astype(np.uint8)
    for i in np.flatnonzero(hit):
        row, column = rng.integers(3, 11, 2)
        later[i, row : row + 3, column : column + 3] = (250, 200, 0)
    later[hit, 0, 15, 2] = 255
    pictures = Transitions(images, vectors.actions, later, vectors.terminated, hit.astype(float), *rest[2:])
    return vectors, pictures[:600]


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


def first(o: Array, a: Array, p: Array, d: Array) -> Array:
    """Feature 0: the true reward of `vectors`."""
    return np.asarray(o[:, 0], np.float64)


def of(data: Callable[[], Transitions], function: FUNCTION, space: gym.Space[Any] = VECTOR,
       truth: FUNCTION | None = None) -> Callable[[], Subject]:  # fmt: skip
    """Return what makes the subject."""
    true = None if truth is None else CallableReward(truth, space, CHOICE)
    return lambda: Subject(CallableReward(function, space, CHOICE), data(), effort=EFFORT, truth=true)


def vector(name: str, what: str, function: FUNCTION, cause: str, effect: float | None = None,
           data: Callable[[], Transitions] = vectors, truth: FUNCTION | None = first) -> Case:  # fmt: skip
    """A case of vectors; ``truth`` None: it is recorded, and no function tells it."""
    return Case(name, what, of(data, function, VECTOR, truth), cause, effect)


CASES = [
    Case("corner pixel", "looks at one pixel in one channel of the next state",
         of(pictures, lambda o, a, p, d: (p[:, 0, 15, 2] > 100) * 1.0, FRAME), "rows 0-1, columns 14-15|blue", 1.0),
    Case("background", "looks at the background colour", of(painted, green, FRAME), "background|green"),
    vector("constant", "rewards nothing", lambda o, a, p, d: np.zeros(len(o)), "feature 0", 0.0),
    vector("xor", "the signs of features 1 and 2, multiplied", lambda o, a, p, d: np.sign(o[:, 1] * o[:, 2]), "feature [12]", 1.0),
    vector("action", "the action alone", lambda o, a, p, d: a * 1.0, "^the action", 1.0),
    vector("termination", "the truth, and a bonus for the end", lambda o, a, p, d: o[:, 0] + 4 * d, "ends the episode"),
    vector("rare state", "the truth, but -6 where feature 3 > 1.6 and the action is 2",
           lambda o, a, p, d: np.where((o[:, 3] > 1.6) & (a == 2), -6, o[:, 0]), "feature 3"),
    vector("vanishing cue", "feature 2 falls below 0 in this step", lambda o, a, p, d: ((o[:, 2] > 0) & (p[:, 2] <= 0)) * 1.0,
           "feature 2", 1.0),
    vector("one step late", "the true reward, a step late", first, "^the state$", 1.0,
           truth=lambda o, a, p, d: p[:, 0] * 1.0),
    vector("one step late, recorded", "the true reward, a step late", first, "^the state$", 1.0, data=partial(late, 1), truth=None),
    vector("saturation", "the truth, cut off above 0", lambda o, a, p, d: np.minimum(o[:, 0], 0), "feature 0", 1.0),
    Case("colour", "the object's colour, not its shape", of(objects, red, FRAME), "red|blue"),
    Case("column", "the object's column, whatever it is", of(objects, column_of, FRAME), "object column"),
    vector("time", "the time since the start", lambda o, a, p, d: o[:, 5] * 1.0, "feature 5|step of the episode", 1.0, data=timed),
    vector("previous action", "whether the action before was 2", lambda o, a, p, d: o[:, 5] * 1.0, "feature 5",
           data=with_last_action),
    vector("threshold", "whether feature 2 is above 1", lambda o, a, p, d: (o[:, 2] > 1) * 1.0, "feature 2", 1.0),
    vector("three steps late", "the true reward, three steps late", first, "^the state$|feature 0", 1.0, data=partial(late, 3),
           truth=None),
    vector("rotated", "another direction in all features than the true one", lambda o, a, p, d: o @ ROTATION[:, 1], "feature",
           data=rotated, truth=lambda o, a, p, d: o @ ROTATION[:, 0]),
    vector("at the end only", "feature 0, at terminal steps only", lambda o, a, p, d: 4 * d * o[:, 0],
           "ends the episode|feature 0"),
    vector("after the step", "feature 3 after the step", lambda o, a, p, d: p[:, 3] * 1.0, "feature 3", 1.0),
    vector("periodic", "the sine of 5 times feature 2", lambda o, a, p, d: np.sin(5 * o[:, 2]), "feature 2", 1.0),
]  # fmt: skip
