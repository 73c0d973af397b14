"""What the answers choose about the reward model: its weight decay, and whether it sees the action.

Each candidate is fitted to half of the answers and judged by the other half, with the error rate and the temperature that suit it
best: a model that is too sure of itself is only as bad as its order. Of those within one standard error of the best one, the
simplest wins (the one-standard-error rule of Breiman et al. 1984): few answers choose strong decay, and more answers less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.optim import FlatAdamW
from rlhf_ray.reward.comparison_set import StackedComparisons, rows_of
from rlhf_ray.reward.fused import FusedMLPs
from rlhf_ray.reward.likelihood import log_likelihood_slope, return_differences
from rlhf_ray.reward.methods import WeightAverage
from rlhf_ray.reward.networks.mlp import MLP
from rlhf_ray.settings import RewardModelSettings

DECAYS = (10.0, 3.0, 1.0, 0.01)
"""The strongest first. With the default learning rate: of Reacher, only 1 and 3 do; of other tasks, wrong answers want more, many right ones less."""
FOLDS = 2
STEPS = 120
"""Gradient steps of each candidate."""
FEWEST = 40
"""Answers without ties from which they choose."""
TEMPERATURES = np.exp(np.linspace(np.log(0.1), np.log(10.0), 25))
RATES = np.linspace(0.005, 0.495, 50)


@dataclass(frozen=True)
class Choice:
    """What is chosen.

    Attributes:
        weight_decay: of AdamW.
        use_action: whether the reward sees the action.
    """

    weight_decay: float
    use_action: bool


def candidates_of(settings: RewardModelSettings) -> list[Choice]:
    """Return what is to be chosen among, the simplest first: the first one alone if the settings leave nothing open."""
    actions = (False, True) if settings.use_action == "auto" else (bool(settings.use_action),)
    decays = DECAYS if settings.weight_decay == "auto" else (settings.weight_decay,)
    return [Choice(decay, action) for action in actions for decay in decays]


def first_of(settings: RewardModelSettings) -> Choice:
    """Return what holds until there are answers enough."""
    return Choice(
        0.01 if settings.weight_decay == "auto" else settings.weight_decay, settings.use_action is True or settings.use_action == "auto"
    )


@dataclass(frozen=True)
class Scores:
    """How well each candidate predicts the answers that it was not fitted to.

    Attributes:
        candidates: `candidates_of`.
        each: ``[candidates, n]``: log likelihood of each answer without ties, in nats.
    """

    candidates: list[Choice]
    each: FloatArray

    @property
    def chosen(self) -> Choice:
        """The first candidate whose mean is within one standard error of the best one's: of the difference between both."""
        best = self.each[self.each.mean(1).argmax()]
        short = best - self.each
        error = short.std(1) / np.sqrt(short.shape[1])
        return self.candidates[int(np.argmax(short.mean(1) <= error))]


def scores_of(fused: FusedMLPs, candidates: Sequence[Choice], data: StackedComparisons, rows: Tensor, folds: Tensor, generator: torch.Generator) -> Scores:
    """Fit the candidates and judge them.

    Args:
        fused: new networks: `FOLDS` members for each candidate.
        candidates: of them.
        data: all comparisons, with the normalised features as their inputs.
        rows: ``[m]``: those to use.
        folds: ``[m]``: the fold of each.
        generator: draws the batches.
    """
    settings, features = fused.settings, data.inputs["features"]
    decays = torch.tensor([of.weight_decay for of in candidates]).repeat_interleave(FOLDS)
    shrink = 1 - settings.learning_rate * fused.of_members(decays)
    fused.leave_out_action(torch.tensor([not of.use_action for of in candidates]).repeat_interleave(FOLDS))
    optimizer = FlatAdamW(fused.flat, lr=settings.learning_rate, weight_decay=0.0, fused=True)
    average = WeightAverage([fused.flat.values])
    learns = torch.stack([folds != number % FOLDS for number in range(len(decays))])
    taken = 0
    while taken < STEPS:
        order = torch.randperm(len(rows), generator=generator)
        for batch in torch.split(order[: (STEPS - taken) * settings.batch_size], settings.batch_size):
            there = rows[batch]
            preferences, noise = data.preferences[there], rows_of(data.noise, there, torch.device("cpu"))

            def slope(member: int, at: Tensor, differences: Tensor) -> Tensor:
                of = noise[at] if isinstance(noise, Tensor) else noise
                return log_likelihood_slope(differences, preferences[at], of) / len(preferences)

            fused.set_gradient(features, there, learns[:, batch], slope)
            fused.flat.values.mul_(shrink)
            optimizer.take_step()
            average.add()
            taken += 1
    average.end()
    differences = return_differences(fused.rewards_of(features.index_select(0, rows)), settings.discount)
    decided = data.preferences[rows] != 0.5
    signs = 2 * data.preferences[rows] - 1
    of_fold = differences.view(len(candidates), FOLDS, -1).gather(1, folds[None, None].expand(len(candidates), 1, -1))[:, 0]
    preferred = (of_fold * signs)[:, decided].double().numpy()
    return Scores(list(candidates), np.stack([_log_likelihoods(of) for of in preferred]))


def _log_likelihoods(preferred: FloatArray) -> FloatArray:
    """Return the log likelihood of each answer, ``[n]``, at the temperature and error rate at which their sum is the largest.

    ``preferred [n]``: return of the preferred fragment minus that of the other.
    """
    chances = 1 / (1 + np.exp(-preferred / TEMPERATURES[:, None, None]))
    rates = RATES[None, :, None]
    logs = np.log(np.clip(chances * (1 - 2 * rates) + rates, 1e-9, None))
    best = np.unravel_index(logs.sum(-1).argmax(), logs.shape[:2])
    found: FloatArray = logs[best]
    return found
