"""Annotator error rates, estimated from disagreements between their answers and the reward model."""

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


def error_rates(differences: FloatArray, unseen: BoolArray, whose: IntArray, annotators: int) -> FloatArray:
    """Estimate each annotator's error rate by expectation maximisation (Dawid and Skene 1979).

    An annotator gives an answer with probability ``(1 - ε) s + ε (1 - s)``. ``s`` is the probability of that answer under the
    ensemble members that were not fitted to it: for a member that was, every answer looks right. The E step computes the
    probability that an answer is an error; the M step averages it over each annotator's answers and the prior.

    Args:
        differences: ``[members, n]`` float: return of the preferred fragment minus return of the other one.
        unseen: ``[members, n]`` bool: True where the member was not fitted to the comparison. A comparison that every member
            was fitted to is ignored. If all are ignored, every member counts as unseen.
        whose: ``[n]`` int: the index of the annotator.
        annotators: number of annotators.

    Returns:
        ``[annotators]`` float64 in [0, 0.5]: the probability that the annotator answers the opposite. The cap at 0.5 means
        "carries no information".
    """
    if not unseen.any():
        unseen = np.ones_like(unseen)
    judged = unseen.any(0)
    differences, unseen, whose = differences[:, judged].astype(np.float64), unseen[:, judged], whose[judged]
    counts = np.bincount(whose, minlength=annotators) + ANSWERS
    best, rates = -np.inf, np.full(annotators, PRIOR)
    for temperature in TEMPERATURES:
        members = 0.5 + 0.5 * np.tanh(differences / (2 * temperature))
        chances = np.clip(members.mean(0, where=unseen), 1e-6, 1 - 1e-6)
        found = np.full(annotators, PRIOR)
        for _ in range(ITERATIONS):
            wrong = found[whose] * (1 - chances)
            blame = wrong / (wrong + (1 - found[whose]) * chances)
            found = np.minimum(0.5, (np.bincount(whose, blame, minlength=annotators) + ERRORS) / counts)
        fit = float(np.log(found[whose] * (1 - chances) + (1 - found[whose]) * chances).sum())
        if fit > best:
            best, rates = fit, found
    return rates
