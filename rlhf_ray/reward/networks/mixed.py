"""MixedMLP: a multilayer perceptron and a sum of functions of single inputs, mixed as the answers say."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.reward.networks.mlp import MLP
from rlhf_ray.settings import RewardModelSettings

WIDTH = 0.5
"""Width of a step of `basis`, and the distance to the next one, in standard deviations of an input."""

FARTHEST = 2.0
"""Where the outermost steps are. Beyond them a function is nearly linear."""

GAIN = 20.0
"""Factor of an additive model's output. The larger it is, the less weight decay holds the weights."""

PER_INPUT = 2 + round(2 * FARTHEST / WIDTH)
"""Columns of `basis` for each input."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the additive models that are weighed against each other, equally probable before the answers."""


def basis(features: Tensor) -> Tensor:
    """Map ``[…, inputs]`` to ``[…, inputs * PER_INPUT]``: each input, and smooth steps of it at fixed places."""
    places = torch.linspace(-FARTHEST, FARTHEST, PER_INPUT - 1, dtype=features.dtype, device=features.device)
    steps = torch.tanh((features[..., None] - places) / WIDTH)
    return torch.cat([features[..., None], steps], -1).flatten(-2)


class MixedMLP(MLP):
    """Each member is an MLP plus an additive model, ``Σ_j f_j(input j)`` (Hastie and Tibshirani 1986), each with a weight.

    The parts are fitted side by side, each to the answers by itself. After a fit, `choose` sets their weights by the answers that
    the member was not fitted to. An MLP can learn how inputs work together, and needs many right answers to learn which of them
    matter at all; an additive model can't and doesn't. See `rlhf_ray.reward.networks.RewardNetwork`; arguments as for
    `VectorInputs`.

    A function is a scale times a sum of steps. Weight decay of both is a penalty on the function's size, not on its square, so that
    the functions of inputs that don't matter become 0 (the group lasso; Tibshirani 2021, "Equivalences between sparse models and
    neural networks").

    Attributes:
        functions: ``[members, inputs, PER_INPUT]`` float32: the weights of `basis`.
        scales: ``[members, inputs]`` float32.
        weights: ``[2, members]`` float32: factors of the outputs of the MLPs and of the additive models.
        share: scalar float32: the additive models' share of the reward, 0 to 1, in standard deviations.
        evidence: log-likelihood, in nats, of the answers that `choose` weighed with, by additive models alone, above that by MLPs
            alone; NaN before.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__(observation_space, action_space, settings)
        self.functions = nn.Parameter(torch.zeros(self.members, self.inputs, PER_INPUT, dtype=torch.float32))
        self.scales = nn.Parameter(torch.ones(self.members, self.inputs, dtype=torch.float32))
        self.weights: Tensor = nn.Buffer(torch.full((2, self.members), 0.5, dtype=torch.float32))
        self.share: Tensor = nn.Buffer(torch.tensor(0.5, dtype=torch.float32))
        self.evidence = math.nan

    @property
    def additive(self) -> Tensor:
        """The factors of `basis` in the additive models, ``[members, inputs * PER_INPUT]``."""
        return (GAIN * self.scales[..., None] * self.functions).flatten(1)

    def parts(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the rewards of both parts, the MLPs' first: ``[2 members, n, length]``."""
        features = self.features_of(inputs).flatten(0, 1)
        plain: Tensor = self.head(features.expand(self.members, *features.shape))
        additive = (basis(features) @ self.additive.T).T
        return torch.cat([plain, additive]).view(2 * self.members, *inputs["features"].shape[:2])

    def mixed(self, parts: Tensor) -> Tensor:
        """Mix what `parts` returned, ``[2 members, …]``, to the rewards ``[members, …]``."""
        parts = parts.view(2, self.members, *parts.shape[1:])
        weights = self.weights.to(parts.device).view(2, self.members, *[1] * (parts.dim() - 2))
        return (parts * weights).sum(0)

    def choose(self, parts: Tensor, evidence: Callable[[Tensor], float]) -> None:
        """Set the weights to those that predict answers best: the share is the mean of its posterior over `SHARES`.

        Args:
            parts: ``[2 members, …]``: the rewards of all steps.
            evidence: the logarithm of the likelihood of answers that members were not fitted to, given their rewards.
        """
        deviations, logs = parts.flatten(1).std(1), list[float]()
        for share in SHARES:
            self.weigh(share, deviations)
            logs.append(evidence(self.mixed(parts)))
        self.evidence = logs[-1] - logs[0]
        chances = np.exp(np.array(logs) - max(logs))
        self.weigh(float(chances @ SHARES / chances.sum()), deviations)

    def weigh(self, share: float, deviations: Tensor) -> None:
        """Set the weights, so that ``share`` of a reward, in standard deviations, is the additive models'.

        Args:
            share: from 0 to 1.
            deviations: ``[2 members]``: standard deviations of each part's rewards. The mixture's scale is between theirs.
        """
        self.share.fill_(share)
        both = deviations.view(2, self.members).clamp_min(1e-6)
        shares = torch.tensor([[1 - share], [share]], dtype=torch.float32)
        self.weights.copy_(shares / both * (shares * both).sum(0))

    def scores(self) -> dict[str, Any]:
        """Return what `choose` chose, for a `FitReport`."""
        return {"additive_share": float(self.share), "additive_evidence": self.evidence}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        return self.mixed(self.parts(inputs))
