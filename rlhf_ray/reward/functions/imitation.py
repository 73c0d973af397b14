"""A reward network of imitation as a reward function. `imitation` itself is not imported."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.images import is_image
from rlhf_ray.reward.functions.function import RewardFunction, TorchReward, reinitialise


class ImitationReward(TorchReward):
    """Any ``imitation.rewards.reward_nets.RewardNet``: basic, CNN, shaped, wrapped, or an ensemble.

    Predictions come from ``predict_processed`` without updating statistics, so that normalising wrappers count; gradients come from
    ``forward``, before such wrappers.

    Args:
        net: the reward network.
        name: short name for reports.
    """

    def __init__(self, net: nn.Module, name: str = "imitation reward"):
        super().__init__(net)
        net_: Any = net
        self.observation_space, self.action_space = net_.observation_space, net_.action_space
        self._scale = (
            1.0 / 255.0 if is_image(self.observation_space) and getattr(net, "normalize_images", True) else 1.0
        )
        self.name = name
        base = net_
        while hasattr(base, "base"):
            base = base.base
        flags = {"state": "use_state", "action": "use_action", "next_state": "use_next_state", "done": "use_done"}
        if all(hasattr(base, flag) for flag in flags.values()) and base is net_:
            self.inputs = frozenset(of for of, flag in flags.items() if getattr(base, flag))  # type: ignore[misc]

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward of each member, ``[members, n]`` float64."""
        net: Any = self.module
        steps = (observations, actions, next_observations, np.asarray(terminated, bool))
        with torch.no_grad():
            if hasattr(net, "predict_processed_all"):
                return np.asarray(net.predict_processed_all(*steps, update_stats=False), np.float64).T
            return np.asarray(net.predict_processed(*steps, update_stats=False), np.float64)[None]

    def member_tensor(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute the reward with gradients, ``[1, n]``."""
        states = [self._processed(of) for of in (observations, next_observations)]
        rewards: Tensor = self.module(states[0], actions, states[1], terminated)
        return rewards[None]

    def _processed(self, observations: Tensor) -> Tensor:
        if isinstance(self.observation_space, gym.spaces.Discrete):
            return nn.functional.one_hot(observations.long(), int(self.observation_space.n)).float()
        return observations * self._scale

    def fresh(self, seed: int) -> RewardFunction | None:
        """Return the same network with new weights; None if a layer can't draw its weights anew."""
        untrained = ImitationReward(self.module, f"{self.name}, untrained")
        try:
            reinitialise(untrained.module, seed)
        except NotImplementedError:
            return None
        return untrained
