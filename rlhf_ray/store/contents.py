"""The content of a store's files, each read once: the state shared by readers and the writer."""

from __future__ import annotations

import hashlib
import io
import json
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlhf_ray.data.arrays import BoolArray, IntArray
from rlhf_ray.store.files import AMENDMENTS, FOLDERS, LAST, MARKED, WEIGHTS, Files, number_of
from rlhf_ray.store.packs import DamagedFragmentError, Pack, Snapshot
from rlhf_ray.store.schema import (
    ANSWERS,
    amending,
    answered,
    counting,
    in_order,
    keys,
    rows_holding,
    take,
    touches_merges,
    with_columns,
)

log = logging.getLogger("rlhf_ray.store")
_T = TypeVar("_T", pa.Table, Pack)

MARKED_SINCE = 3
"""Minor version of the format since which a new store has a marker."""


@dataclass(frozen=True, order=True)
class Marker:
    """What the store holds at least: the name of the one file in ``last/``, by which a reader notices that other files are gone.

    Attributes:
        last: number of the newest event.
        amendments: number of rows that take back or replace an answer (`amending`).
        weighs: whether weights of annotators were set.
    """

    last: int
    amendments: int
    weighs: bool = False

    def __str__(self) -> str:
        return f"{self.last:012d}-{self.amendments:012d}{'-weights' if self.weighs else ''}"

    @staticmethod
    def newest(names: Iterable[str]) -> Marker | None:
        """Return the newest of the markers with these file names."""
        matches = (MARKED.fullmatch(name.rpartition("/")[2]) for name in names)
        return max((Marker(int(match[1]), int(match[2]), bool(match[3])) for match in matches if match), default=None)


