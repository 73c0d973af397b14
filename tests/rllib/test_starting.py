"""Which weights fit a policy, and what is said of others."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib.starting import check_policy

PPO = {"actor.0.weight": np.zeros((8, 3)), "critic.0.weight": np.zeros((8, 3))}
SAC = {"network.actor.weight": np.zeros((8, 3)), "network.log_alpha": np.zeros(())}
STATISTICS = {"statistics.mean": np.zeros(3)}


@pytest.mark.parametrize("weights", [PPO, SAC, PPO | STATISTICS, {"own.weight": np.zeros(2)}])
def test_weights_of_the_same_names_and_shapes_fit(weights: dict[str, Any]) -> None:
    check_policy(weights, weights, "run", "ppo")
    check_policy(weights, weights | {"formal.seen.low": np.zeros(3)}, "run", "ppo")  # as before there were these


@pytest.mark.parametrize(
    ("weights", "expected", "agent", "said"),
    [
        (PPO, SAC, "sac", "its network.actor.weight does not exist, but .* agent=sac"),
        (SAC, PPO, "ppo", "its actor.0.weight does not exist, but .* agent=ppo"),
        (PPO | STATISTICS, PPO, "ppo", "run normalises its .* but ppo.normalize_observations is False: set it to True"),
        (PPO, PPO | STATISTICS, "ppo", "run does not normalise its .* is True: set it to False"),
        (PPO, PPO | {"actor.0.weight": np.zeros((8, 4))}, "ppo", r"its actor.0.weight has .*\(8, 3\), .* \(8, 4\)"),
        (PPO, PPO | {"value": np.zeros(2)}, "ppo", r"its value does not exist, but .* it has the shape \(2,\)"),
        (PPO | {"value": np.zeros(2)}, PPO, "ppo", r"its value has the shape \(2,\), but .* it does not exist"),
        ({"own.weight": np.zeros(2)}, PPO, "ppo", "its actor.0.weight does not exist"),
    ],
)
def test_what_does_not_fit_is_named(weights: dict[str, Any], expected: dict[str, Any], agent: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        check_policy(weights, expected, "run", agent)
