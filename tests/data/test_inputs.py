"""Given data: the same numbers in another type are the same data; another scale is refused or said."""

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data import inputs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.inputs import check_observations, check_recorded, in_type

IMAGES = gym.spaces.Box(0, 255, (16, 16, 3), np.uint8)
FLOATS = gym.spaces.Box(0, 255, (16, 16, 3), np.float32)
UNITS = gym.spaces.Box(np.float32([-1, -1, -8]), np.float32([1, 1, 8]))
PICTURES = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
STATES = np.random.default_rng(0).uniform(-1, 1, (40, 3)).astype(np.float32) * [1, 1, 8]


@pytest.fixture(autouse=True)
def _nothing_said(monkeypatch):
    monkeypatch.setattr(inputs, "_said", set())


@pytest.mark.parametrize("kind", [np.uint8, np.int64, np.uint16, np.float16, np.float32, np.float64])
def test_the_same_numbers_are_the_same_data(kind, caplog):
    given = PICTURES.astype(kind)
    check_observations(given, IMAGES, "The data")
    assert in_type(given, IMAGES).dtype == np.uint8
    assert (in_type(given, IMAGES) == PICTURES).all()
    if kind is not np.uint8:
        check_observations(given.astype(np.float32), FLOATS, "The data")
    assert not caplog.records


@pytest.mark.parametrize(
    ("values", "space", "says"),
    [
        (PICTURES / np.float32(255), IMAGES, "which is not a uint8"),
        (PICTURES / 127.5 - 1, IMAGES, "which is not a uint8"),
        ((PICTURES > 127).astype(np.float32), IMAGES, "scaled to 0 to 1"),
        (PICTURES.astype(np.int64) + 200, IMAGES, "which is not a uint8"),
        (PICTURES - np.float32(128), FLOATS, "on another scale"),
        (PICTURES, gym.spaces.Box(0, 1, (16, 16, 3), np.float32), "on another scale"),
        (PICTURES, gym.spaces.Box(-np.inf, np.inf, (16, 16, 3), np.float32), "type uint8"),
        (np.moveaxis(PICTURES, -1, 1), IMAGES, "channels first"),
        (STATES * [1, 1, 57.3], UNITS, "number 2 is -.* and its space has -8 to 8"),
        (np.full((4, 3), "a"), UNITS, "give numbers"),
        (np.array([0, 7]), gym.spaces.Discrete(7), "observations from 0 to 7"),
    ],
)
def test_another_scale_is_refused_in_one_line(values, space, says):
    with pytest.raises(SettingError, match=says) as refused:
        check_observations(values, space, "The data")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("values", "space", "says"),
    [
        (np.where(np.arange(40)[:, None] < 3, 9, STATES), UNITS, "outside of their bounds in 0.075"),
        (PICTURES > 127, IMAGES, "scaled to 0 to 1"),
        ((PICTURES / 255).astype(np.uint8), IMAGES, "scaled to 0 to 1"),
        (PICTURES / np.float32(255), FLOATS, "scaled to 0 to 1"),
    ],
)
def test_what_an_environment_may_have_returned_is_said_once(values, space, says, caplog):
    for _ in range(2):
        check_observations(values, space, "The data")
    assert [says in record.getMessage() for record in caplog.records] == [True]


def test_an_environment_may_leave_its_own_bounds_and_rounding_is_no_other_scale(caplog):
    check_observations(STATES * (1 + 1e-6), UNITS, "The data")
    assert not caplog.records
    check_observations(STATES * 10, UNITS, "The steps", own=True)
    assert "outside of their bounds" in caplog.text


def test_actions_are_those_of_their_space(caplog):
    seen, both = np.zeros((4, 3), np.float32), gym.spaces.MultiBinary(2)
    with pytest.raises(SettingError, match="actions from 0 to 2"):
        check_recorded(seen, np.full((4, 2), [0, 2]), (UNITS, both), "The data")
    check_recorded(seen, np.full((4, 1), 3.0), (UNITS, gym.spaces.Box(-2, 2, (1,))), "The data")
    assert "actions outside of their bounds" in caplog.text
