import json

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.spaces import space_from_json, space_to_json


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
def test_a_space_survives_json_bit_for_bit(space: gym.Space[object]) -> None:
    back = space_from_json(json.loads(json.dumps(space_to_json(space))))
    assert back == space
    assert back.dtype == space.dtype
    assert back.shape == space.shape


def test_bounds_that_are_the_same_everywhere_are_written_once() -> None:
    written = json.dumps(space_to_json(gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)))
    assert len(written) < 200


def test_other_spaces_are_refused() -> None:
    with pytest.raises(ValueError, match="only Box, Discrete"):
        space_to_json(gym.spaces.Text(3))
