"""Outputs: what becomes of a reward network's output, as a reward network around one or two others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlhf_ray.settings import Output


class Probability(nn.Module):
    """A reward network whose reward is a probability: the sigmoid of another network's output.

    Args:
        make: builds a reward network.
    """

    def __init__(self, make: Callable[[], Any]):
        super().__init__()
        self.logit = make()

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return the inner network's inputs."""
        inputs: dict[str, Tensor] = self.logit.encode(observations, actions, terminated)
        return inputs

    def observe(self, inputs: dict[str, Tensor]) -> None:
        """Let the inner network update the statistics of its inputs, if it keeps any."""
        if hasattr(self.logit, "observe"):
            self.logit.observe(inputs)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return probabilities ``[members, n, length]``."""
        return torch.sigmoid(self.logit(inputs))


class TwoPart(nn.Module):
    """A reward network of two: whether the reward is nonzero, and how large it is then. The reward is the product.

    Args:
        make: builds a reward network.
    """

    def __init__(self, make: Callable[[], Any]):
        super().__init__()
        self.whether, self.size = make(), make()

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return the inner networks' inputs, which are the same for both."""
        inputs: dict[str, Tensor] = self.whether.encode(observations, actions, terminated)
        return inputs

    def observe(self, inputs: dict[str, Tensor]) -> None:
        """Let the inner networks update the statistics of their inputs, if they keep any."""
        for network in (self.whether, self.size):
            if hasattr(network, "observe"):
                network.observe(inputs)

    def parts(self, inputs: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Return the log odds of a nonzero reward and its size, each ``[members, n, length]``."""
        return self.whether(inputs), self.size(inputs)

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        whether, size = self.parts(inputs)
        return torch.sigmoid(whether) * size


OUTPUTS: Mapping[Output, Callable[[Callable[[], Any]], Any]] = {
    "reward": lambda make: make(),
    "probability": Probability,
    "two_part": TwoPart,
}
"""Builds the network for each `RewardModelSettings.output` from a function that builds the inner one."""