class Contents:
    """The segments and packs of the store in ``files``, as of the last `refresh`; the first one comes with the object.

    Attributes:
        segments: the segments' tables, by file name: those in ``labels/``, and in ``amendments/`` copies of some of their rows.
        packs: the packs, by file name.
        unreadable: damaged files and a description of the damage. They are ignored.
        last_number: the largest sequence number seen.
        marker: the store's marker; None in stores of before format 1.3, or if it was deleted.
        missing: numbers of the events that no readable segment holds, ascending.
        doubt: answers with lower numbers don't count, because a missing event may have taken them back; 0 for none.
        doubtful: ids of these answers.
    """

    def __init__(self, files: Files):
        self.files = files
        self.segments: dict[str, pa.Table] = {}
        self.packs: dict[str, Pack] = {}
        self.unreadable: dict[str, str] = {}
        self.last_number = max((number_of(name) for name in files.list("quarantine")), default=0)
        self.marker: Marker | None = None
        self.missing: IntArray = np.arange(0)
        self.doubt = 0
        self.doubtful: set[str] = set()
        self._numbers: set[int] = set()
        self._looked: tuple[object, ...] = ()
        self._answered: set[tuple[str, str]] | None = None
        self._fragments: dict[str, int] = {}
        """Of each fragment's id, its row in the next."""
        self._places: IntArray = np.full((1, 2), -1)
        """Position of each fragment's pack in `packs`, and row there; the last row is that of the others."""
        self._rows: pa.Table | None = None
        self._events: pa.Table | None = None
        self._active: tuple[IntArray, IntArray, IntArray, int] | None = None
        self._event_ids: set[str] | None = set()
        self.refresh()

    def refresh(self) -> None:
        """Read new files and drop deleted ones."""
        vanished = False
        self.marker = self.read_marker()  # before the events, which are written before it
        for attempt in range(100):
            labels, packs = self.listing()
            vanished |= _drop(self.segments, labels) | _drop(self.packs, packs)
            try:
                # Fragments are written before the labels that refer to them, so they are read after those.
                self._read(self.segments, labels, self._segment)
                self._read(self.packs, packs, self._pack)
                break
            except FileNotFoundError:  # compacted since the listing; the next listing has the replacement
                if attempt == 99:
                    raise
        marked = 0 if self.marker is None else self.marker.last
        self.last_number = max([self.last_number, marked, *map(number_of, (*labels, *packs))])
        self.unreadable = {name: why for name, why in self.unreadable.items() if name in {*labels, *packs}}
        if vanished:
            self._index()
        self._look_for_gaps()

    def rows(self) -> pa.Table:
        """Return all rows in order, including those of merges that were undone."""
        if self._rows is None:
            tables = self.segments.values()
            self._rows = in_order([t.filter(pc.invert(self._in_doubt(t))) if self.doubt else t for t in tables])
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
        rows, left, right, lost = self.stored(rows)
        kept = slice(None if last is None else max(0, len(rows) - last), None)
        return Snapshot(take(self.events(), rows[kept]), packs, left[kept], right[kept], lost, self.files.root)

    def stored(self, rows: IntArray | None = None) -> tuple[IntArray, IntArray, IntArray, int]:
        """Return which of all active labels, or of these ``rows`` of `events`, have both fragments.

        Returns:
            Their rows, ``[n]``; where their left and right fragments are (`where`); and the number of the others.
        """
        if self.damaged_packs():
            self._index()  # drop fragments found damaged since the last time
        if rows is None and self._active is not None:
            return self._active
        held = rows_holding(self.events()) if rows is None else rows
        labels = take(self.events().select(["left_id", "right_id"]), held)
        left, right = (self.where(labels[side].to_pylist()) for side in ("left_id", "right_id"))
        there = np.flatnonzero((left[:, 0] >= 0) & (right[:, 0] >= 0))
        found = held[there], left[there], right[there], len(held) - len(there)
        if rows is None:
            self._active = found
        return found

    def where(self, names: Sequence[str | None]) -> IntArray:
        """Return ``[n, 2]`` int64: each fragment's pack (position in `packs`) and row there; -1 if it is not stored."""
        if self.damaged_packs():
            self._index()  # drop fragments found damaged since the last time
        return self._places[[self._fragments.get(name or "", -1) for name in names]]

    def has_fragment(self, name: str) -> bool:
        """Return whether the fragment is stored and not known to be damaged."""
        return name in self._fragments

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
        return [*self.unreadable.values(), *rows, *self._gaps(), *self._gone(), *moved]

    def read_marker(self) -> Marker | None:
        """Read the marker anew."""
        return Marker.newest(self.files.list(LAST))

    def mark(self, added: int = 0, *, weighs: bool = False) -> None:
        """Renew the marker: after ``added`` rows that take back or replace answers, or after weights were set."""
        marker = self.marker
        if marker is None:  # one of the missing events may have taken an answer back
            count = self._amendments() + bool(len(self.missing))
            marker = Marker(0, count - added, self.files.exists(WEIGHTS))
        self.files.mark(str(Marker(self.last_number, marker.amendments + added, marker.weighs or weighs)))

    def amending(self, rows: pa.Table) -> BoolArray:
        """Find the rows among new ``rows`` that take back or replace an answer (`schema.amending`)."""
        if self._answered is None:
            self._answered = {key for table in self.segments.values() for key in answered(table)}
        return amending(rows, self._answered)

    def incomplete(self) -> dict[str, pa.Table]:
        """Return the rows that take back or replace an answer and are missing in ``labels/`` or in ``amendments/``, by folder."""
        rows, there = self.rows(), {folder: self._keys(folder) for folder in ("labels", AMENDMENTS)}
        amends, names = amending(rows).tolist(), keys(rows)
        absent = {
            AMENDMENTS: [i for i, key in enumerate(names) if amends[i] and key not in there[AMENDMENTS]],
            "labels": [i for i, key in enumerate(names) if key not in there["labels"]],
        }
        return {
            folder: take(rows, np.array(rows_absent, np.int64)) for folder, rows_absent in absent.items() if rows_absent
        }

    def _keys(self, folder: str) -> set[tuple[str, str | None]]:
        """Return the `keys` of the rows in the segments of a folder."""
        return {key for name, segment in self.segments.items() if name.startswith(folder) for key in keys(segment)}

    def _amendments(self) -> int:
        """Count the rows that take back or replace an answer, including those of which only the copy is left."""
        rows, copied = in_order(list(self.segments.values())), self._keys(AMENDMENTS)
        return sum(amends or key in copied for amends, key in zip(amending(rows).tolist(), keys(rows), strict=True))

    def _look_for_gaps(self) -> None:
        """Find the numbers of missing events, and the answers that these may have taken back."""
        state = (len(self._numbers), self.last_number, self.marker, *sorted(self.segments), *sorted(self.unreadable))
        if len(self._numbers) >= self.last_number and not len(self.missing):
            return
        if state == self._looked:
            return
        self._looked, before = state, (self.doubt, self.missing.tolist())
        # Events after the marker may be on their way in.
        put_away = (*self.unreadable, *self.files.list("quarantine"))
        known = self.last_number if self.marker is None else max([self.marker.last, *map(number_of, put_away)])
        self.missing = np.setdiff1d(np.arange(1, known + 1), np.fromiter(self._numbers, np.int64))
        self.doubt, self.doubtful = 0, set()
        if len(self.missing) and (self.marker is None or self._amendments() < self.marker.amendments):
            self.doubt = int(self.missing[-1])
            self.doubtful = {
                event
                for table in self.segments.values()
                for event, gone in zip(table["event_id"].to_pylist(), self._in_doubt(table).to_pylist(), strict=True)
                if gone
            }
        if (self.doubt, self.missing.tolist()) != before:
            self._index()
            for problem in self._gaps():
                log.warning("%s: %s", self.files.root, problem)

    def _in_doubt(self, table: pa.Table) -> pa.Array:
        """Find the answers that don't count because of `doubt`."""
        answers = pc.is_in(table["kind"], value_set=pa.array(ANSWERS))
        return pc.and_(answers, pc.less(table["sequence"], self.doubt))

    def _gaps(self) -> list[str]:
        """Describe the missing events, and what follows from that."""
        missing = self.missing
        parts = np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1) if len(missing) else []
        gaps = [f"labels: events {part[0]} to {part[-1]} are missing" for part in parts]
        if self.doubtful:
            gaps.append(
                f"labels: {len(self.doubtful)} answers before event {self.doubt} don't count, because a missing event may have "
                "taken them back; put an intact copy of the missing file into labels/"
            )
        return gaps

    def _gone(self) -> list[str]:
        """Describe the files that are gone, except those with events."""
        problems = []
        if lost := self.snapshot().lost:
            problems.append(f"labels: {lost} are ignored because a fragment is missing or damaged")
        rows = self.rows()  # those of an undone merge, too
        named = {name for side in ("left_id", "right_id") for name in rows[side].to_pylist() if name is not None}
        if gone := len(named - self._fragments.keys()):
            problems.append(f"clips: {gone} fragments of stored events are missing or damaged")
        if self.marker is not None:  # otherwise there are no copies yet
            for folder, missing in self.incomplete().items():
                other = "labels" if folder == AMENDMENTS else AMENDMENTS
                problems.append(
                    f"{folder}: {len(missing)} events are in {other}/ alone; the next commit writes them here too"
                )
        if self.marker is None and json.loads(self.files.read("store.json")).get("minor", 0) >= MARKED_SINCE:
            problems.append(f"{LAST}: the marker of the newest event is missing; the next commit writes it")
        return problems

    def listing(self) -> tuple[list[str], list[str]]:
        """Return the names of the current segments and packs.

        A compaction that ends during the listing may hide both its output and its deleted input. Hence this lists until
        nothing has vanished since the previous listing.
        """
        before: set[str] | None = None
        while True:
            labels, packs = (self.files.list(folder) for folder in FOLDERS)
            labels += self.files.list(AMENDMENTS)
            if before is not None and before <= {*labels, *packs}:
                return labels, packs
            before = {*labels, *packs}

    def _read(self, known: dict[str, _T], names: list[str], read: Callable[[str], _T]) -> None:
        for name in names:
            if name not in known and name not in self.unreadable:
                try:
                    known[name] = read(name)
                except (DamagedFragmentError, pa.ArrowException, ValueError) as error:
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
        self._numbers.update(table["sequence"].to_pylist())
        if self._answered is not None:
            self._answered |= answered(table)
        self._rows = self._events = self._active = None
        return table

    def _pack(self, name: str) -> Pack:
        pack = Pack(name, self.files.map(name))
        self._note(len(self.packs), pack)
        self._active = None
        return pack

    def _note(self, number: int, pack: Pack) -> None:
        held, new = self._fragments, []
        for row in np.flatnonzero(~pack.damaged).tolist():
            if pack.ids[row] not in held:
                held[pack.ids[row]] = len(held)
                new.append((number, row))
        self._places = np.insert(self._places, -1, np.array(new, np.int64).reshape(-1, 2), 0)

    def _index(self) -> None:
        self._rows = self._events = self._active = self._event_ids = self._answered = None
        self._numbers = {number for table in self.segments.values() for number in table["sequence"].to_pylist()}
        self._fragments, self._places = {}, np.full((1, 2), -1)
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
