"""Directions of concepts, one for each: what a regression reads it off with."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions.directions import Directions
from rlhf_ray.interpret.directions.labels import Labels, classes, rows, usable, yes_no

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
    concepts = _learnable(labels, "probe", count)
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
    middle = midpoints_of(sources, [concepts[name] for name in names])
    return Directions("probe", names, center, patterns, filters, sources, middle)


def direction(values: FloatArray, labels: Array, penalty: float | None = None) -> FloatArray:
    """Return the weights ``[size]`` of a regression of ``labels`` on ``values``; zeros if nothing varies.

    Args:
        values: ``[n, size]``.
        labels: ``[n]``.
        penalty: ridge regression with this penalty of standardised values, also for yes or no; None: logistic regression for these.
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


def midpoints_of(sources: FloatArray, labels: list[Array]) -> FloatArray:
    """Return, for each component, the score halfway between the means of both classes of its labels."""
    midpoints = []
    for number, concept in enumerate(labels):
        known, upper = rows(concept), classes(concept)
        midpoints.append(0.5 * (sources[known & upper, number].mean() + sources[known & ~upper, number].mean()))
    return np.array(midpoints, np.float64)


def _learnable(labels: Labels | None, kind: str, count: int) -> dict[str, FloatArray]:
    """Return the first ``count`` concepts that can be learned.

    Raises:
        SettingError: there are no labels.
    """
    if not labels:
        raise SettingError(
            f"Directions of kind {kind!r} need labels: pass labels={{name: values}}, one for each component."
        )
    good = {name: np.asarray(concept, np.float64) for name, concept in labels.items() if usable(concept)}
    return dict(list(good.items())[:count])
