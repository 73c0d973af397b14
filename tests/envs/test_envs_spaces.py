"""Which spaces are supported, and how small images may be: the limits that docs/environments.md names are those of the code."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.envs import check_spaces
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import RewardModelSettings

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"

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


OBSERVATIONS = [
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
]
ACTIONS = [
    (spaces.Tuple([DISCRETE]), "one action per combination"),
    (spaces.MultiDiscrete([2, 3], start=[1, 0]), "Viewed"),
    (spaces.MultiBinary(3), "Viewed"),
    (spaces.Discrete(3, start=1), "Number the actions from 0 and add 1"),
    (spaces.Box(-1, 1, (2, 2)), "TransformAction"),
    (spaces.Box(0, 3, (2,), np.int64), "TransformAction"),
]


@pytest.mark.parametrize(
    ("seen", "done", "wrong", "remedy"),
    [
        *((space, DISCRETE, space, remedy) for space, remedy in OBSERVATIONS),
        *((VECTOR, space, space, remedy) for space, remedy in ACTIONS),
    ],
)
def test_unsupported_spaces_are_named_with_the_environment_and_the_remedy(
    seen: spaces.Space, done: spaces.Space, wrong: spaces.Space, remedy: str
) -> None:
    with pytest.raises(ValueError, match=remedy) as raised:
        check_spaces(seen, done, "Some-v0")
    for said in ("'Some-v0'", str(wrong), "Supported are"):
        assert said in str(raised.value)


def test_is_image() -> None:
    assert is_image(IMAGE)
    assert not is_image(VECTOR)
    assert not is_image(spaces.Box(0, 1, (64, 64, 3), np.float32))
    assert not is_image(DISCRETE)


def fits(side: int, policy: str, reward: str) -> bool:
    space: Any = spaces.Box(0, 255, (side, side, 3), np.uint8)
    try:
        check_spaces(space, DISCRETE, "Small-v0")
        ActorCriticNetwork(space, DISCRETE, PolicyShape(policy))
        RewardEnsemble(space, DISCRETE, RewardModelSettings(network=reward, hidden=(4,), ensemble_size=1))
    except (SettingError, ValueError):
        return False
    return True


@pytest.mark.parametrize(
    ("least", "policy", "reward"), [(36, "auto", "auto"), (20, "small", "auto"), (16, "small", "mlp")]
)
def test_the_page_names_the_smallest_images(least: int, policy: str, reward: str) -> None:
    assert fits(least, policy, reward)
    assert not fits(least - 1, policy, reward)
    assert f"{least}x{least}" in PAGE.read_text()
