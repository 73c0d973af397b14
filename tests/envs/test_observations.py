"""Observations beside their spaces: what is refused, what is converted, and what is said, once."""

import itertools
import logging
import pickle
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.envs import make_env
from rlhf_ray.envs.checked import CheckedVectorEnv
from rlhf_ray.envs.observations import Say, UnfitError, fitting
from tests.envs.test_shared_arrays import ScribblesTogether
from tests.envs.worlds import Gives

VECTOR = spaces.Box(-1.0, np.array([1.0, np.inf], np.float32), (2,), np.float32)
COUNTS = spaces.Box(0, 10, (2,), np.int32)
IMAGE = spaces.Box(0, 255, (20, 20, 3), np.uint8)
INNER: list[tuple[gym.Space[Any], Any, Any, str]] = [
    # a space, what fits, what doesn't, what is said of that
    (VECTOR, np.array([0.5, 9.0], np.float32), np.zeros(3, np.float32), r"of shape \(3,\)"),
    (VECTOR, np.array([0.5, 9.0], np.float32), np.array([0, np.inf], np.float32), "that is inf at 1"),
    (
        VECTOR,
        np.array([0.5, 9.0], np.float32),
        np.array([0, 1e39]),
        r"of float64, and its value 1e\+39 is not a float32",
    ),
    (VECTOR, np.array([0.5, 9.0], np.float32), ["a", "b"], "not an array of numbers"),
    (COUNTS, np.array([0, 3], np.int32), np.array([0.5, 3.0]), "its value 0.5 is not a int32"),
    (COUNTS, np.array([0, 3], np.int32), np.array([0, 2**40]), "its value 1099511627776 is not a int32"),
    (IMAGE, np.full((20, 20, 3), 7, np.uint8), np.full((20, 20, 3), -1), "its value -1 is not a uint8"),
    (
        spaces.Discrete(3, start=2),
        np.int64(4),
        np.int64(1),
        r"with the value 1, which Discrete\(3, start=2\) does not have",
    ),
    (spaces.Discrete(3), np.int64(2), -1, "with the value -1"),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([2, 0]), "with the value 2"),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([1]), r"of shape \(1,\)"),
    (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), np.array([1, 0, 3], np.int8), "with the value 3"),
]
WAYS: list[tuple[str, Any, Any]] = [
    ("", lambda space: space, lambda value: value),
    ("['a']", lambda space: spaces.Dict({"a": space}), lambda value: {"a": value}),
    ("[1]", lambda space: spaces.Tuple((COUNTS, space)), lambda value: (np.zeros(2, np.int32), value)),
    (
        "['a'][0]",
        lambda space: spaces.Dict({"a": spaces.Tuple((space,)), "b": VECTOR}),
        lambda value: {"a": (value,), "b": np.zeros(2, np.float32)},
    ),
]

NUMBERS = itertools.count()


def said(caplog: pytest.LogCaptureFixture, space: gym.Space[Any], *observations: Any) -> tuple[list[Any], list[str]]:
    """What observations become, and what is logged."""
    caplog.clear()
    check = fitting(space, Say(f"Env{next(NUMBERS)}-v0"))
    with caplog.at_level(logging.WARNING):
        return [check(observation) for observation in observations], [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("part", "around", "inside"), WAYS)
@pytest.mark.parametrize(("space", "right", "wrong", "why"), INNER)
def test_every_part_is_checked(part, around, inside, space, right, wrong, why, caplog):
    whole = around(space)
    (found,), lines = said(caplog, whole, inside(right))
    assert not lines
    assert whole.contains(found)
    with pytest.raises(UnfitError, match=why) as error:
        fitting(whole, Say("Wrong-v0"))(inside(wrong))
    assert not part or f"part {part}" in str(error.value)


@pytest.mark.parametrize(("part", "around", "inside"), WAYS)
def test_another_dtype_is_converted_and_said_once(part, around, inside, caplog):
    given = np.array([0.1, 2.0])
    found, lines = said(caplog, around(VECTOR), *[inside(given)] * 3)
    assert all(around(VECTOR).contains(each) for each in found)
    assert len(lines) == 1
    assert "float64, but their space says float32" in lines[0]
    assert part in lines[0]


