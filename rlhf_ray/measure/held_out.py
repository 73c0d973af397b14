"""How well a reward model predicts answers that it was not fitted to: accuracy, log-likelihood, Brier score, calibration.

All functions take arrays: ``probabilities``, the model's probability that the left fragment is preferred, and ``preferences``, the
answers as in `rlhf_ray.data.comparisons.Comparisons`. They don't know what was held out: pass held-out comparisons only. On the
comparisons of the fit, every number looks better than it is.

Ties and soft labels. An answer ``y`` is a probability: 1 left, 0 right, 0.5 a tie, anything between a soft label.

* Accuracy is the share of answers on whose side the model is. A soft label counts for the side it prefers; ties don't count; a
  model that is undecided (``p = 0.5``) is half right.
* Log-likelihood is ``y log p + (1 - y) log(1 - p)``, the Brier score ``(p - y)²`` (Brier 1950). The best prediction of a tie is
  0.5, with a Brier score of 0 and a log-likelihood of ``-log 2``: no prediction gets above minus the answer's own entropy.
* Calibration: a tie is half an answer for each side, a soft label ``y`` and ``1 - y`` answers.

Calibration is measured for the side that the model prefers: its confidence ``max(p, 1 - p)`` against the share of answers for that
side. Which fragment is on the left is random, so ``p`` and ``1 - p`` are the same prediction.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean, rank_correlation, share_interval

BINS = 5
"""Bins of equal width from 0.5 to 1: five make tens of percent."""

LEAST_PROBABILITY = 1e-6
"""Smaller probabilities count as this one in the log-likelihood, so that one answer can't make it infinite."""

BELOW_CHANCE = 1.8
"""Standard errors below one half of an accuracy that is worse than guessing: 2 of 10 answers. Runs that learn are too far above one
half to reach it by chance."""
FEW_DECIDED = 8
"""Minimum number of answers, without ties, for that."""

DRAWS = 500
"""Draws of answers for `chance_calibration_error`."""


@dataclass(frozen=True)
class PredictionScores:
    """Scores of a model's predictions of ``answers`` answers.

    Attributes:
        answers: number of answers.
        decided: number of answers that are not ties.
        accuracy: share of decided answers on whose side the model is, with its 95 % interval (Wilson); NaN without any.
        log_likelihood: mean log-likelihood in nats, with its 95 % interval (Student's t over answers). Guessing gives -0.693.
        brier: mean Brier score, with its 95 % interval (Student's t over answers). 0 is perfect, guessing gives 0.25.
        calibration_error: expected calibration error (Naeini et al. 2015), 0 to 1: see `calibration_error`.
        chance: the calibration error that a perfectly calibrated model would have on so few answers.
    """

    answers: int
    decided: int
    accuracy: MeanEstimate
    log_likelihood: MeanEstimate
    brier: MeanEstimate
    calibration_error: float
    chance: float


@dataclass(frozen=True)
class ReliabilityBin:
    """One bin of a reliability curve.

    Attributes:
        least, most: the bin's confidences.
        answers: number of answers in it.
        predicted: mean confidence; NaN in an empty bin.
        observed: share of answers for the side that the model prefers, with its 95 % interval (Wilson); NaN in an empty bin.
    """

    least: float
    most: float
    answers: int
    predicted: float
    observed: MeanEstimate


@dataclass(frozen=True)
class DisagreementScores:
    """Whether an ensemble's members disagree where the ensemble is wrong.

    Attributes:
        correlation: rank correlation of the members' disagreement with the Brier score of their mean, with its 95 % interval.
        agreeing: mean Brier score of the half of the answers on which members agree most.
        disagreeing: mean Brier score of the other half.
    """

    correlation: MeanEstimate
    agreeing: float
    disagreeing: float


def probabilities_of(differences: Array, noise: float | Array = 0.0) -> FloatArray:
    """Compute the Bradley-Terry model's probabilities ``[..., n]`` with label noise, as `rlhf_ray.reward.likelihood` defines them.

    Args:
        differences: ``[..., n]``: return of the left fragment minus return of the right one.
        noise: share of answers assumed to be random: one number, or ``[n]``.
    """
    # tanh doesn't overflow.
    sigmoid = 0.5 + 0.5 * np.tanh(np.asarray(differences, np.float64) / 2)
    return np.asarray(np.asarray(noise) / 2 + (1 - np.asarray(noise)) * sigmoid, np.float64)


def brier_scores(probabilities: Array, preferences: Array) -> FloatArray:
    """Compute the Brier score of each prediction, ``[n]``: see the module's docstring."""
    return np.asarray(np.square(np.asarray(probabilities, np.float64) - np.asarray(preferences, np.float64)))


