"""Packs: memory-mapped files of fragments. Each row is checked the first time it is read.

Snapshots: the active comparisons at one moment, with labels in memory and fragments in packs.
"""

from __future__ import annotations

import contextlib
import hashlib
import math
import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.columns import to_array, to_column
from rlhf_ray.data.comparisons import Comparisons, Pairs, Side
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.store.answers import sides_in

COLUMNS = {
    "observations": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "terminated": "terminated",
    "starts": "start",
    "policy_versions": "policy_version",
}
"""The pack's column for each array of `Fragments`."""


class DamagedFragmentError(OSError):
    """A fragment's bytes differ from what was stored. Labels about it are ignored from now on."""


class Rows:
    """Fragments that are, or will be, rows of a pack.

    Attributes:
        ids: ``n`` ids (`Fragments.ids`).
        kind: shapes and dtypes. A pack holds rows of one kind.
        family: kinds that share batches: floats of any width count as one dtype. Batches have the widest.
        checksums: ``[n]`` uint32: CRC-32 of the id and the bytes of all arrays.
        fragments: the fragments.
        arrays: their arrays, by name.
    """

    def __init__(self, ids: Sequence[str], fragments: Fragments, checksums: Array | None = None):
        self.ids = list(ids)
        self.fragments = fragments
        self.arrays = {name: getattr(fragments, name) for name in COLUMNS}
        self.kind = repr([(array.dtype.str, array.shape[1:]) for array in self.arrays.values()])
        self.family = re.sub(r"<f\d", "float", self.kind)
        self.checksums = self.computed(np.arange(len(self.ids))) if checksums is None else checksums

    def computed(self, rows: IntArray) -> Array:
        """Compute the checksums of ``rows`` from their bytes."""
        arrays = [np.ascontiguousarray(array) for array in self.arrays.values()]
        checksums = np.empty(len(rows), dtype=np.uint32)
        for i, row in enumerate(rows):
            checksum = zlib.crc32(self.ids[row].encode())
            for array in arrays:
                checksum = zlib.crc32(array[row], checksum)
            checksums[i] = checksum
        return checksums

    def __getitem__(self, rows: IntArray) -> Rows:
        return Rows([self.ids[row] for row in rows], self.fragments[rows], self.checksums[rows])

    @staticmethod
    def concatenate(parts: Sequence[Rows]) -> Rows:
        """Join the rows of ``parts``, which must share one `kind`."""
        return Rows(
            [name for part in parts for name in part.ids],
            Fragments.concatenate([part.fragments for part in parts]),
            np.concatenate([part.checksums for part in parts]),
        )

    def content(self) -> str:
        """Return the hash in the pack's name: of kind, ids and checksums, and hence of everything in it."""
        head = "|".join([self.kind, *self.ids])
        return hashlib.sha256(head.encode() + self.checksums.tobytes()).hexdigest()[:32]

    def write(self, sink: BinaryIO) -> None:
        """Write the rows as an Arrow IPC file."""
        arrays = {column: self.arrays[name] for name, column in COLUMNS.items()}
        tensors = {name: to_column(array) for name, array in arrays.items()}
        table = pa.table({"clip_id": self.ids, "checksum": self.checksums} | tensors)
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)  # one batch, so that each column is contiguous in the file


class Pack(Rows):
    """A pack file. Its large arrays are views of the memory-mapped file.

    Args:
        name: the file's name.
        file: the memory-mapped file. It gets closed; the views keep the mapping.

    Raises:
        DamagedFragmentError: the file is incomplete, or its ids, checksums or shapes don't match the hash in its name.
    """

    def __init__(self, name: str, file: Any):
        self.name = name
        with file:
            try:
                table = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
                table.validate(full=True)  # a damaged offset could point outside the file
                fragments = Fragments(**{field: to_array(table, column) for field, column in COLUMNS.items()})
                super().__init__(table["clip_id"].to_pylist(), fragments, to_array(table, "checksum"))
                whole = self.content() in name
            except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise DamagedFragmentError(f"Can't read {name}: {error}") from error
        if not whole:
            raise DamagedFragmentError(f"{name} is damaged: its ids and checksums don't match the hash in its name")
        self.sound = False
        """Whether every row has been checked and is intact."""
        self._sound = np.zeros(len(self.ids), dtype=bool)  # rows that match their checksums
        self.damaged = np.zeros(len(self.ids), dtype=bool)
        """``[n]`` bool: the rows found damaged so far."""

    def check(self, rows: IntArray) -> None:
        """Compare the bytes of ``rows`` with their checksums, unless done before.

        Raises:
            DamagedFragmentError: some differ. They are marked in `damaged`.
        """
        if self.sound or self._sound[rows].all():
            return
        new = np.unique(rows[~self._sound[rows]])
        self._sound[new] = self.computed(new) == self.checksums[new]
        self.damaged[new] = ~self._sound[new]
        self.sound = bool(self._sound.all())
        if self.damaged[new].any():
            raise DamagedFragmentError(f"{self.name}: fragment {self.ids[new[self.damaged[new]][0]]} is damaged")

    def intact(self) -> IntArray:
        """Check all rows and return the intact ones."""
        rows = np.arange(len(self.ids))
        with contextlib.suppress(DamagedFragmentError):
            self.check(rows)
        return np.flatnonzero(~self.damaged)


