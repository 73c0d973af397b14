"""Probes: for each concept, the direction that it is read off with, and how the values change with what is read off."""

from __future__ import annotations

import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.agent.bases.labels import Labels, chosen, classes, rows, yes_no
from rlhf_ray.interpret.agent.bases.linear import Linear

STRENGTH = 1.0
"""Inverse of the L2 penalty of standardised values, for logistic regression; ridge regression has one tenth of a row's weight."""


def fit(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Linear:
    """Fit one component for each of the first ``count`` concepts: logistic regression for yes or no, ridge regression for numbers.

    The filter is the regression's weights, scaled so that scores have unit variance. Patterns are covariance times filter, divided
    by the covariance of the scores (Haufe et al. 2014, equation 6): alone, the covariance of values and score. A concept whose
    filter the others hold already is left out.

    Raises:
        SettingError: there are no labels.
    """
    center = values.mean(0)
    found = {name: direction(values, each) for name, each in chosen(labels, "probe", count).items()}
    return from_filters(
        "probe", values, found, {name: np.asarray(labels[name]) for name in found} if labels else {}, center
    )


def direction(values: FloatArray, labels: Array) -> FloatArray:
    """Return the weights ``[size]`` of a regression of ``labels`` ``[n]`` on ``values`` ``[n, size]``; zeros if nothing varies."""
    known = rows(labels)
    inputs, wanted = values[known], np.asarray(labels, np.float64)[known]
    mean, spread = inputs.mean(0), inputs.std(0)
    varies = spread > 1e-9
    weights = np.zeros(values.shape[1])
    if not varies.any():
        return weights
    standard = (inputs[:, varies] - mean[varies]) / spread[varies]
    if yes_no(labels):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # of classes that can be separated exactly
            model = LogisticRegression(C=STRENGTH, max_iter=100, tol=1e-3, solver="newton-cholesky").fit(
                standard, wanted == 1
            )
        weights[varies] = model.coef_[0] / spread[varies]
    else:
        weights[varies] = Ridge(alpha=0.1 * len(standard) ** 0.5).fit(standard, wanted).coef_ / spread[varies]
    return weights


def from_filters(
    kind: str, values: FloatArray, filters: dict[str, FloatArray], labels: Labels, center: FloatArray
) -> Linear:
    """Return the linear basis with these filters: scaled to unit variance of scores, with Haufe's patterns."""
    centred = values - center
    names: list[str] = []
    kept = np.zeros((0, values.shape[1]))
    sources = np.zeros((len(values), 0))
    for name, weights in filters.items():
        score = centred @ weights
        spread = float(score.std())
        if spread < 1e-9:
            continue
        score = score / spread
        if len(names):
            left = score - sources @ np.linalg.lstsq(sources, score, rcond=None)[0]
            if float((left**2).mean()) < 1e-4:  # the others hold all of it
                continue
        names.append(name)
        kept, sources = np.vstack([kept, weights / spread]), np.column_stack([sources, score])
    # Covariances of n rows: n cancels.
    patterns = np.linalg.solve(sources.T @ sources, sources.T @ centred) if names else kept
    return Linear(kind, names, center, patterns, kept, sources, midpoints_of(sources, [labels[name] for name in names]))


def midpoints_of(sources: FloatArray, labels: list[Array]) -> FloatArray:
    """Return, for each component, the score halfway between the means of both classes of its labels."""
    found = []
    for at, each in enumerate(labels):
        known, upper = rows(each), classes(each)
        found.append(0.5 * (sources[known & upper, at].mean() + sources[known & ~upper, at].mean()))
    return np.array(found, np.float64)
