"""The figures of a fit to recorded rewards: errors beside the constant baseline, ranking, and calibration by reward level."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.metrics import plain
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.statistics import auc, pearson, spearman
from rlhf_ray.reward.ensemble import RewardEnsemble

MOST_LEVELS = 8
"""Largest number of distinct targets that are each a level; more are divided into `BINS` bins."""
BINS = 5

GOOD_AUC, GOOD_SHARE = 0.9, 0.5


@dataclass(frozen=True)
class RewardLevel:
    """Test steps of similar true reward.

    Attributes:
        low, high: smallest and largest target.
        train, test: number of steps in each part.
        target: mean target of the test steps.
        predicted, spread: mean and standard deviation of their predictions.
    """

    low: float
    high: float
    train: int
    test: int
    target: float
    predicted: float
    spread: float

    @property
    def label(self) -> str:
        """The level in words."""
        return f"{self.low:.4g}" if self.low == self.high else f"{self.low:.4g} to {self.high:.4g}"


@dataclass(frozen=True)
class AdversarialReport:
    """What adversarial training changed. Scores are mean predictions above the nonsense reward.

    Attributes:
        rounds: number of rounds.
        trained: visualisations in the replay buffer.
        nonsense_reward: the reward they were given.
        fresh_before, fresh_after: score of new visualisations of the model before and after the rounds, from
            seeds never trained on.
        held_out_before, held_out_after: score, before and after, of visualisations of the model before the rounds that were not
            trained on.
        auc_before, auc_after: balanced AUC on the test part.
        error_before, error_after: mean squared error on the test part.
    """

    rounds: int
    trained: int
    nonsense_reward: float
    fresh_before: float
    fresh_after: float
    held_out_before: float
    held_out_after: float
    auc_before: float
    auc_after: float
    error_before: float
    error_after: float


@dataclass(frozen=True)
class SupervisedReport:
    """Report of a fit to recorded rewards. A measure that can't be computed is NaN.

    Attributes:
        objective, balance: the settings.
        train_steps, test_steps, train_episodes, test_episodes: sizes of both parts. They share no episode.
        trained_steps: training steps that the balance leaves.
        train_nonzero, test_nonzero: steps whose true reward is not zero.
        gradient_steps: gradient steps.
        seconds: wall-clock time.
        train_error, test_error: mean squared error of the prediction against the objective's target.
        constant_error: the same on the test part for the constant that fits the training part best, its mean.
        balanced_error, balanced_constant_error: as ``test_error`` and ``constant_error``, with zero and nonzero targets weighing
            the same, and the better of all constants.
        balanced_auc: probability that the model tells a nonzero reward from a zero one, each drawn from the test part.
        correlation, rank_correlation: of predictions and targets on the test part (Pearson, Spearman).
        levels: calibration by level of the target.
        adversarial: what adversarial training changed; None without.
    """

    objective: str
    balance: str
    train_steps: int
    test_steps: int
    train_episodes: int
    test_episodes: int
    trained_steps: int
    train_nonzero: int
    test_nonzero: int
    gradient_steps: int
    seconds: float
    train_error: float
    test_error: float
    constant_error: float
    balanced_error: float
    balanced_constant_error: float
    balanced_auc: float
    correlation: float
    rank_correlation: float
    levels: tuple[RewardLevel, ...]
    adversarial: AdversarialReport | None = None

    @property
    def explained(self) -> float:
        """Share of the constant baseline's test error that the model removes: 1 at best, 0 or less: no better than a constant."""
        return 1 - self.test_error / self.constant_error if self.constant_error > 0 else math.nan

    @property
    def learned(self) -> bool:
        """Whether the model predicts the test part better than any constant.

        A small error alone is no evidence: with rare rewards, every constant near zero has one. So errors are compared with the
        constant's, with zero and nonzero rewards weighing the same where both occur, and then the AUC counts too.
        """
        if not math.isnan(self.balanced_auc):
            return self.ranks_well and self.test_error < self.constant_error
        return self.explained > GOOD_SHARE

    @property
    def ranks_well(self) -> bool:
        """Whether it tells zero from nonzero rewards, and is closer than any constant where both weigh the same."""
        return self.balanced_auc > GOOD_AUC and self.balanced_error < GOOD_SHARE * self.balanced_constant_error

    def to_json(self) -> dict[str, Any]:
        """All figures as JSON values; NaN becomes null."""
        derived = {"explained": self.explained, "learned": self.learned}
        values: dict[str, Any] = plain(asdict(self) | derived)
        return values