def log_likelihoods(probabilities: Array, preferences: Array) -> FloatArray:
    """Compute the log-likelihood of each answer in nats, ``[n]``: see the module's docstring."""
    p = np.clip(np.asarray(probabilities, np.float64), LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
    y = np.asarray(preferences, np.float64)
    return np.asarray(y * np.log(p) + (1 - y) * np.log1p(-p))


def below_chance(accuracy: float, decided: int) -> bool:
    """Whether an ``accuracy`` on so many answers without ties is worse than guessing; False for NaN and for few answers."""
    return decided >= FEW_DECIDED and (1 - 2 * accuracy) * math.sqrt(decided) >= BELOW_CHANCE


def hits(probabilities: Array, preferences: Array) -> FloatArray:
    """Compute for each answer whether the model is on its side, ``[n]``: 1, 0, or 0.5 if it is undecided; NaN for ties."""
    side, answered = (np.sign(np.asarray(values, np.float64) - 0.5) for values in (probabilities, preferences))
    return np.where(answered == 0, math.nan, (1 + side * answered) / 2)


def calibration_error(probabilities: Array, preferences: Array, bins: int = BINS) -> float:
    """Compute the expected calibration error (Naeini et al. 2015) of the preferred side; NaN without answers.

    It is the mean over answers of the distance between confidence and observed share in the answer's bin. Few answers make it
    larger than it is: compare it with `chance_calibration_error`.

    ``bins`` are of equal width from 0.5 to 1.
    """
    confidence, outcome = _folded(probabilities, preferences)
    if not len(confidence):
        return math.nan
    gaps = np.bincount(_bin(confidence, bins), outcome - confidence, bins)
    return float(np.abs(gaps).sum() / len(confidence))


def chance_calibration_error(probabilities: Array, bins: int = BINS, seed: int = 0) -> float:
    """Compute the mean `calibration_error` if the probabilities were exactly right; NaN without answers.

    Answers are drawn from the probabilities, as in Bröcker and Smith 2007.
    """
    confidence, _ = _folded(probabilities, np.zeros(len(probabilities)))
    if not len(confidence):
        return math.nan
    rng, bin_of = np.random.default_rng([seed, len(confidence)]), _bin(confidence, bins)
    inside = np.eye(bins)[bin_of]
    errors, chunk = [], max(1, 4_000_000 // len(confidence))
    for first in range(0, DRAWS, chunk):
        drawn = rng.random((min(chunk, DRAWS - first), len(confidence))) < confidence
        errors.append(np.abs((drawn - confidence) @ inside).sum(1))
    return float(np.concatenate(errors).mean() / len(confidence))


def reliability(probabilities: Array, preferences: Array, bins: int = BINS) -> tuple[ReliabilityBin, ...]:
    """Compute the reliability curve: how often the preferred side wins, by confidence, in bins of equal width from 0.5 to 1."""
    confidence, outcome = _folded(probabilities, preferences)
    bin_of, edges = _bin(confidence, bins), np.linspace(0.5, 1, bins + 1)
    made = []
    for number in range(bins):
        inside = bin_of == number
        predicted = float(confidence[inside].mean()) if inside.any() else math.nan
        observed = share_interval(float(outcome[inside].sum()), int(inside.sum()))
        made.append(
            ReliabilityBin(float(edges[number]), float(edges[number + 1]), int(inside.sum()), predicted, observed)
        )
    return tuple(made)


def scores(probabilities: Array, preferences: Array) -> PredictionScores:
    """Compute all scores of the predictions.

    Args:
        probabilities: ``[n]``: predicted probability that the left fragment is preferred.
        preferences: ``[n]``: the answers.

    Raises:
        ValueError: the arrays don't match, or are no probabilities.
    """
    p, y = np.asarray(probabilities, np.float64), np.asarray(preferences, np.float64)
    if p.ndim != 1 or p.shape != y.shape:
        raise ValueError(f"probabilities and preferences must be [n] each; got shapes {p.shape} and {y.shape}.")
    if not ((p >= 0) & (p <= 1) & (y >= 0) & (y <= 1)).all():
        raise ValueError("probabilities and preferences must be between 0 and 1.")
    right = hits(p, y)
    decided = int(np.isfinite(right).sum())
    return PredictionScores(
        answers=len(p),
        decided=decided,
        accuracy=share_interval(float(np.nansum(right)), decided),
        log_likelihood=_mean(log_likelihoods(p, y)),
        brier=_mean(brier_scores(p, y)),
        calibration_error=calibration_error(p, y),
        chance=chance_calibration_error(p),
    )


def scores_by(groups: Sequence[str], probabilities: Array, preferences: Array) -> dict[str, PredictionScores]:
    """Compute the `scores` of each group of answers, for example of each annotator; ``groups`` are ``n`` names."""
    group_of = np.array(groups, dtype=object)
    p, y = np.asarray(probabilities), np.asarray(preferences)
    return {name: scores(p[group_of == name], y[group_of == name]) for name in sorted(set(groups))}


def disagreement_scores(members: Array, preferences: Array) -> DisagreementScores | None:
    """Measure whether members disagree where the ensemble is wrong: what selection by disagreement relies on.

    Args:
        members: ``[members, n]``: each member's probability that the left fragment is preferred.
        preferences: ``[n]``.

    Returns:
        The scores; None with one member or fewer than 4 answers.
    """
    returns = np.asarray(members, np.float64)
    if returns.shape[0] < 2 or returns.shape[1] < 4:
        return None
    spread, error = returns.std(0), brier_scores(returns.mean(0), preferences)
    order = np.argsort(spread, kind="stable")
    half = len(order) // 2
    return DisagreementScores(
        rank_correlation(spread, error), float(error[order[:half]].mean()), float(error[order[half:]].mean())
    )


def _folded(probabilities: Array, preferences: Array) -> tuple[FloatArray, FloatArray]:
    """Return the confidence in the preferred side, and the share of the answer for it; half if no side is preferred."""
    p, y = np.asarray(probabilities, np.float64), np.asarray(preferences, np.float64)
    outcome = np.where(p > 0.5, y, np.where(p < 0.5, 1 - y, 0.5))
    return np.maximum(p, 1 - p), outcome


def _bin(confidence: FloatArray, bins: int) -> IntArray:
    # Decimals such as 0.7 are slightly below their own edge in floating point.
    return np.clip(((confidence - 0.5) * 2 * bins + 1e-9).astype(np.int64), 0, bins - 1)


def _mean(values: FloatArray) -> MeanEstimate:
    return estimate_mean(values) if len(values) else MeanEstimate(math.nan, None, None)
