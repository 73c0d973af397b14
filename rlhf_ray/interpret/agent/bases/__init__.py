"""Bases: one file per kind of decomposition, all with the interface of `Basis`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent.bases import ica, mean_difference, nmf, pca, probe, sparse, stored
from rlhf_ray.interpret.agent.bases.basis import Basis
from rlhf_ray.interpret.agent.bases.labels import Labels
from rlhf_ray.interpret.agent.bases.linear import Linear, enough

__all__ = ["KINDS", "LABELLED", "TITLES", "Basis", "Labels", "enough", "fit", "load"]

KINDS: Mapping[str, Callable[..., Basis]] = {
    "pca": pca.fit,
    "ica": ica.fit,
    "nmf": nmf.fit,
    "probe": probe.fit,
    "mean_difference": mean_difference.fit,
    "sparse": sparse.fit,
}
LABELLED = ("probe", "mean_difference")
TITLES = {
    "pca": "principal components",
    "ica": "independent components",
    "nmf": "additive components (NMF)",
    "probe": "probes of concepts",
    "mean_difference": "mean differences of concepts",
    "sparse": "sparse components",
}
"""What a report calls the components of each kind."""
"""Kinds that are fitted to labels, with one component for each concept."""

_LOADERS: Mapping[str, Any] = dict.fromkeys(KINDS, Linear) | {"nmf": nmf.Parts, "sparse": sparse.Sparse}


def fit(kind: str, values: Array, count: int, seed: int = 0, labels: Labels | None = None) -> Basis:
    """Fit a basis.

    Args:
        kind: one of `KINDS`.
        values: ``[n, size]``, finite.
        count: components, at most: there are no more than the values have directions, or ``labels`` has concepts.
        seed: draws what is random.
        labels: for probe and mean_difference: ``[n]`` by concept, bool or numbers, NaN where a concept is not defined.

    Raises:
        SettingError: the kind is unknown, the values aren't finite vectors, or labels are missing.
    """
    if kind not in KINDS:
        raise SettingError(f"There is no basis of kind {kind!r}: choose {', '.join(KINDS)}.")
    rows = np.asarray(values, np.float64)
    if rows.ndim != 2 or not rows.size:
        raise SettingError(f"A basis needs values [n, size], not {list(rows.shape)}: pass one row for each step.")
    if not np.isfinite(rows).all():
        raise SettingError("A basis needs finite values: leave out rows with NaN or infinity.")
    return KINDS[kind](rows, count, seed, labels)


def load(path: Path | str) -> Basis:
    """Load a basis of any kind.

    Raises:
        SettingError: there is no basis, or it is damaged.
    """
    kind, _, _ = stored.read(Path(path))
    if kind not in _LOADERS:
        raise SettingError(f"The basis in {path} is of kind {kind!r}, which this version doesn't know: fit it again.")
    loaded: Basis = _LOADERS[kind].load(Path(path))
    return loaded
