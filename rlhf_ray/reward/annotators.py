"""How often each annotator errs: estimated from where their answers and the reward model disagree."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import BoolArray, FloatArray, IntArray

ERRORS, ANSWERS = 1.0, 20.0
"""The prior, Beta(1 + 1, 19 + 1), whose mode is an error rate of 0.05: it counts like 20 answers seen before, one of them wrong."""

PRIOR = ERRORS / ANSWERS
"""The error rate of somebody of whom nothing is known."""

ITERATIONS = 100

TEMPERATURES = np.geomspace(1 / 3, 20, 25)
"""By how much the reward model may be too sure (or not sure enough) of comparisons it has not seen. Taken as it is, what a model
of few comparisons gets wrong would be put down to the annotators."""


def error_rates(differences: FloatArray, unseen: BoolArray, whose: IntArray, annotators: int) -> FloatArray:
    """The probability that each annotator answers the opposite, by expectation maximisation (Dawid and Skene 1979).

    An answer is given with probability ``(1 - ε) s + ε (1 - s)``, where ``s`` is what the members of the ensemble that have not
    seen it think of it: to those that have, every answer looks right. The E step takes from that how probably it is an error,
    the M step averages this over each annotator's answers and the prior.

    Args:
        differences: ``[members, n]``: return of the fragment that was preferred minus that of the other one.
        unseen: ``[members, n]``: whether the member was not fitted to the comparison. Where that is so of none, the comparison
            is left out; where it is so of no comparison at all, every member counts as one that has not seen it.
        whose: ``[n]``: the number of the annotator.
        annotators: how many there are.

    Returns:
        ``[annotators]`` float64, at most 0.5: whoever errs more often than not tells nothing, for all one knows.
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