def gather(packs: Sequence[Pack], which: IntArray, rows: IntArray) -> Fragments:
    """Copy fragments from packs: row ``rows[i]`` of pack ``packs[which[i]]`` becomes fragment ``i``.

    Raises:
        DamagedFragmentError: one of them is damaged.
        ValueError: they differ in shape.
    """
    _check(packs, which, rows)
    return Fragments(**_one_by_one(packs, which, rows, COLUMNS))


SMALL = 1024
"""Arrays with at most this many bytes per row are joined in memory: finding small rows in many packs costs more than the copy."""


class Joined:
    """Packs that are gathered from repeatedly. Small arrays are joined in memory; images stay on disk."""

    def __init__(self, packs: Sequence[Pack]):
        self._packs = packs
        self._first = np.cumsum([0, *(len(pack.ids) for pack in packs)])
        self._one_family = len({pack.family for pack in packs}) == 1
        self._sound = False
        self._small: dict[str, Array] = {}
        self._dtypes: dict[str, Any] = {}
        if self._one_family:
            for name, array in packs[0].arrays.items():
                self._dtypes[name] = np.result_type(*(pack.arrays[name].dtype for pack in packs))
                if array.dtype.itemsize * math.prod(array.shape[1:]) <= SMALL:
                    self._small[name] = np.concatenate([pack.arrays[name] for pack in packs])
        self._large = [name for name in COLUMNS if name not in self._small]

    def positions(self, where: IntArray) -> IntArray:
        """Convert ``[…, 2]`` (position of the pack, row in it) to positions in the joined packs."""
        return self._first[where[..., 0]] + where[..., 1]

    def gather(self, positions: IntArray) -> Fragments:
        """Copy the fragments at ``positions``.

        Raises:
            DamagedFragmentError: one of them is damaged.
            ValueError: they differ in shape.
        """
        large: dict[str, Array] = {}
        if self._large or not self._sound:
            which = self._first.searchsorted(positions, "right") - 1
            rows = positions - self._first[which]
            if not self._sound:
                _check(self._packs, which, rows)
                self._sound = self._one_family and all(pack.sound for pack in self._packs)
            large = _one_by_one(self._packs, which, rows, self._large)
            large = {
                name: array.astype(self._dtypes.get(name, array.dtype), copy=False) for name, array in large.items()
            }
        return Fragments(**{name: array.take(positions, 0) for name, array in self._small.items()}, **large)


def _check(packs: Sequence[Pack], which: IntArray, rows: IntArray) -> None:
    used = np.unique(which).tolist()
    families = {packs[number].family for number in used}
    if len(families) != 1:
        raise ValueError(
            f"The store holds fragments of {len(families)} shapes (from several environments or fragment lengths), which can't "
            "share a batch: keep them in separate stores."
        )
    for number in used:
        if not packs[number].sound:
            packs[number].check(rows[which == number])


def _one_by_one(packs: Sequence[Pack], which: IntArray, rows: IntArray, names: Iterable[str]) -> dict[str, Array]:
    places = [
        (packs[number].arrays, slice(row, row + 1)) for number, row in zip(which.tolist(), rows.tolist(), strict=True)
    ]
    return {name: np.concatenate([arrays[name][row] for arrays, row in places]) for name in names}


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
    def sides(self) -> tuple[Side, ...]:
        """The side that each annotator chose, as shown to them, ``n`` of them."""
        return tuple(sides_in(self.labels))

    @cached_property
    def _columns(self) -> tuple[Array, ...]:
        """What `gather` takes rows of: their numbers, ids, annotators, sides and reward versions."""
        texts = (np.array(column, dtype=object) for column in (self.ids, self.annotators, self.sides))
        return np.arange(len(self)), *texts, np.array(self.labels["reward_version"].to_pylist(), dtype=np.int64)

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
        numbers, ids, annotators, sides, versions = self._columns
        rows = numbers[index]
        left, right = (self._fragments.gather(side.take(rows)) for side in self._sides)
        texts = [tuple(column.take(rows).tolist()) for column in (ids, annotators, sides)]
        pairs = Pairs(left, right, texts[0], int(versions.take(rows).max()))
        return Comparisons(pairs, self.preferences.take(rows), *texts[1:])
