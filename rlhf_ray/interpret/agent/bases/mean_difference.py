"""Mean differences: for each concept, from the mean of the values without it to the mean with it."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.agent.bases.labels import Labels, chosen, classes, rows
from rlhf_ray.interpret.agent.bases.linear import Linear
from rlhf_ray.interpret.agent.bases.probe import midpoints_of

OWN = 0.3
"""Share of its length that a pattern needs outside the span of the others."""


def fit(values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None) -> Linear:
    """Fit one component for each of the first ``count`` concepts (of numbers: above against below the median).

    The pattern is the difference of both means: score 1 more goes from one class to the other. Filters are the pseudo-inverse
    of the patterns: alone, the projection onto the pattern. A concept whose pattern the others (nearly) hold already is left out.

    Raises:
        SettingError: there are no labels.
    """
    center = values.mean(0)
    names: list[str] = []
    patterns = np.zeros((0, values.shape[1]))
    found = chosen(labels, "mean_difference", count)
    for name, each in found.items():
        known, upper = rows(each), classes(each)
        pattern = values[known & upper].mean(0) - values[known & ~upper].mean(0)
        length = float(np.linalg.norm(pattern))
        left = pattern - np.linalg.pinv(patterns) @ (patterns @ pattern) if len(names) else pattern
        if length < 1e-9 or np.linalg.norm(left) < OWN * length:
            continue
        names.append(name)
        patterns = np.vstack([patterns, pattern])
    filters = np.linalg.pinv(patterns).T if names else patterns
    sources = (values - center) @ filters.T
    midpoints = midpoints_of(sources, [found[name] for name in names])
    return Linear("mean_difference", names, center, patterns, filters, sources, midpoints)
