"""UniqueFrames: the images of comparisons, each different one kept once.

Fragments of one rollout overlap, a fragment is in several comparisons, and in many games most frames look alike.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor


class UniqueFrames:
    """Images, of which equal ones share their memory. It has what `StackedComparisons` needs of a tensor ``[n, …]`` of them.

    Args:
        frames: ``[n, 2, length + 1, height, width, channels]``.
    """

    def __init__(self, frames: Tensor):
        self._rows: dict[bytes, int] = {}
        """The row of each different image, by its hash."""
        self._frames = frames.new_empty(0, *frames.shape[3:])
        self._index = torch.empty(0, *frames.shape[1:3], dtype=torch.int32)
        self.extend(frames)

    def __len__(self) -> int:
        return len(self._index)

    @property
    def nbytes(self) -> int:
        """Bytes of the images and of their places."""
        return self._frames.nbytes + self._index.nbytes

    def extend(self, frames: Tensor) -> None:
        """Add images ``[m, 2, length + 1, height, width, channels]``."""
        flat = frames.flatten(0, 2)
        index = np.empty(len(flat), np.int32)
        new: list[int] = []
        for position, frame in enumerate(flat.numpy()):
            row = self._rows.setdefault(hashlib.sha256(np.ascontiguousarray(frame).data).digest(), len(self._rows))
            if row == len(self._frames) + len(new):
                new.append(position)
            index[position] = row
        self._frames = torch.cat([self._frames, flat[new]])
        self._index = torch.cat([self._index, torch.as_tensor(index).view(frames.shape[:3])])

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Return the images of these comparisons, ``[m, 2, length + 1, height, width, channels]``."""
        index = self._index.index_select(dim, rows)
        return self._frames.index_select(0, index.flatten()).view(*index.shape, *self._frames.shape[1:])

    def keep(self, rows: Sequence[int]) -> None:
        """Keep only these comparisons. Images move up in place: they are large."""
        self._index = self._index[list(rows)]
        used, index = torch.unique(self._index, return_inverse=True)
        for to, row in enumerate(used.tolist()):
            if to != row:
                self._frames[to] = self._frames[row]
        place = {row: to for to, row in enumerate(used.tolist())}
        self._rows = {name: place[row] for name, row in self._rows.items() if row in place}
        self._frames, self._index = self._frames[: len(used)], index.to(torch.int32)
