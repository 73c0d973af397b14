import numpy as np
import pytest
from gymnasium import spaces

from rlhf_ray.data.images import is_image
from rlhf_ray.envs import check_spaces

VECTOR = spaces.Box(-1, 1, (3,))
IMAGE = spaces.Box(0, 255, (64, 64, 3), np.uint8)
DISCRETE = spaces.Discrete(5)


@pytest.mark.parametrize(
    ("observation_space", "action_space"),
    [
        (VECTOR, DISCRETE),
        (IMAGE, DISCRETE),
        (spaces.Box(0, 255, (16, 16, 12), np.uint8), DISCRETE),
        (spaces.Box(0, 255, (128,), np.uint8), DISCRETE),
        (spaces.Box(-np.inf, np.inf, (4,), np.float64), spaces.Box(-np.inf, np.inf, (2,))),
        (VECTOR, spaces.Box(-2, 2, (1,))),
        (VECTOR, spaces.MultiDiscrete([2, 3])),
    ],
)
def test_supported_spaces_pass(observation_space: spaces.Space, action_space: spaces.Space) -> None:
    check_spaces(observation_space, action_space, "Some-v0")


@pytest.mark.parametrize(
    ("space", "remedy"),
    [
        (spaces.Dict({"a": VECTOR}), "FlattenObservation"),
        (spaces.Discrete(16), "FlattenObservation"),
        (spaces.Dict({"image": IMAGE, "name": spaces.Text(4)}), "TransformObservation"),
        (spaces.Dict({"image": IMAGE, "map": spaces.Box(0, 255, (16, 20, 1), np.uint8)}), "images of one size"),
        (spaces.Box(-1, 1, (2, 2)), "FlattenObservation"),
        (spaces.Box(-1, 1, ()), "FlattenObservation"),
        (spaces.Box(0, 255, (64, 64), np.uint8), "GrayscaleObservation"),
        (spaces.Box(0, 255, (3, 64, 64), np.uint8), "channels last"),
        (spaces.Box(0, 255, (3, 64, 64), np.float32), "channels last"),
        (spaces.Box(0, 1, (64, 64, 3), np.float32), "uint8"),
        (spaces.Box(0, 255, (8, 8, 3), np.uint8), "ResizeObservation"),
        (spaces.Box(0, 1, (4,), np.bool_), "TransformObservation"),
    ],
)
def test_unsupported_observations_name_env_space_and_remedy(space: spaces.Space, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy) as raised:
        check_spaces(space, DISCRETE, "Some-v0")
    assert "'Some-v0'" in str(raised.value)
    assert str(space) in str(raised.value)
    assert "Supported are" in str(raised.value)


@pytest.mark.parametrize(
    ("space", "remedy"),
    [
        (spaces.Tuple([DISCRETE]), "one action per combination"),
        (spaces.MultiDiscrete([2, 3], start=[1, 0]), "Viewed"),
        (spaces.MultiBinary(3), "Viewed"),
        (spaces.Discrete(3, start=1), "Number the actions from 0 and add 1"),
        (spaces.Box(-1, 1, (2, 2)), "TransformAction"),
        (spaces.Box(0, 3, (2,), np.int64), "TransformAction"),
    ],
)
def test_unsupported_actions_name_env_space_and_remedy(space: spaces.Space, remedy: str) -> None:
    with pytest.raises(ValueError, match=remedy) as raised:
        check_spaces(VECTOR, space, "Some-v0")
    assert "'Some-v0'" in str(raised.value)
    assert str(space) in str(raised.value)


def test_is_image() -> None:
    assert is_image(IMAGE)
    assert not is_image(VECTOR)
    assert not is_image(spaces.Box(0, 1, (64, 64, 3), np.float32))
    assert not is_image(DISCRETE)
