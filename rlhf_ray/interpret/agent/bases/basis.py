"""Basis: directions in a space of activations, with the two vectors that belong to each: its pattern and its filter."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, Self

from rlhf_ray.data.arrays import FloatArray


class Basis(Protocol):
    """``k`` components of vectors of length ``size``. All arrays are float64.

    A component has two vectors (Haufe et al. 2014), which differ unless components are orthogonal:

    * the *pattern* ``[size]`` (column of the mixing matrix): how the vector changes when the score grows by 1. Interventions move
      the activations along it.
    * the *filter* ``[size]`` (row of the unmixing matrix): how the score is read off the vector.

    For linear bases ``transform(inverse(scores)) == scores`` and ``filters @ patterns.T`` is the identity.

    Attributes:
        kind: pca, ica, nmf, probe, mean_difference or sparse.
        names: of the components.
        center: ``[size]``: what has all scores 0.
        means: ``[k]``: mean score of the values that the basis was fitted to.
        midpoints: ``[k]``: score halfway between both classes; without labels, halfway between the 5 % and the 95 % quantile.
    """

    @property
    def kind(self) -> str: ...  # noqa: D102

    @property
    def names(self) -> Sequence[str]: ...  # noqa: D102

    @property
    def center(self) -> FloatArray: ...  # noqa: D102

    @property
    def means(self) -> FloatArray: ...  # noqa: D102

    @property
    def midpoints(self) -> FloatArray: ...  # noqa: D102

    def __len__(self) -> int:
        """Return ``k``."""
        ...

    def transform(self, values: FloatArray) -> FloatArray:
        """Return the scores ``[n, k]`` of ``values`` ``[n, size]``."""
        ...

    def inverse(self, scores: FloatArray) -> FloatArray:
        """Return the values ``[n, size]`` that scores ``[n, k]`` stand for."""
        ...

    @property
    def patterns(self) -> FloatArray:
        """``[k, size]``."""
        ...

    @property
    def filters(self) -> FloatArray:
        """``[k, size]``; for components that are not linear, the filter around `center`."""
        ...

    def gradient(self, gradients: FloatArray) -> FloatArray:
        """Convert gradients ``[n, size]`` by the values to gradients ``[n, k]`` by the scores: ``gradients @ patterns.T``."""
        ...

    def save(self, path: Path) -> None:
        """Write the basis to one ``.npz`` file, without pickle."""
        ...

    @classmethod
    def load(cls, path: Path) -> Self:
        """Read what `save` wrote."""
        ...
