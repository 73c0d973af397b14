"""ShownFrames: what people would see of fragments, for a gatherer that looks at them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.labelling.camera import picture
from rlhf_ray.labelling.films import Film, Films, frames_of


class ShownFrames:
    """The frames that people would see of fragments: image observations, or what was filmed.

    Args:
        folder: where films are stored, for a restarted actor or a resumed run; None: in memory only.
    """

    def __init__(self, folder: Path | None = None):
        self._films = Films(folder)

    def put(self, films: Sequence[Film]) -> None:
        """Store films."""
        for made in films:
            self._films.put(made)

    def has(self, pairs: Pairs) -> BoolArray:
        """Return for each pair whether both sides can be seen, ``[n]``: films can be lost with a node."""
        sides = (pairs.left, pairs.right)
        if is_image(pairs.left.observations[0, 0]):
            return np.ones(len(pairs), bool)
        seen: BoolArray = np.all([[name in self._films for name in side.ids()] for side in sides], axis=0)
        return seen

    def __call__(self, fragments: Fragments) -> list[Array]:
        """Return the frames of each fragment, ``[length + 1, height, width, 3]`` uint8."""
        if is_image(fragments.observations[0, 0]):
            return [np.stack([picture(frame) for frame in frames]) for frames in fragments.observations]
        return [frames_of(self._films.film(name)) for name in fragments.ids()]
