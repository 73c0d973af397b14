"""A user's own network, which gives the reward of single steps: one for each member, called one after the other."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class PerStep(nn.Module):
    """See `rlhf_ray.reward.networks.RewardNetwork`.

    Args:
        networks: one for each member, `rlhf_ray.reward.networks.StepNetwork`.
    """

    def __init__(self, networks: Iterable[nn.Module]):
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """All three as they are."""
        return {"observations": observations, "actions": actions, "terminated": terminated}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """``[members, n, length]``."""
        observations, actions = inputs["observations"], inputs["actions"]
        n, length = actions.shape[:2]
        terminated = torch.zeros(n, length, dtype=torch.bool, device=actions.device)
        terminated[:, -1] = inputs["terminated"]
        steps = (observations[:, :-1], actions, observations[:, 1:], terminated)
        flat = [of.flatten(0, 1) for of in steps]
        return torch.stack([network(*flat).view(n, length) for network in self.networks])
