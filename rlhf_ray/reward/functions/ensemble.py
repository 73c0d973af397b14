"""A reward ensemble of ours as a reward function."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.functions.function import Input, RewardFunction, TorchReward
from rlhf_ray.reward.networks import is_built_in


class EnsembleReward(TorchReward):
    """A `RewardEnsemble`: its members' normalised rewards, combined as it combines them.

    Args:
        ensemble: the reward model; later changes to it have no effect.
        name: short name for reports.

    Raises:
        SettingError: its network reads the steps before, and a reward function judges single steps.
    """

    module: RewardEnsemble

    def __init__(self, ensemble: RewardEnsemble, name: str = "learned reward"):
        ensemble.check_steps("tools and measures judge")
        super().__init__(ensemble)
        self.name = name
        self.observation_space, self.action_space = ensemble.observation_space, ensemble.action_space
        settings = ensemble.settings
        used: dict[Input, bool] = {
            "state": settings.use_state,
            "action": settings.use_action,
            "next_state": settings.use_next_state,
            "done": settings.use_done,
        }
        also: frozenset[Input] = getattr(ensemble.networks, "also_reads", frozenset())
        own = not is_built_in(settings)  # a network of the user's own may use what it likes
        self.inputs = frozenset(name for name, is_used in used.items() if is_used or own or name in also)
        self._own_network = own

    def stateful(self) -> list[nn.Module]:
        """Return the networks, if they are a user's own: ours keep no state of what they see in evaluation mode."""
        return [self.module.networks] if self._own_network else []

    def combine(self, members: Tensor) -> Tensor:
        """See `RewardEnsemble.combine`."""
        return self.module.combine(members)

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute each member's normalised reward, ``[members, n]`` float64, from the arrays as they are: images stay bytes."""
        steps = (observations, actions, next_observations, terminated)
        rewards: FloatArray = (
            self.module.member_rewards(*(torch.as_tensor(np.array(step)) for step in steps)).double().numpy()
        )
        return rewards

    def member_tensor(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute each member's normalised reward, ``[members, n]``."""
        choices = choices_of(self.action_space)
        if self._own_network and choices and actions.is_floating_point():
            start = torch.as_tensor(np.asarray(self.action_space.start))  # type: ignore[attr-defined]
            parts: tuple[Tensor, ...] = torch.split(actions, list(choices), 1)
            chosen = torch.stack([part.argmax(1) for part in parts], 1)
            actions = chosen.reshape(len(chosen), *(self.action_space.shape or ())) + start
        frames = torch.stack([observations, next_observations], 1)
        inputs = self.module.networks.encode(frames, actions.unsqueeze(1), terminated)
        raw: Tensor = self.module.networks(inputs).squeeze(-1)
        return (raw - self.module.reward_mean[:, None]) / self.module.reward_std[:, None]

    def fresh(self, seed: int) -> RewardFunction:
        """Return an ensemble with the same settings, spaces and normalisers, and new weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            ensemble = RewardEnsemble(self.module.observation_space, self.action_space, self.module.settings)
        ensemble.reward_mean.copy_(self.module.reward_mean)
        ensemble.reward_std.copy_(self.module.reward_std)
        ensemble.deviation_weight.copy_(self.module.deviation_weight)
        return EnsembleReward(ensemble, f"{self.name}, untrained")
