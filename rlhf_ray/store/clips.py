"""Packs: files of clips, memory-mapped, whose every row is checked the first time it is read."""

from __future__ import annotations

import contextlib
import hashlib
import zlib
from collections.abc import Sequence
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.ipc

from rlhf_ray.arrays import Array, IntArray
from rlhf_ray.fragments import Fragments

COLUMNS = {
    "observations": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "terminated": "terminated",
    "starts": "start",
    "policy_versions": "policy_version",
}
"""The column of a pack that holds each array of `Fragments`."""


class DamagedClipError(OSError):
    """A clip's bytes are not what was stored. Labels about it are left out from now on."""


class Rows:
    """Clips that are or will be rows of a pack.

    Attributes:
        ids: `Fragments.ids`, ``n`` of them.
        kind: shapes and dtypes; only rows that have them in common go into one pack.
        checksums: ``[n]`` uint32: CRC-32 of the id and the bytes of all arrays.
        fragments: the clips themselves.
        arrays: theirs, by name.
    """

    def __init__(self, ids: Sequence[str], fragments: Fragments, checksums: Array | None = None):
        self.ids = list(ids)
        self.fragments = fragments
        self.arrays = {name: getattr(fragments, name) for name in COLUMNS}
        self.kind = repr([(array.dtype.str, array.shape[1:]) for array in self.arrays.values()])
        self.checksums = self.computed(np.arange(len(self.ids))) if checksums is None else checksums

    def computed(self, rows: IntArray) -> Array:
        """The checksums of ``rows``, from their bytes."""
        arrays = [np.ascontiguousarray(array) for array in self.arrays.values()]
        found = np.empty(len(rows), dtype=np.uint32)
        for i, row in enumerate(rows):
            checksum = zlib.crc32(self.ids[row].encode())
            for array in arrays:
                checksum = zlib.crc32(array[row], checksum)
            found[i] = checksum
        return found

    def __getitem__(self, rows: IntArray) -> Rows:
        return Rows([self.ids[row] for row in rows], self.fragments[rows], self.checksums[rows])

    @staticmethod
    def concatenate(parts: Sequence[Rows]) -> Rows:
        """All rows of ``parts``, which are of one `kind`."""
        return Rows(
            [name for part in parts for name in part.ids],
            Fragments.concatenate([part.fragments for part in parts]),
            np.concatenate([part.checksums for part in parts]),
        )

    def content(self) -> str:
        """What a pack of these rows has in its name: a hash of kind, ids and checksums, and so of all that matters in it."""
        head = "|".join([self.kind, *self.ids])
        return hashlib.sha256(head.encode() + self.checksums.tobytes()).hexdigest()[:32]

    def write(self, sink: BinaryIO) -> None:
        """Write the rows as an Arrow IPC file."""
        arrays = {column: self.arrays[name] for name, column in COLUMNS.items()}
        tensors = {name: _tensors(array) if array.ndim > 1 else array for name, array in arrays.items()}
        table = pa.table({"clip_id": self.ids, "checksum": self.checksums} | tensors)
        with pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)  # one batch, so that each column is one piece of the file


class Pack(Rows):
    """The pack in a file; its large arrays are views of the memory-mapped file.

    Args:
        name: of the file.
        file: the memory-mapped file. It is closed; the views keep the mapping.

    Raises:
        DamagedClipError: the file is torn, or its ids, checksums or shape are not those it was written with.
    """

    def __init__(self, name: str, file: Any):
        self.name = name
        with file:
            try:
                table = pa.ipc.open_file(file, options=pa.ipc.IpcReadOptions(use_threads=False)).read_all()
                table.validate(full=True)  # or a damaged offset could be followed out of the file
                fragments = Fragments(**{field: _array(table, column) for field, column in COLUMNS.items()})
                super().__init__(table["clip_id"].to_pylist(), fragments, _array(table, "checksum"))
                whole = self.content() in name
            except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                raise DamagedClipError(f"{name} cannot be read: {error}") from error
        if not whole:
            raise DamagedClipError(f"{name} is damaged: its ids and checksums are not those it was named after")
        self._sound = np.zeros(len(self.ids), dtype=bool)  # rows that were compared with their checksums
        self._all_sound = False
        self.damaged = np.zeros(len(self.ids), dtype=bool)
        """``[n]`` bool: the rows that were found to be damaged so far."""

    def check(self, rows: IntArray) -> None:
        """Compare the bytes of ``rows`` with their checksums, unless that was done before.

        Raises:
            DamagedClipError: some differ. They are marked in `damaged`.
        """
        if self._all_sound or self._sound[rows].all():
            return
        new = np.unique(rows[~self._sound[rows]])
        self._sound[new] = self.computed(new) == self.checksums[new]
        self.damaged[new] = ~self._sound[new]
        self._all_sound = bool(self._sound.all())
        if self.damaged[new].any():
            raise DamagedClipError(f"{self.name}: clip {self.ids[new[self.damaged[new]][0]]} is damaged")

    def intact(self) -> IntArray:
        """The rows that are as they were written, after a look at all of them."""
        rows = np.arange(len(self.ids))
        with contextlib.suppress(DamagedClipError):
            self.check(rows)
        return np.flatnonzero(~self.damaged)


