"""Directions of concepts: what a regression reads them off with. Their labels: yes or no, or numbers; NaN where not defined."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions.directions import Directions

Labels: TypeAlias = Mapping[str, Array]
"""Labels ``[n]`` by concept: bool, or numbers with NaN for unknown."""

FEWEST = 2
"""Rows of each class that a concept needs."""
STRENGTH = 1.0
"""Inverse of the L2 penalty of standardised values, for logistic regression; ridge regression has one tenth of a row's weight."""
LEAST = 1e-3
"""Penalty of least squares: as good as none."""
OWN_VARIANCE = 0.05
"""Share of its variance that a probe's score needs beside the others'."""


def fit_probe(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Directions:
    """Fit one component for each of the first ``count`` concepts by least squares.

    A concept's own direction, held constant, leaves nothing that a linear reader could tell it by (Belrose et al. 2023, LEACE, of
    one label). The filter is the regression's weights, scaled so that scores have unit variance. Patterns are
    covariance times filter, divided
    by the covariance of the scores (Haufe et al. 2014, equation 6): alone, the covariance of values and score. A concept whose
    filter the others (nearly) hold already is left out.

    Raises:
        SettingError: there are no labels.
    """
    if not labels:
        raise SettingError(
            "Directions of kind 'probe' need labels: pass labels={name: values}, one for each component."
        )
    good = {name: np.asarray(concept, np.float64) for name, concept in labels.items() if usable(concept)}
    concepts = dict(list(good.items())[:count])
    center = values.mean(0)
    centred = values - center
    names: list[str] = []
    filters, sources = np.zeros((0, values.shape[1])), np.zeros((len(values), 0))
    for name, concept in concepts.items():
        weights = direction(values, concept, LEAST)
        score = centred @ weights
        spread = float(score.std())
        if spread < 1e-9:
            continue
        score = score / spread
        left = score - sources @ np.linalg.lstsq(sources, score, rcond=None)[0] if names else score
        if float((left**2).mean()) < OWN_VARIANCE:
            continue
        names.append(name)
        filters, sources = np.vstack([filters, weights / spread]), np.column_stack([sources, score])
    # Covariances of n rows: n cancels.
    patterns = np.linalg.solve(sources.T @ sources, sources.T @ centred) if names else filters
    middle = []  # the score halfway between the means of both classes
    for name, scores in zip(names, sources.T, strict=True):
        known, upper = rows(concepts[name]), classes(concepts[name])
        middle.append(0.5 * (scores[known & upper].mean() + scores[known & ~upper].mean()))
    return Directions("probe", names, center, patterns, filters, sources, np.array(middle, np.float64))


def direction(values: FloatArray, labels: Array, penalty: float | None = None) -> FloatArray:
    """Return the weights ``[size]`` of a regression of ``labels`` ``[n]`` on ``values`` ``[n, size]``; zeros if nothing varies.

    ``penalty``: ridge regression with this penalty of standardised values, also for yes or no; None: logistic regression for
    these.
    """
    known = rows(labels)
    inputs, wanted = values[known], np.asarray(labels, np.float64)[known]
    mean, spread = inputs.mean(0), inputs.std(0)
    varies = spread > 1e-9
    weights = np.zeros(values.shape[1])
    if not varies.any():
        return weights
    standard = (inputs[:, varies] - mean[varies]) / spread[varies]
    if penalty is None and yes_no(labels):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of classes that can be separated exactly
            model = LogisticRegression(C=STRENGTH, max_iter=100, tol=1e-3, solver="newton-cholesky").fit(
                standard, wanted == 1
            )
        weights[varies] = model.coef_[0] / spread[varies]
    else:
        alpha = 0.1 * len(standard) ** 0.5 if penalty is None else penalty
        weights[varies] = Ridge(alpha).fit(standard, wanted).coef_ / spread[varies]
    return weights


def yes_no(labels: Array) -> bool:
    """Return whether labels are all 0 or 1 where they are known."""
    known = _known(labels)
    return bool(np.isin(known, (0.0, 1.0)).all())


def usable(labels: Array) -> bool:
    """Return whether there is something to learn: both classes, or numbers that vary."""
    known = _known(labels)
    if yes_no(labels):
        return bool(min((known == 0).sum(), (known == 1).sum()) >= FEWEST)
    return len(known) >= 2 * FEWEST and float(known.std()) > 1e-9 and 0 < int(classes(known).sum()) < len(known)


def classes(labels: Array) -> BoolArray:
    """Return which rows are in the upper class: yes; numbers above the median."""
    numbers = np.asarray(labels, np.float64)
    if yes_no(labels):
        return np.asarray(numbers == 1)
    known = _known(labels)
    middle = float(np.median(known))
    if not (known > middle).any():  # most rows hold the largest number
        return np.asarray(numbers >= middle)
    return np.asarray(numbers > middle)


def rows(labels: Array) -> BoolArray:
    """Return where labels are known."""
    return np.isfinite(np.asarray(labels, np.float64))


def held_out(groups: IntArray, folds: int, rng: np.random.Generator) -> list[tuple[IntArray, IntArray]]:
    """Return, for each fold, rows to fit to and rows of other groups to test on; halves of the rows if there is one group."""
    names = rng.permutation(np.unique(groups))
    if len(names) < 2:
        half = len(groups) // 2
        return [(np.arange(half), np.arange(half, len(groups)))] if half else []
    splits: list[tuple[IntArray, IntArray]] = []
    for part in np.array_split(names, min(folds, len(names))):
        held = np.isin(groups, part)
        splits.append((np.flatnonzero(~held), np.flatnonzero(held)))
    return splits


def _known(labels: Array) -> FloatArray:
    numbers = np.asarray(labels, np.float64)
    return np.asarray(numbers[np.isfinite(numbers)])
