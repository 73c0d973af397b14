"""The shaped network: another one plus the difference of a learned potential, as imitation's ``BasicShapedRewardNet``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_ray.settings import RewardModelSettings

BASE, POTENTIAL = "base.", "potential."
"""Prefixes of the two networks' inputs."""


class ShapedNetwork(nn.Module):
    """A reward network around another one: ``base(s, a, s') + γ Φ(s') - Φ(s)``, with ``Φ(s') = 0`` where the step terminated.

    The potential Φ absorbs what only looks ahead (Ng et al. 1999: it does not change which policy is best), so that the base can
    stay a plain reward. Φ is a network of the same kind that sees the state alone. See `rlhf_ray.reward.networks.RewardNetwork`.

    Args:
        make: builds a network from settings.
        settings: of the base; ``shaping_discount`` is γ.
    """

    also_reads = frozenset({"state", "next_state", "done"})

    def __init__(self, make: Callable[[RewardModelSettings], Any], settings: RewardModelSettings):
        super().__init__()
        self.discount = settings.shaping_discount
        self.base = make(settings)
        state_only = replace(settings, use_state=True, use_action=False, use_next_state=False, use_done=False)
        self.potential = make(state_only)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return the inputs of both networks, and ``last`` ``[n]`` float32: 0 where the last step terminated."""
        base = self.base.encode(observations, actions, terminated)
        # The potential of all length + 1 observations is that of one more step; the observation after it counts for nothing.
        longer = torch.cat([observations, observations[:, -1:]], 1), torch.cat([actions, actions[:, -1:]], 1)
        potential = self.potential.encode(*longer, torch.zeros_like(terminated, dtype=torch.bool))
        both = {BASE + name: value for name, value in base.items()} | {
            POTENTIAL + name: value for name, value in potential.items()
        }
        return both | {"last": 1.0 - terminated.float()}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        base: Tensor = self.base(_inner(inputs, BASE))
        values: Tensor = self.potential(_inner(inputs, POTENTIAL))
        after = torch.cat([values[..., 1:-1], values[..., -1:] * inputs["last"][:, None]], -1)
        return base + self.discount * after - values[..., :-1]

    def observe(self, inputs: dict[str, Tensor]) -> None:
        """Let both networks update the statistics of their inputs."""
        for prefix, network in ((BASE, self.base), (POTENTIAL, self.potential)):
            if hasattr(network, "observe"):
                network.observe(_inner(inputs, prefix))


def _inner(inputs: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in inputs.items() if name.startswith(prefix)}