def predict(ensemble: RewardEnsemble, steps: Transitions) -> FloatArray:
    """Predict the reward of each step, ``[n]`` float64."""
    of = (steps.observations, steps.actions, steps.next_observations, steps.terminated)
    return np.asarray(ensemble.predict(*of), np.float64)


def balanced_auc(predictions: FloatArray, targets: FloatArray) -> float:
    """`auc` of nonzero against zero targets. If nonzero targets have both signs, the prediction's distance from zero counts."""
    nonzero = targets != 0
    if not nonzero.any():
        return math.nan
    lowest, highest = targets[nonzero].min(), targets[nonzero].max()
    return auc(predictions if lowest > 0 else -predictions if highest < 0 else np.abs(predictions), nonzero)


def measures(predictions: FloatArray, targets: FloatArray, constant: float) -> dict[str, float]:
    """The test part's figures, of predictions and targets ``[n]``, beside those of a constant prediction."""
    nonzero = targets != 0
    kinds = [of for of in (nonzero, ~nonzero) if of.any()]
    weights = np.zeros(len(targets))
    for kind in kinds:
        weights[kind] = 1 / (len(kinds) * kind.sum())
    middle = float(weights @ targets)
    return {
        "test_error": float(np.square(predictions - targets).mean()),
        "constant_error": float(np.square(constant - targets).mean()),
        "balanced_error": float(weights @ np.square(predictions - targets)),
        "balanced_constant_error": float(weights @ np.square(middle - targets)),
        "balanced_auc": balanced_auc(predictions, targets),
        "correlation": pearson(predictions, targets),
        "rank_correlation": spearman(predictions, targets),
    }


def levels_of(predictions: FloatArray, targets: FloatArray, train_targets: FloatArray) -> tuple[RewardLevel, ...]:
    """Group test steps by their target: each value if there are few, else bins of equal counts, with zero apart if it is common."""
    every = np.concatenate([train_targets, targets])
    values = np.unique(every)
    if len(values) <= MOST_LEVELS:
        bounds: Sequence[tuple[float, float]] = [(value, value) for value in values]
    else:
        bounds = _bins(every)
    found = []
    for low, high in bounds:
        here, before = ((of >= low) & (of <= high) for of in (targets, train_targets))
        if (low, high) != (0.0, 0.0) and (0.0, 0.0) in bounds:
            here, before = here & (targets != 0), before & (train_targets != 0)
        some = bool(here.any())
        found.append(
            RewardLevel(
                float(low),
                float(high),
                int(before.sum()),
                int(here.sum()),
                float(targets[here].mean()) if some else math.nan,
                float(predictions[here].mean()) if some else math.nan,
                float(predictions[here].std()) if some else math.nan,
            )
        )
    return tuple(found)


def _bins(targets: FloatArray) -> list[tuple[float, float]]:
    zero = targets == 0
    common = bool(zero.mean() > 1 / BINS)
    ordered = np.sort(targets[~zero] if common else targets)
    found = {(float(part[0]), float(part[-1])) for part in np.array_split(ordered, BINS) if len(part)}
    return sorted(_apart(sorted(found)) + ([(0.0, 0.0)] if common else []))


def _apart(bounds: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Move the lower bound of each bin above the bin before it, so that no value is in two."""
    found: list[tuple[float, float]] = []
    for low, high in bounds:
        if found and low <= found[-1][1]:
            low = float(np.nextafter(found[-1][1], math.inf))
        if low <= high:
            found.append((low, high))
    return found


def count_episodes(episodes: IntArray) -> int:
    """Number of different episodes."""
    return len(np.unique(episodes))