def gather(packs: Sequence[Pack], which: IntArray, rows: IntArray) -> list[Fragments]:
    """Clip ``rows[i, j]`` of pack ``packs[which[i, j]]`` as clip ``j`` of batch ``i``, copied.

    Batches have arrays of their own, or both sides of a minibatch of images would outgrow what malloc gives out again.

    Raises:
        DamagedClipError: one of them is damaged.
        ValueError: they are not all of one shape.
    """
    counts = np.bincount(which.ravel())
    used = counts.nonzero()[0].tolist()
    kinds = {packs[number].kind for number in used}
    if len(kinds) != 1:
        raise ValueError(
            f"The store holds clips of {len(kinds)} shapes (of several environments or fragment lengths), which cannot "
            "be in one batch: keep them in stores of their own."
        )
    arrays = packs[used[0]].arrays
    if len(used) == 1:
        packs[used[0]].check(rows.ravel())
        return [Fragments(**{name: array.take(batch, 0) for name, array in arrays.items()}) for batch in rows]
    order = which.ravel().argsort(kind="stable")
    ends, in_order = counts.cumsum()[used].tolist(), rows.ravel()[order]
    parts = [(packs[number], in_order[start:end]) for number, start, end in zip(used, [0, *ends], ends, strict=False)]
    for pack, here in parts:
        pack.check(here)
    few = rows.size < FEW * len(used)
    back = order.argsort().reshape(rows.shape)
    columns: dict[str, list[Array] | Array] = {}
    clips = [
        [(packs[number].arrays, slice(row, row + 1)) for number, row in zip(*batch, strict=True)]
        for batch in zip(which.tolist(), rows.tolist(), strict=True)
    ]
    for name, array in arrays.items():
        if few or array[0].nbytes > LARGE:
            columns[name] = [np.concatenate([of[name][row] for of, row in batch]) for batch in clips]
        else:
            columns[name] = np.concatenate([pack.arrays[name].take(here, 0) for pack, here in parts]).take(back, 0)
    return [Fragments(**{name: column[i] for name, column in columns.items()}) for i in range(len(rows))]


FEW, LARGE = 8, 4096
"""Rows of a pack below which, and bytes of a row above which, going through them one by one is quicker than copying twice."""


def _tensors(values: Array) -> pa.Array:
    """``[n, …]`` as ``n`` fixed-shape tensors."""
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))


def _array(table: pa.Table, name: str) -> Array:
    column = table[name]
    if column.num_chunks != 1:
        raise ValueError(f"column {name} is in {column.num_chunks} pieces")
    chunk = column.chunk(0)
    if chunk.null_count:
        raise ValueError(f"column {name} has nulls")
    if isinstance(chunk.type, pa.FixedShapeTensorType):
        tensors: Array = chunk.to_numpy_ndarray()
        return tensors
    # Its to_numpy() would import pandas, which takes longer than reading a store.
    content = np.frombuffer(chunk.buffers()[1], np.uint8)
    if pa.types.is_boolean(chunk.type):
        return np.unpackbits(content, count=len(chunk), bitorder="little").astype(bool)
    values: Array = content.view(chunk.type.to_pandas_dtype())
    return values[: len(chunk)]
