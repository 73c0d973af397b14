"""A snapshot: what the store held at one moment, with the labels in memory and the clips still on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.store.clips import Joined, Pack


@dataclass(frozen=True)
class Snapshot:
    """The comparisons that held at one moment, in the order they were stored. Whatever happens to the store, it stays valid.

    Attributes:
        labels: their rows, with the columns `LABELS`.
        packs: where the clips are.
        left, right: ``[n, 2]`` int64: the number of a pack, and the row in it.
        lost: labels that hold too, and are left out because a clip of theirs is missing or damaged.
    """

    labels: pa.Table
    packs: Sequence[Pack]
    left: IntArray
    right: IntArray
    lost: int
    path: Path | str = ""
    """The store's, for errors."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """The ids of the pairs."""
        return tuple(self.labels["pair_id"].to_pylist())

    @cached_property
    def preferences(self) -> FloatArray:
        """``[n]`` float32: the probability that the left clip is better."""
        return np.array(self.labels["preference"].to_pylist(), dtype=np.float32)

    @cached_property
    def annotators(self) -> tuple[str, ...]:
        """Who answered."""
        return tuple(self.labels["annotator"].to_pylist())

    @cached_property
    def _positions(self) -> IntArray:
        return np.arange(len(self))

    @cached_property
    def _clips(self) -> Joined:
        return Joined(self.packs)

    @cached_property
    def _sides(self) -> tuple[IntArray, IntArray]:
        return self._clips.positions(self.left), self._clips.positions(self.right)

    @cached_property
    def _one_kind(self) -> bool:
        used = np.unique(np.concatenate([self.left[:, 0], self.right[:, 0]])).tolist()
        return len({self.packs[number].kind for number in used}) <= 1

    @cached_property
    def _ids(self) -> Array:
        return np.array(self.ids, dtype=object)

    @cached_property
    def _annotators(self) -> Array:
        return np.array(self.annotators, dtype=object)

    @cached_property
    def _reward_versions(self) -> IntArray:
        return np.array(self.labels["reward_version"].to_pylist(), dtype=np.int64)

    def gather(self, index: Array | slice) -> Comparisons:
        """The comparisons at ``index`` (an integer or boolean array, or a slice; at least one). Only their clips are read.

        Raises:
            DamagedClipError: a clip is damaged, which its first reading shows. The store's next snapshot is without it.
            SettingError: the clips that the comparisons hold about are of several lengths or shapes.
        """
        if not self._one_kind:
            raise SettingError(
                f"{self.path} holds clips of several lengths or shapes, which cannot be fitted to together. Take back the merge "
                f"that brought the others: rlhf-ray store undo {self.path}"
            )
        rows = self._positions[index]
        left, right = (self._clips.gather(side.take(rows)) for side in self._sides)
        pairs = Pairs(
            left,
            right,
            tuple(self._ids.take(rows).tolist()),
            int(self._reward_versions.take(rows).max()),
        )
        return Comparisons(pairs, self.preferences.take(rows), tuple(self._annotators.take(rows).tolist()))
