import json

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from rlhf_ray.data.spaces import formal_numbers, in_words, space_from_json, space_to_json, unscaled, without_formal


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Discrete(5),
        gym.spaces.Discrete(3, start=-1),
        gym.spaces.Box(-np.inf, np.inf, (4,), np.float32),
        gym.spaces.Box(np.array([-1.0, -np.inf]), np.array([np.inf, 0.1]), dtype=np.float64),
        gym.spaces.Box(-0.1, 0.7, (2, 3), np.float32),
        gym.spaces.Box(0, 255, (64, 64, 3), np.uint8),
        gym.spaces.Box(-7, 9, (2,), np.int64),
        gym.spaces.MultiDiscrete([2, 5], start=[0, -1]),
        gym.spaces.MultiBinary(4),
    ],
    ids=str,
)
def test_a_space_survives_json_bit_for_bit(space):
    written = json.dumps(space_to_json(space))
    back = space_from_json(json.loads(written))
    assert (back, back.dtype, back.shape) == (space, space.dtype, space.shape)
    assert len(written) < 200  # bounds that are the same everywhere are written once


def test_other_spaces_are_refused():
    with pytest.raises(ValueError, match="only Box, Discrete"):
        space_to_json(gym.spaces.Text(3))


MOST = np.finfo(np.float32).max


@pytest.mark.parametrize(
    ("low", "high", "dtype", "formal"),
    [
        (-1e6, 1e6, np.float32, True),
        (-MOST, MOST, np.float32, True),
        (np.finfo(np.float64).min, np.finfo(np.float64).max, np.float64, True),
        (0.0, 1e6, np.float32, True),
        (-MOST, 0.0, np.float32, True),
        (-400, 400, np.float32, True),
        (np.iinfo(np.int64).min, np.iinfo(np.int64).max, np.int64, True),
        (0, 65535, np.uint16, True),
        (-np.inf, np.inf, np.float32, False),
        (0.0, np.inf, np.float32, False),
        (0, 255, np.uint8, False),
        (-28.3, 28.3, np.float32, False),
    ],
)
def test_which_bounds_are_formal(low, high, dtype, formal):
    space = spaces.Box(low, high, (2,), dtype)
    assert formal_numbers(space).tolist() == [formal, formal]
    assert unscaled(space.low, space.high).all() == (formal or np.isinf([low, high]).any())
    assert (in_words(space) is not None) == formal


@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCarContinuous-v0"])
def test_no_bounds_of_gymnasiums_are_formal(name):
    env = gym.make(name)
    assert isinstance(env.observation_space, spaces.Box)
    assert not formal_numbers(env.observation_space).any()
    assert without_formal(env.action_space) is env.action_space


def test_the_line_names_the_numbers():
    high = np.array([1, 1e6, 1e6, 1, MOST], np.float32)
    assert "of numbers 1-2, 4 of the observations" in str(in_words(spaces.Box(-high, high)))
