"""Directions: decompositions of vectors of activations, one function each, all `Directions`: encode, decode."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.directions.components import fit_ica, fit_nmf, fit_pca
from rlhf_ray.interpret.directions.directions import Directions, load
from rlhf_ray.interpret.directions.labelled import Labels, fit_probe

__all__ = ["KINDS", "LABELLED", "TITLES", "Directions", "Labels", "fit", "load"]

KINDS: Mapping[str, Callable[..., Directions]] = {"pca": fit_pca, "ica": fit_ica, "nmf": fit_nmf, "probe": fit_probe}
LABELLED = ("probe",)
"""Kinds that are fitted to labels, with one component for each concept."""
TITLES = {
    "pca": "principal components",
    "ica": "independent components",
    "nmf": "additive components (NMF)",
    "probe": "probes of concepts",
}
"""What a report calls the components of each kind."""


def fit(kind: str, values: Array, count: int, seed: int = 0, labels: Labels | None = None) -> Directions:
    """Fit directions.

    Args:
        kind: one of `KINDS`.
        values: ``[n, size]``, finite.
        count: components, at most: there are no more than the values have directions, or ``labels`` has concepts.
        seed: draws what is random.
        labels: for probe: ``[n]`` by concept, bool or numbers, NaN where a concept is not defined.

    Raises:
        SettingError: the kind is unknown, the values aren't finite vectors, or labels are missing.
    """
    if kind not in KINDS:
        raise SettingError(f"There are no directions of kind {kind!r}: choose {', '.join(KINDS)}.")
    rows = np.asarray(values, np.float64)
    if rows.ndim != 2 or not rows.size:
        raise SettingError(f"Directions need values [n, size], not {list(rows.shape)}: pass one row for each step.")
    if not np.isfinite(rows).all():
        raise SettingError("Directions need finite values: leave out rows with NaN or infinity.")
    return KINDS[kind](rows, count, seed, labels)
