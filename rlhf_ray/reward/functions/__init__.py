"""Reward functions: one interface for any reward, learned or written.

Everything that measures, changes or explains a reward takes a `RewardFunction`:

* `EnsembleReward`: a `rlhf_ray.reward.RewardEnsemble`, learned from comparisons or by supervision;
* `ImitationReward`: any ``RewardNet`` of `imitation`;
* `TableReward`: a table over states, actions and next states;
* `CallableReward`: any function of ``(observations, actions, next_observations, terminated)``.

`load_reward` loads any of them by path or name.
"""

from rlhf_ray.reward.functions.function import (
    INPUTS,
    EnsembleReward,
    Input,
    NotDifferentiableError,
    RewardFunction,
    TorchReward,
)
from rlhf_ray.reward.functions.imitation import ImitationReward
from rlhf_ray.reward.functions.loading import load_reward
from rlhf_ray.reward.functions.plain import CallableReward, TableReward

__all__ = [
    "INPUTS",
    "CallableReward",
    "EnsembleReward",
    "ImitationReward",
    "Input",
    "NotDifferentiableError",
    "RewardFunction",
    "TableReward",
    "TorchReward",
    "load_reward",
]
