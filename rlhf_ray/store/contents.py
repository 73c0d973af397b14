"""The content of a store's files, each read once: the state shared by readers and the writer."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.store.clips import DamagedClipError, Pack
from rlhf_ray.store.files import FOLDERS, NUMBERED, Files, number_of
from rlhf_ray.store.schema import counting, in_order, rows_holding, take, touches_merges, with_columns
from rlhf_ray.store.snapshot import Snapshot

log = logging.getLogger("rlhf_ray.store")

_T = TypeVar("_T", pa.Table, Pack)


class Contents:
    """The segments and packs of the store in ``files``, as of the last `refresh`.

    Attributes:
        segments: the segments' tables, by file name.
        packs: the packs, by file name.
        unreadable: damaged files and a description of the damage. They are ignored.
        last_number: the largest sequence number seen.
    """

    def __init__(self, files: Files):
        self.files = files
        self.segments: dict[str, pa.Table] = {}
        self.packs: dict[str, Pack] = {}
        self.unreadable: dict[str, str] = {}
        self.last_number = max((number_of(name) for name in files.list("quarantine")), default=0)
        self._clips: dict[str, tuple[int, int]] = {}
        self._rows: pa.Table | None = None
        self._events: pa.Table | None = None
        self._event_ids: set[str] | None = set()

    def refresh(self) -> None:
        """Read new files and drop deleted ones."""
        vanished = False
        for attempt in range(100):
            labels, clips = self.listing()
            vanished |= _drop(self.segments, labels) | _drop(self.packs, clips)
            try:
                # Fragments are written before the labels that refer to them, so they are read after those.
                self._read(self.segments, labels, self._segment)
                self._read(self.packs, clips, self._pack)
                break
            except FileNotFoundError:  # compacted since the listing; the next listing has the replacement
                if attempt == 99:
                    raise
        # Names are sorted, and their numbers have a fixed width.
        self.last_number = max([self.last_number, *(number_of(names[-1]) for names in (labels, clips) if names)])
        self.unreadable = {name: why for name, why in self.unreadable.items() if name in {*labels, *clips}}
        if vanished:
            self._index()

    def rows(self) -> pa.Table:
        """Return all rows in order, including those of merges that were undone."""
        if self._rows is None:
            self._rows = in_order(list(self.segments.values()))
        return self._rows

    def events(self) -> pa.Table:
        """Return all events in order, each once, without those that were undone."""
        if self._events is None:
            self._events = counting(self.rows())
        return self._events

    @property
    def event_ids(self) -> set[str]:
        """The ids of `events`."""
        if self._event_ids is None:
            self._event_ids = set(self.events()["event_id"].to_pylist())
        return self._event_ids

    def snapshot(self, last: int | None = None, rows: IntArray | None = None) -> Snapshot:
        """Return the active comparisons: all, the newest ``last``, or the labels at these ``rows`` of `events`."""
        packs = list(self.packs.values())
        labels = take(self.events(), rows_holding(self.events()) if rows is None else rows)
        left, right = (self.where(labels[side].to_pylist()) for side in ("left_id", "right_id"))
        there = np.flatnonzero((left[:, 0] >= 0) & (right[:, 0] >= 0))
        kept = there if last is None else there[max(0, len(there) - last) :]
        lost = len(labels) - len(there)
        return Snapshot(take(labels, kept), packs, left[kept], right[kept], lost, self.files.root)

    def where(self, names: Sequence[str | None]) -> IntArray:
        """Return ``[n, 2]`` int64: each fragment's pack (position in `packs`) and row there; -1 if it is not stored."""
        if self.damaged_packs():
            self._index()  # drop fragments found damaged since the last time
        nowhere = (-1, -1)
        found = [nowhere if name is None else self._clips.get(name, nowhere) for name in names]
        return np.array(found, np.int64).reshape(-1, 2)

    def has_clip(self, name: str) -> bool:
        """Return whether the fragment is stored and not known to be damaged."""
        return name in self._clips

    def forget(self, names: Iterable[str]) -> None:
        """Drop these files, so that the next `refresh` reads them again from the origin."""
        for name in names:
            self.files.forget(name)
            self.unreadable.pop(name, None)
            self.segments.pop(name, None)
            self.packs.pop(name, None)
        self._index()

    def damaged_packs(self) -> list[Pack]:
        """Return the packs with fragments known to be damaged."""
        return [pack for pack in self.packs.values() if pack.damaged.any()]

    def problems(self) -> list[str]:
        """Return the known damage, one sentence per problem."""
        rows = [
            f"{name}: fragment {pack.ids[row]} is damaged"
            for name, pack in self.packs.items()
            for row in np.flatnonzero(pack.damaged)
        ]
        moved = [f"{name}: damaged, moved to quarantine" for name in self.files.list("quarantine")]
        return [*self.unreadable.values(), *rows, *moved]

    def listing(self) -> tuple[list[str], list[str]]:
        """Return the names of the current segments and packs.

        A compaction that ends during the listing may hide both its output and its deleted input. Hence this lists until
        nothing has vanished since the previous listing.
        """
        before: set[str] | None = None
        while True:
            labels, clips = (self.files.list(folder) for folder in FOLDERS)
            if before is not None and before <= {*labels, *clips}:
                return list(filter(NUMBERED.search, labels)), list(filter(NUMBERED.search, clips))
            before = {*labels, *clips}

    def _read(self, known: dict[str, _T], names: list[str], read: Callable[[str], _T]) -> None:
        for name in names:
            if name not in known and name not in self.unreadable:
                try:
                    known[name] = read(name)
                except (DamagedClipError, pa.ArrowException, ValueError) as error:
                    self.unreadable[name] = str(error)
                    log.warning("Ignoring a damaged file: %s", error)

    def _segment(self, name: str) -> pa.Table:
        content = self.files.read(name)
        if hash_of(content) not in name:
            raise ValueError(f"{name} is damaged: its content doesn't match the hash in its name")
        # For files this small, threads cost more than they save.
        file = pq.ParquetFile(io.BytesIO(content), page_checksum_verification=True)
        table = with_columns(file.read(use_threads=False))
        if self._event_ids is not None:
            if touches_merges(table):
                self._event_ids = None
            else:
                self._event_ids.update(table["event_id"].to_pylist())
        self._rows = self._events = None
        return table

    def _pack(self, name: str) -> Pack:
        pack = Pack(name, self.files.map(name))
        self._note(len(self.packs), pack)
        return pack

    def _note(self, number: int, pack: Pack) -> None:
        for row, clip in enumerate(pack.ids):
            if not pack.damaged[row]:
                self._clips.setdefault(clip, (number, row))

    def _index(self) -> None:
        self._rows = self._events = self._event_ids = None
        self._clips = {}
        for number, pack in enumerate(self.packs.values()):
            self._note(number, pack)


def _drop(known: dict[str, _T], names: list[str]) -> bool:
    """Drop entries that are not among ``names``. Return whether there were any."""
    gone = known.keys() - names
    for name in gone:
        del known[name]
    return bool(gone)


def hash_of(content: bytes) -> str:
    """Return the hash of a segment's bytes, as its name contains it."""
    return hashlib.sha256(content).hexdigest()[:32]
