"""Reads a preference store: active comparisons, changes, counts, weights, events, damage."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.measure.agreement import AnnotatorAgreement
from rlhf_ray.store import merges
from rlhf_ray.store.answers import Presses, agreement_in, count_presses
from rlhf_ray.store.contents import Contents
from rlhf_ray.store.files import FOLDERS, Files, read_weights
from rlhf_ray.store.packs import DamagedFragmentError, Snapshot, gather
from rlhf_ray.store.schema import (
    FORMAT,
    MAJOR,
    MINOR,
    holding,
    rows_holding,
    scripted_event_id,
    take,
    touched,
    undecided,
)


@dataclass(frozen=True)
class Tally:
    """Summary counts of a store.

    Attributes:
        last: sequence number of the last event counted.
        comparisons: number of active comparisons.
        ties: number of those with the answer "equally good".
        by_annotator: number of those per annotator.
        skipped: number of times that an annotator could not decide a pair. A pair that someone postponed at the labelling page,
            and gets again, doesn't count.
    """

    last: int = 0
    comparisons: int = 0
    ties: int = 0
    by_annotator: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0


@dataclass(frozen=True)
class Verification:
    """The result of `StoreReader.verify`.

    Attributes:
        problems: one sentence per problem, starting with the file.
        events: number of events.
        comparisons: number of active comparisons.
        fragments: number of fragments.
    """

    problems: tuple[str, ...]
    events: int
    comparisons: int
    fragments: int


def _until(table: pa.Table, until: int | None) -> pa.Table:
    """Return the rows, which are in order, up to event number ``until``; by default, all."""
    numbers = table["sequence"]
    if until is None or not len(numbers) or numbers[-1].as_py() <= until:
        return table
    return table.filter(pyarrow.compute.less_equal(numbers, until))


class StoreReader:
    """The reading half of `rlhf_ray.store.PreferenceStore`."""

    path: Path | str
    _files: Files
    _contents: Contents

    def __len__(self) -> int:
        """Return the number of active comparisons."""
        return len(self.snapshot())

    def __bool__(self) -> bool:
        """Return True, also for an empty store. Without this, truth tests (Ray's, of actors that raised) would read the store."""
        return True

    @property
    def problems(self) -> list[str]:
        """Damage found so far, by this object or by the writer that quarantined it, and files that are gone.

        `verify` looks for more.
        """
        problems = self._contents.problems()
        try:
            self.weights()
        except ValueError as error:
            problems.append(str(error))
        return problems

    def snapshot(self, last: int | None = None) -> Snapshot:
        """Return the active comparisons as of now, without reading fragments.

        Args:
            last: include only the newest ``last`` comparisons (a training window); all by default. Nothing is deleted.
        """
        self._contents.refresh()
        return self._contents.snapshot(last)

    def load(self, last: int | None = None) -> Comparisons | None:
        """Load the active comparisons, or the newest ``last`` of them, in the order they were stored; None if there are none.

        Raises:
            SettingError: the fragments differ in length, shape or kind of dtype; `undo` repairs that.
        """
        while len(snapshot := self.snapshot(last)):
            with contextlib.suppress(DamagedFragmentError):  # the damage is now known: the next snapshot omits it
                return snapshot.gather(slice(None))
        return None

    def tally(self, until: int | None = None) -> Tally:
        """Count the active comparisons as of the event with the sequence number ``until``; by default, as of now."""
        self._contents.refresh()
        events = self._contents.events()
        earlier = _until(events, until)
        # Events are in order, so row numbers stay valid.
        rows, *_ = self._contents.stored(None if earlier is events else rows_holding(earlier))
        labels = take(events.select(["preference", "annotator"]), rows)
        return Tally(
            last=self._contents.last_number if until is None else until,
            comparisons=len(rows),
            ties=labels["preference"].to_pylist().count(0.5),
            by_annotator=dict(Counter(labels["annotator"].to_pylist())),
            skipped=undecided(earlier),
        )

    def last_answer(self, pairs: Sequence[str], annotator: str) -> int:
        """Return the sequence number of ``annotator``'s last scripted answer to any of ``pairs``; 0 if there is none."""
        self._contents.refresh()
        rows = self._contents.rows().select(["event_id", "sequence"])
        wanted = pa.array([scripted_event_id(pair, annotator) for pair in pairs])
        sequences = rows.filter(pyarrow.compute.is_in(rows["event_id"], value_set=wanted))["sequence"].to_pylist()
        return max(sequences, default=0)

    def since(self, sequence: int, until: int | None = None) -> Changes:
        """Return what changed after event number ``sequence``; with 0, everything.

        A comparison whose fragment is missing or damaged is neither active nor withdrawn. Annotator weights are not events: the
        result has the current ones, whatever ``sequence`` is.

        Args:
            sequence: of the last event the caller knows.
            until: of the last event to consider; all events by default.

        Raises:
            ValueError: see `weights`.
            SettingError: see `load`.
        """
        while True:
            self._contents.refresh()
            rows, events = (_until(table, until) for table in (self._contents.rows(), self._contents.events()))
            keys = touched(rows, sequence)
            held = holding(events, {pair for pair, _ in keys})
            snapshot = self._contents.snapshot(
                rows=np.array(sorted(held[key] for key in keys if key in held), np.int64)
            )
            with contextlib.suppress(DamagedFragmentError):  # see `load`
                return Changes(
                    last=max([sequence, *rows["sequence"][-1:].to_pylist()]),
                    comparisons=snapshot.gather(slice(None)) if len(snapshot) else None,
                    withdrawn=tuple(key for key in keys if key not in held),
                    weights=self.weights(),
                )

    def weights(self) -> dict[str, float]:
        """Return the weights that were set with `weigh`, by annotator. All other annotators have weight 1.

        Raises:
            ValueError: the weights file is damaged, or missing although weights were set.
        """
        marker = self._contents.marker
        return read_weights(self._files, were_set=marker is not None and marker.weighs)

    def events(self) -> pa.Table:
        """Return all events in order, without those that were undone, as a table with the columns `LABELS`."""
        self._contents.refresh()
        return self._contents.events()

    def pairs(self) -> list[tuple[str, str]]:
        """Return the fragment ids of the pairs that were asked about, answered or skipped, also of answers taken back."""
        events = self.events()
        sides = (events[side].to_pylist() for side in ("left_id", "right_id"))
        return [(left, right) for left, right in zip(*sides, strict=True) if left and right]

    def merges(self) -> list[merges.MergeRecord]:
        """Return the merges that were not undone, oldest first."""
        self._contents.refresh()
        return merges.merges(self._contents)

    def families(self) -> dict[str, str]:
        """Return the kinds (length, shapes, dtypes) of active comparisons' fragments, in words. More than one can't be loaded."""
        return merges.families(self.snapshot())

    def verify(self) -> Verification:
        """Read everything; check every segment against its hash and every fragment against its checksum and id."""
        self._contents = contents = Contents(self._files)  # nothing counts as read before
        problems = [
            f"{name}: fragment {pack.ids[row]} doesn't match its id"
            for name, pack in contents.packs.items()
            for row in pack.intact()
            if pack.fragments[row : row + 1].ids() != [pack.ids[row]]
        ]
        problems += self.problems
        if len(self.families()) > 1:
            problems.append(
                f"clips: active comparisons have fragments of several kinds; `rlhf-ray store undo {self.path}` repairs that"
            )
        return Verification(tuple(problems), len(contents.events()), len(contents.snapshot()), self._count_fragments())

    def describe(self) -> dict[str, Any]:
        """Return summary counts of the store, as JSON values."""
        snapshot, events, files = self.snapshot(), self._contents.events(), self._files
        times = [time for time in events["t_answered"].to_pylist() if time is not None]
        packs = self._contents.packs.values()
        return {
            "format": f"{FORMAT} {MAJOR}.{MINOR}",
            "comparisons": len(snapshot),
            "lost": snapshot.lost,
            "events": len(events),
            "kinds": dict(Counter(events["kind"].to_pylist())),
            "annotators": dict(Counter(snapshot.annotators)),
            "ties": snapshot.sides.count("equal"),
            "answered": [min(times).isoformat(), max(times).isoformat()] if times else [],
            "clips": self._count_fragments(),
            "clip_shapes": sorted({str(pack.fragments.observations.shape[1:]) for pack in packs}),
            "files": {folder: len(files.list(folder)) for folder in (*FOLDERS, "quarantine")},
            "bytes": {folder: sum(map(files.size, files.list(folder))) for folder in FOLDERS},
            "weights": self.weights(),
            "chosen": {name: asdict(value) for name, value in self.presses().items()},
            "agreement": asdict(self.agreement()),
            "merges": [
                {"source": value.source, "time": value.time.isoformat(), "comparisons": value.comparisons}
                for value in self.merges()
            ],
        }

    def _count_fragments(self) -> int:
        return len({name for pack in self._contents.packs.values() for name in pack.ids})

    def presses(self) -> dict[str, Presses]:
        """Count, for each annotator of active comparisons, how often they chose the fragment shown left, right, and neither."""
        snapshot = self.snapshot()
        return count_presses(zip(snapshot.annotators, snapshot.sides, strict=True))

    def agreement(self) -> AnnotatorAgreement:
        """Measure how far people agree about pairs that several of them answered; see `rlhf_ray.store.answers.agreement_in`."""
        return agreement_in(self.events(), self.weights())

    def fragments(self, names: Sequence[str | None]) -> tuple[IntArray, Fragments | None]:
        """Load the fragments with these ids that are stored and intact.

        Args:
            names: fragment ids; None is skipped.

        Returns:
            The positions in ``names`` of the fragments found, ``[m]`` int64, and the fragments in that order (None if ``m`` is 0).
        """
        while True:
            self._contents.refresh()
            where = self._contents.where(names)
            there = np.flatnonzero(where[:, 0] >= 0)
            if len(there) == 0:
                return there, None
            try:
                return there, gather(list(self._contents.packs.values()), *where[there].T)
            except DamagedFragmentError:  # now marked as damaged: the next round skips it
                continue
