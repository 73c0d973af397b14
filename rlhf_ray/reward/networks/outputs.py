"""Reward networks around one or two others: what becomes of an output, and a learned potential beside a reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_ray.reward.networks.mlp import observe
from rlhf_ray.settings import Output, RewardModelSettings

BASE, POTENTIAL = "base.", "potential."
"""Prefixes of the inputs of `ShapedNetwork`'s two networks."""


class TwoPart(nn.Module):
    """A reward network of two: whether the reward is nonzero, and how large it is then. The reward is the product."""

    def __init__(self, make: Callable[[], Any]):
        super().__init__()
        self.whether, self.size = make(), make()

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return the inner networks' inputs, which are the same for both."""
        first: Any = next(self.children())
        inputs: dict[str, Tensor] = first.encode(observations, actions, terminated)
        return inputs

    def observe(self, inputs: dict[str, Tensor]) -> None:
        """Let the inner networks update the statistics of their inputs."""
        for network in self.children():
            observe(network, inputs)

    def parts(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the log odds of a nonzero reward and its size, each ``[members, n, length]``."""
        return self.whether(inputs), self.size(inputs)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        whether, size = self.parts(inputs)
        return torch.sigmoid(whether) * size


class Probability(TwoPart):
    """A reward network whose reward is a probability: the sigmoid of another network's output. Takes the arguments of `TwoPart`."""

    def __init__(self, make: Callable[[], Any]):
        nn.Module.__init__(self)
        self.logit = make()

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return probabilities ``[members, n, length]``."""
        return torch.sigmoid(self.logit(inputs))


OUTPUTS: Mapping[Output, Callable[[Callable[[], Any]], Any]] = {
    "reward": lambda make: make(),
    "probability": Probability,
    "two_part": TwoPart,
}
"""Builds the network for each `RewardModelSettings.output` from a function that builds the inner one."""


class ShapedNetwork(nn.Module):
    """A reward network around another one: ``base(s, a, s') + γ Φ(s') - Φ(s)``, with ``Φ(s') = 0`` where the step terminated.

    The potential Φ absorbs what only looks ahead (Ng et al. 1999: it does not change which policy is best), so that the base can
    stay a plain reward. Φ is a network of the same kind that sees the state alone, as in imitation's ``BasicShapedRewardNet``. See
    `rlhf_ray.reward.networks.RewardNetwork`.
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
        both = {BASE + name: value for name, value in base.items()}
        both |= {POTENTIAL + name: value for name, value in potential.items()}
        return both | {"last": 1.0 - terminated.float()}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        base: Tensor = self.base(_inner(inputs, BASE))
        values: Tensor = self.potential(_inner(inputs, POTENTIAL))
        after = torch.cat([values[..., 1:-1], values[..., -1:] * inputs["last"][:, None]], -1)
        return base + self.discount * after - values[..., :-1]

    def observe(self, inputs: dict[str, Tensor]) -> None:
        """Let both networks update the statistics of their inputs."""
        observe(self.base, _inner(inputs, BASE))
        observe(self.potential, _inner(inputs, POTENTIAL))


def _inner(inputs: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in inputs.items() if name.startswith(prefix)}