@pytest.mark.parametrize(("part", "around", "inside"), WAYS)
@pytest.mark.parametrize(
    ("space", "value", "numbers"),
    [
        (VECTOR, np.array([-5.0, 0.0], np.float32), "is -5 at 0, outside the bounds of its space there, -1 to 1"),
        (VECTOR, np.array([0.0, -1.5], np.float32), "is -1.5 at 1, outside the bounds of its space there, -1 to inf"),
        (COUNTS, np.array([3, 11], np.int32), "is 11 at 1, outside the bounds of its space there, 0 to 10"),
    ],
)
def test_a_value_outside_its_bounds_is_said_once_with_its_numbers(part, around, inside, space, value, numbers, caplog):
    found, lines = said(caplog, around(space), *[inside(value)] * 3)
    assert len(lines) == 1
    assert numbers in lines[0]
    assert part in lines[0]
    assert len(found) == 3


def test_rounding_at_the_bounds_and_bounds_that_are_the_dtype_s_are_not_said(caplog: pytest.LogCaptureFixture) -> None:
    tight = spaces.Box(np.array([-0.4, 0.0], np.float32), np.array([0.4, np.inf], np.float32), dtype=np.float32)
    edge = np.array([np.nextafter(np.float32(0.4), np.float32(1)), -1e-9], np.float32)
    assert said(caplog, tight, edge)[1] == []
    assert said(caplog, IMAGE, np.full((20, 20, 3), 255, np.uint8))[1] == []
    assert "float64, but their space says int64. They are converted" in said(caplog, spaces.Discrete(3), 2.0)[1][0]


@pytest.mark.parametrize(("part", "around", "inside"), WAYS)
def test_a_number_of_float64_that_networks_can_t_read_is_refused(part: str, around: Any, inside: Any) -> None:
    check = fitting(around(gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)), Say("Wide-v0"))
    check(inside(np.array([0.0, 3e38])))
    with pytest.raises(UnfitError, match=r"its value 1e\+39 is not a float32, which networks compute with"):
        check(inside(np.array([0.0, 1e39])))


def test_what_has_other_parts_is_refused() -> None:
    both = fitting(spaces.Dict({"a": VECTOR, "b": COUNTS}), Say("Parts-v0"))
    with pytest.raises(UnfitError, match="that has or lacks 'b'; its space has 'a', 'b'"):
        both({"a": np.zeros(2, np.float32)})
    with pytest.raises(UnfitError, match="that has or lacks 'c'"):
        both({"a": np.zeros(2, np.float32), "b": np.zeros(2, np.int32), "c": 0})
    with pytest.raises(UnfitError, match="no mapping"):
        both(np.zeros(4))
    with pytest.raises(UnfitError, match="no tuple of 2"):
        fitting(spaces.Tuple((VECTOR, COUNTS)), Say("Parts-v0"))((np.zeros(2),))
    assert pickle.loads(pickle.dumps(both))({"a": np.zeros(2), "b": np.zeros(2)})["a"].dtype == np.float32  # noqa: S301


def test_environments_of_a_name_are_checked_in_every_part() -> None:
    space = spaces.Dict({"x": VECTOR, "mode": spaces.Discrete(3)})
    odd: Any = lambda: Gives(space, lambda step: {"x": np.zeros(2, np.float32), "mode": 2 + step})  # noqa: E731
    gym.register("Odd-v0", odd, max_episode_steps=9)
    env = make_env("Odd-v0")
    assert env.reset(seed=0)[0].tolist() == [0.0, 0.0, 1.0] or len(env.reset(seed=0)[0]) == 5
    with pytest.raises(
        FaultyEnvironmentError, match=r"Odd-v0, step 1 of episode \d: .*part \['mode'\], with the value 3"
    ):
        env.step(0)


def test_a_vector_environment_is_checked_too(caplog: pytest.LogCaptureFixture) -> None:
    vectors = ScribblesTogether(2)
    env = CheckedVectorEnv(vectors, f"Together{next(NUMBERS)}-v0")
    env.reset(seed=0)
    vectors.seen[:, 0] = 500.0
    env.step(np.zeros((2, 3), np.float32))
    assert "is 501 at (0, 0), outside the bounds of its space there, -100 to 100" in caplog.text
    vectors.seen = vectors.seen.astype(np.float64)
    assert env.step(np.zeros((2, 3)))[0].dtype == np.float32
    vectors.seen[1, 2] = np.nan
    vectors.step = lambda actions: (vectors.seen, vectors.rewards, *[np.zeros(2, bool)] * 2, {})  # type: ignore[method-assign]
    with pytest.raises(FaultyEnvironmentError, match=r"nan at \(1, 2\), in a batch of 2 copies"):
        env.step(np.zeros((2, 3)))
    vectors.seen[:], vectors.rewards = 0, np.array([0.0, np.nan])
    with pytest.raises(FaultyEnvironmentError, match="rewards"):
        env.step(np.zeros((2, 3)))
