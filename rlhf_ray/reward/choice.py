"""What the answers choose about the reward model: its weight decay, and whether it sees the action.

Each candidate is fitted to half of the answers and judged by the other half, with the error rate and the temperature that suit it
best, so that one which is too sure of itself loses nothing if its order is right. Of those within one standard error of the best,
the simplest wins (Breiman et al. 1984): few answers choose strong decay, more answers less.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import stable_uniform
from rlhf_ray.optim import FlatAdamW
from rlhf_ray.reward.comparison_set import StackedComparisons, rows_of
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.fused import FusedMLPs
from rlhf_ray.reward.likelihood import log_likelihood_slope, return_differences
from rlhf_ray.reward.methods import WeightAverage
from rlhf_ray.reward.networks.mlp import MLP
from rlhf_ray.settings import RewardModelSettings

DECAYS = (10.0, 3.0, 1.0, 0.01)
"""Candidates for the weight decay, the strongest first. The last one holds until there are answers enough."""
FOLDS, STEPS = 2, 120
"""Parts of the answers; and gradient steps of each candidate and part."""
FEWEST, GROWTH = 40, 1.8
"""Fewest answers without ties from which to choose, and by how much they grow until the next choice: twice as many, nearly."""
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


class Chooser:
    """Chooses what the settings leave open (``auto``).

    Attributes:
        candidates: the simplest first.
        chosen: what holds now.
    """

    def __init__(self, settings: RewardModelSettings):
        actions = (False, True) if settings.use_action == "auto" else (settings.use_action,)
        decays = DECAYS if settings.weight_decay == "auto" else (settings.weight_decay,)
        self.settings = settings
        self.candidates = [Choice(decay, action) for action in actions for decay in decays]
        self.chosen = self.candidates[-1]
        self._answers = 0
        """Those of the last choice."""

    def due(self, answers: int) -> bool:
        """Return whether to choose from so many answers without ties."""
        return len(self.candidates) > 1 and answers >= max(FEWEST, GROWTH * self._answers)

    def choose(
        self,
        ensemble: RewardEnsemble,
        data: StackedComparisons,
        rows: Tensor,
        keys: Sequence[tuple[str, str]],
        generator: torch.Generator,
    ) -> bool:
        """Set `chosen`. Return whether it is another one than before.

        Args:
            ensemble: of MLPs for the same spaces.
            data: all comparisons, with normalised features as their inputs (`FusedMLPs.features_of`).
            rows: ``[m]``: those to choose by.
            keys: pair id and annotator of all comparisons. All answers to a pair are in one part.
            generator: draws weights and batches.
        """
        settings = replace(self.settings, ensemble_size=FOLDS * len(self.candidates))
        networks = new_mlps(ensemble, settings, generator).to(ensemble.reward_mean.device)
        pairs = [keys[row][0] for row in rows.tolist()]
        folds = torch.as_tensor((stable_uniform(pairs, "choice") * FOLDS).astype(np.int64))
        likelihoods = judge(FusedMLPs(networks, settings), self.candidates, data, rows, folds, generator)
        before, self.chosen, self._answers = self.chosen, self.candidates[simplest(likelihoods)], likelihoods.shape[1]
        return self.chosen != before

    def state(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {**asdict(self.chosen), "answers": self._answers}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned; not what the settings, which may be others now, leave no choice about."""
        if (chosen := Choice(state["weight_decay"], state["use_action"])) in self.candidates:
            self.chosen, self._answers = chosen, state["answers"]


def new_mlps(ensemble: RewardEnsemble, settings: RewardModelSettings, generator: torch.Generator) -> MLP:
    """Draw new networks for the spaces of ``ensemble``."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return MLP(ensemble.observation_space, ensemble.action_space, settings)


def simplest(likelihoods: FloatArray) -> int:
    """Return the first candidate whose mean is within one standard error, of the difference, of the best one's.

    ``likelihoods [candidates, n]`` are the logarithms of each answer's, the simplest candidate first.
    """
    shortfalls = likelihoods[likelihoods.mean(1).argmax()] - likelihoods
    errors = shortfalls.std(1) / np.sqrt(shortfalls.shape[1])
    return int(np.argmax(shortfalls.mean(1) <= errors))


def judge(
    fused: FusedMLPs,
    candidates: Sequence[Choice],
    data: StackedComparisons,
    rows: Tensor,
    folds: Tensor,
    generator: torch.Generator,
) -> FloatArray:
    """Fit the candidates and return the log likelihood of each answer without ties by each: ``[candidates, n]``, in nats.

    Args:
        fused: new networks, `FOLDS` of each candidate.
        candidates: which ones.
        data: see `Chooser.choose`, as ``rows`` and ``generator``.
        rows: ``[m]``.
        folds: ``[m]``: the part of each answer.
        generator: draws the batches.
    """
    settings, features = fused.settings, data.inputs["features"].index_select(0, rows.to(fused.flat.values.device))
    preferences, noise = data.preferences[rows], rows_of(data.noise, rows, torch.device("cpu"))
    decays = torch.tensor([of.weight_decay for of in candidates]).repeat_interleave(FOLDS)
    keeps = 1 - settings.learning_rate * fused.of_each(decays)
    fused.leave_out_action(torch.tensor([not of.use_action for of in candidates]).repeat_interleave(FOLDS))
    optimizer = FlatAdamW(fused.flat, lr=settings.learning_rate, weight_decay=0.0, fused=True)
    average = WeightAverage([fused.flat.values])
    learns = torch.stack([folds != member % FOLDS for member in range(len(decays))])
    taken = 0
    while taken < STEPS:
        order = torch.randperm(len(rows), generator=generator)[: (STEPS - taken) * settings.batch_size]
        for batch in torch.split(order, settings.batch_size):

            def slope(_member: int, at: Tensor, differences: Tensor, batch: Tensor = batch) -> Tensor:
                there = batch[at]
                of = noise[there] if isinstance(noise, Tensor) else noise
                return log_likelihood_slope(differences.cpu(), preferences[there], of).to(differences) / len(batch)

            fused.set_gradient(features, batch, learns[:, batch], slope)
            fused.flat.values.mul_(keeps)
            optimizer.take_step()
            average.add()
            taken += 1
    average.end()
    differences = return_differences(fused.rewards_of(features), settings.discount).view(len(candidates), FOLDS, -1)
    unseen = differences.gather(1, folds.expand(len(candidates), 1, -1))[:, 0]
    preferred = (unseen * (2 * preferences - 1))[:, preferences != 0.5]
    return np.stack([_log_likelihoods(of) for of in preferred.double().numpy()])


def _log_likelihoods(preferred: FloatArray) -> FloatArray:
    """Return the log likelihood of each answer, ``[n]``, at the temperature and error rate that make their sum the largest.

    ``preferred [n]`` is the return of the preferred fragment minus that of the other.
    """
    chances = 1 / (1 + np.exp(-preferred / TEMPERATURES[:, None, None]))
    logs = np.log(chances * (1 - 2 * RATES[:, None]) + RATES[:, None])
    found: FloatArray = logs.reshape(-1, len(preferred))[logs.sum(-1).argmax()]
    return found
