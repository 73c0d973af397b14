"""Annotators: error rates and rationality, estimated from disagreements between their answers and the reward model."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray

ERRORS, ANSWERS = 1.0, 20.0
"""The prior, Beta(1 + 1, 19 + 1), with its mode at an error rate of 0.05: it counts like 20 earlier answers, one of them wrong."""

PRIOR = ERRORS / ANSWERS
"""The error rate of an annotator without data."""

ITERATIONS = 100

TEMPERATURES = np.geomspace(1 / 3, 20, 25)
"""Factors by which the reward model may be over- or underconfident on unseen comparisons. Without this scale, the mistakes
of a model fitted to few comparisons would be attributed to the annotators."""

SPREAD = 1.0
"""Prior of an annotator's rationality: its logarithm has this standard deviation around 0."""


def annotator_model(
    differences: FloatArray,
    unseen: BoolArray,
    whose: IntArray,
    annotators: int,
    *,
    errors: bool = True,
    rationality: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """Estimate each annotator's error rate and rationality by expectation maximisation (Dawid and Skene 1979).

    An annotator ``a`` gives an answer with probability ``(1 - ε_a) s + ε_a (1 - s)``, where ``s = sigmoid(β_a d / T)``, ``d`` is
    the return difference in favour of the answer, and ``T`` one temperature for all. ``s`` is averaged over the ensemble members
    that were not fitted to it: for a member that was, every answer looks right. For each ``T / β_a`` on a grid, the E step
    computes the probability that an answer is an error, and the M step averages it over each annotator's answers and the prior.
    The temperature, and with it each β, maximises the likelihood, with a log-normal prior on β.

    Args:
        differences: ``[members, n]`` float: return of the preferred fragment minus return of the other one.
        unseen: ``[members, n]`` bool: True where the member was not fitted to the comparison. A comparison that every member
            was fitted to is ignored. If all are ignored, every member counts as unseen.
        whose: ``[n]`` int: the index of the annotator.
        annotators: number of annotators.
        errors: whether to estimate error rates; otherwise they are 0.
        rationality: whether to estimate rationalities; otherwise they are 1.

    Returns:
        ``[annotators]`` float64 in [0, 0.5]: the probability ε that the annotator answers the opposite; the cap at 0.5 means
        "carries no information". And ``[annotators]`` float64 above 0: β, relative to the typical annotator.
    """
    if not unseen.any():
        unseen = np.ones_like(unseen)
    judged = unseen.any(0)
    differences, unseen, whose = differences[:, judged].astype(np.float64), unseen[:, judged], whose[judged]
    scales = len(TEMPERATURES)
    means = [(0.5 + 0.5 * np.tanh(differences / (2 * of))).mean(0, where=unseen) for of in TEMPERATURES]
    chances = np.clip(means, 1e-6, 1 - 1e-6)
    rates = _error_rates(chances, whose, annotators) if errors else np.zeros((scales, annotators))
    found = rates[:, whose]
    fits = _sums(np.log(found * (1 - chances) + (1 - found) * chances), whose, annotators)
    everyone = np.arange(annotators)
    if not rationality:
        best = np.full(annotators, np.argmax(fits.sum(1)))
        return rates[best, everyone], np.ones(annotators)
    logs = np.log(TEMPERATURES)
    prior = -((logs[:, None] - logs[None]) ** 2) / (2 * SPREAD**2)  # [own temperature, shared temperature]
    total = (fits[:, None] + prior[:, :, None]).max(0).sum(1)
    shared = int(np.argmax(total))
    best = np.argmax(fits + prior[:, shared, None], 0)
    return rates[best, everyone], TEMPERATURES[shared] / TEMPERATURES[best]


def _error_rates(chances: FloatArray, whose: IntArray, annotators: int) -> FloatArray:
    """Estimate error rates ``[scales, annotators]`` from the probabilities ``[scales, n]`` of each answer without errors."""
    counts = np.bincount(whose, minlength=annotators) + ANSWERS
    found = np.full((len(chances), annotators), PRIOR)
    for _ in range(ITERATIONS):
        rates = found[:, whose]
        wrong = rates * (1 - chances)
        blame = wrong / (wrong + (1 - rates) * chances)
        found = np.minimum(0.5, (_sums(blame, whose, annotators) + ERRORS) / counts)
    return found


def _sums(values: FloatArray, whose: IntArray, annotators: int) -> FloatArray:
    """Add up ``[scales, n]`` by annotator: ``[scales, annotators]``."""
    cells = whose + annotators * np.arange(len(values))[:, None]
    sums = np.bincount(cells.ravel(), values.ravel(), minlength=len(values) * annotators)
    return sums.reshape(len(values), annotators).astype(np.float64)
