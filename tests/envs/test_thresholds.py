"""The return from which an environment counts as learned."""

import gymnasium
import pytest

from rlhf_ray.envs.registry import register
from rlhf_ray.envs.thresholds import THRESHOLDS, reward_threshold


def test_a_threshold_is_the_one_that_the_environment_is_registered_with() -> None:
    assert reward_threshold("CartPole-v1") == gymnasium.spec("CartPole-v1").reward_threshold == 475.0
    assert reward_threshold("any_module:CartPole-v1") == 475.0
    assert reward_threshold("Pendulum-v1") == -250.0
    assert reward_threshold("rlhf_ray/CartPoleFixed-v0") == 475.0
    for none in ("fixed/CartPole-v1", "rlhf_ray/MovingDot-v0", "procgen/coinrun-easy", "Nothing-v0", "module:"):
        assert reward_threshold(none) is None


@pytest.mark.parametrize("name", THRESHOLDS)
def test_only_environments_without_one_are_listed(name: str) -> None:
    register()
    assert gymnasium.spec(name).reward_threshold is None
