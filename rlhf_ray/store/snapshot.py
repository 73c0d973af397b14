"""A snapshot: the active comparisons at one moment, with labels in memory and fragments on disk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.comparisons import Comparisons, Pairs, Side
from rlhf_ray.data.errors import SettingError
from rlhf_ray.store.answers import sides_in
from rlhf_ray.store.packs import Joined, Pack


@dataclass(frozen=True)
class Snapshot:
    """The active comparisons at one moment, in the order they were stored. Stays valid when the store changes.

    Attributes:
        labels: one row per comparison, with the columns `LABELS`.
        packs: the packs with the fragments.
        left, right: ``[n, 2]`` int64: position of the pack in ``packs``, and the row in it.
        lost: number of active labels left out because a fragment is missing or damaged.
        path: the store's path, for errors.
    """

    labels: pa.Table
    packs: Sequence[Pack]
    left: IntArray
    right: IntArray
    lost: int
    path: Path | str = ""
    """The store's path, for errors."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def ids(self) -> tuple[str, ...]:
        """Ids of the pairs, ``n`` of them."""
        return tuple(self.labels["pair_id"].to_pylist())

    @cached_property
    def preferences(self) -> FloatArray:
        """``[n]`` float32: the probability that the left fragment is better."""
        return np.array(self.labels["preference"].to_pylist(), dtype=np.float32)

    @cached_property
    def annotators(self) -> tuple[str, ...]:
        """Who answered each, ``n`` names."""
        return tuple(self.labels["annotator"].to_pylist())

    @cached_property
    def _positions(self) -> IntArray:
        return np.arange(len(self))

    @cached_property
    def _fragments(self) -> Joined:
        return Joined(self.packs)

    @cached_property
    def _sides(self) -> tuple[IntArray, IntArray]:
        return self._fragments.positions(self.left), self._fragments.positions(self.right)

    @cached_property
    def _one_family(self) -> bool:
        used = np.unique(np.concatenate([self.left[:, 0], self.right[:, 0]])).tolist()
        return len({self.packs[number].family for number in used}) <= 1

    @cached_property
    def _ids(self) -> Array:
        return np.array(self.ids, dtype=object)

    @cached_property
    def _annotators(self) -> Array:
        return np.array(self.annotators, dtype=object)

    @cached_property
    def sides(self) -> tuple[Side, ...]:
        """The side that each annotator chose, as shown to them, ``n`` of them."""
        return tuple(sides_in(self.labels))

    @cached_property
    def _chosen(self) -> Array:
        return np.array(self.sides, dtype=object)

    @cached_property
    def _reward_versions(self) -> IntArray:
        return np.array(self.labels["reward_version"].to_pylist(), dtype=np.int64)

    def gather(self, index: Array | slice) -> Comparisons:
        """Load the comparisons at ``index``. Reads only their fragments.

        Args:
            index: an integer or boolean array, or a slice; must select at least one comparison.

        Raises:
            DamagedFragmentError: a fragment is damaged, found on its first read. The store's next snapshot omits it.
            SettingError: the active comparisons' fragments differ in length, shape or kind of dtype.
        """
        if not self._one_family:
            raise SettingError(
                f"{self.path} holds fragments of several lengths or shapes, which one reward model can't be fitted to. Undo the "
                f"merge that added the others: rlhf-ray store undo {self.path}"
            )
        rows = self._positions[index]
        left, right = (self._fragments.gather(side.take(rows)) for side in self._sides)
        pairs = Pairs(
            left,
            right,
            tuple(self._ids.take(rows).tolist()),
            int(self._reward_versions.take(rows).max()),
        )
        return Comparisons(
            pairs,
            self.preferences.take(rows),
            tuple(self._annotators.take(rows).tolist()),
            tuple(self._chosen.take(rows).tolist()),
        )
