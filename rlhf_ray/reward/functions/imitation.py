"""A reward network of imitation as a reward function. `imitation` itself is not imported: its networks say what they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.reward.functions.function import INPUTS, Input, RewardFunction, TorchReward, reinitialise


class ImitationReward(TorchReward):
    """Any ``imitation.rewards.reward_nets.RewardNet``: basic, CNN, shaped, wrapped, or an ensemble.

    Predictions come from ``predict_processed``, so that normalising wrappers count; their statistics stay as they are. Gradients
    are of the same reward: inputs go through the network's own ``preprocess``, and outputs through ``NormalizedRewardNet`` and
    ``AddSTDRewardWrapper``. What a wrapper of a user's own does in ``predict_processed`` alone has no gradients.

    Args:
        net: the reward network.
        name: short name for reports.
    """

    def __init__(self, net: nn.Module, name: str = "imitation reward"):
        super().__init__(net)
        for part in self.module.modules():
            if hasattr(part, "predict_processed"):
                part.register_forward_pre_hook(_copied)
        net_: Any = net
        self.observation_space, self.action_space = net_.observation_space, net_.action_space
        self.name = name
        self.inputs = _reads(net)

    def members_at_once(
        self, observations: Array, actions: Array, next_observations: Array, terminated: Array
    ) -> FloatArray:
        """Compute the reward of each member, ``[members, n]`` float64, by the network's own predictions."""
        net: Any = self.module
        steps = (observations, actions, next_observations, np.asarray(terminated, bool))
        if hasattr(net, "predict_processed_all"):
            return np.asarray(net.predict_processed_all(*steps, update_stats=False), np.float64).T
        return np.asarray(net.predict_processed(*steps, update_stats=False), np.float64)[None]

    def member_tensor(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute the reward with gradients, ``[members, n]``."""
        return self._members(self.module, (observations, actions, next_observations, terminated))

    def _members(self, net: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        """What ``predict_processed`` of each member of ``net`` returns, ``[members, n]``; one if it is no ensemble."""
        if hasattr(net, "predict_processed_all"):
            return torch.stack([self._members(member, inputs).mean(0) for member in net.members])
        if hasattr(net, "normalize_output_layer"):
            scaled: Tensor = net.normalize_output_layer(self._members(net.base, inputs).mean(0))
            return scaled[None]
        if hasattr(net, "default_alpha"):
            members = self._members(net.base, inputs)
            deviation = members.std(0) if len(members) > 1 else torch.zeros_like(members[0])
            return (members.mean(0) + float(net.default_alpha) * deviation)[None]
        observations, actions, next_observations, terminated = inputs
        if one_hot := bool(choices_of(self.action_space)):  # preprocess would cut their gradients off
            raw, actions = actions, self._choices(actions)
        seen = list(net.preprocess(observations, actions, next_observations, terminated))
        if one_hot:
            seen[1] = raw
        rewards: Tensor = net(*seen)
        return rewards[None]

    def _choices(self, one_hot: Tensor) -> Tensor:
        """The actions of `action_inputs`, numbered from 0, ``[n, *action_shape]``."""
        parts = torch.split(one_hot, list(choices_of(self.action_space)), 1)
        return torch.stack([part.argmax(1) for part in parts], 1).reshape(-1, *(self.action_space.shape or ()))

    def fresh(self, seed: int) -> RewardFunction | None:
        """Return the same network with new weights; None if a layer can't draw its weights anew."""
        untrained = ImitationReward(self.module, f"{self.name}, untrained")
        try:
            reinitialise(untrained.module, seed)
        except NotImplementedError:
            return None
        return untrained


def _copied(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hook before each net of an ensemble or wrapper: a net that works in place leaves the next one's inputs alone."""
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in inputs)


def _reads(net: Any) -> frozenset[Input]:
    """The inputs that a network may depend on: those that it says it uses, of an ensemble all of its members', else all four."""
    if hasattr(net, "predict_processed_all"):
        return frozenset().union(*map(_reads, net.members))
    if hasattr(net, "normalize_output_layer") or hasattr(net, "default_alpha"):
        return _reads(net.base)
    flags = {name: getattr(net, f"use_{name}", None) for name in INPUTS}
    return frozenset(name for name, used in flags.items() if used or None in flags.values())
