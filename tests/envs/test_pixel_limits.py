"""Which images fit the networks: the limits that docs/environments.md names are those of the code."""

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.settings import RewardModelSettings

PAGE = Path(__file__).parents[2] / "docs" / "environments.md"
ACTIONS = gym.spaces.Discrete(3)


def fits(side: int, policy: str, reward: str) -> bool:
    space: Any = gym.spaces.Box(0, 255, (side, side, 3), np.uint8)
    try:
        check_spaces(space, ACTIONS, "Small-v0")
        ActorCriticNetwork(space, ACTIONS, PolicyShape(policy))
        RewardEnsemble(space, ACTIONS, RewardModelSettings(network=reward, hidden=(4,), ensemble_size=1))
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
