"""The preference store: commits, reads, merges and copies."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.comparisons import Changes, Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.measure.agreement import AnnotatorAgreement
from rlhf_ray.store import merges, upkeep, weights
from rlhf_ray.store.answers import Presses, agreement_in, presses_in
from rlhf_ray.store.contents import Contents, Marker, log
from rlhf_ray.store.files import AMENDMENTS, LAST, LocalFiles, claim, copy_file, open_files
from rlhf_ray.store.packs import DamagedFragmentError, Rows, gather
from rlhf_ray.store.schema import (
    FORMAT,
    LABELS,
    MAJOR,
    MINOR,
    UNDECIDED,
    Event,
    check_version,
    holding,
    rows_holding,
    scripted_event_id,
    take,
    touched,
    undecided,
)
from rlhf_ray.store.snapshot import Snapshot

COMPACT_AT = 128
"""Number of small segments, or small packs, at which a commit compacts them."""


@dataclass(frozen=True)
class Tally:
    """Summary counts of a store.

    Attributes:
        last: sequence number of the last event counted.
        held: number of active comparisons.
        ties: number of those with the answer "equally good".
        by_annotator: number of those per annotator.
        skipped: number of times that an annotator could not decide a pair. A pair that someone postponed at the labelling page,
            and gets again, doesn't count.
    """

    last: int = 0
    held: int = 0
    ties: int = 0
    by_annotator: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0


class PreferenceStore:
    """The preferences in the folder or at the URL ``path``. One process writes, any number read.

    A comparison is *active* when its label was not retracted, superseded or undone: the latest answer of each annotator to each
    pair. Several writers lose no data; ids decide the order of events that they write at the same moment.

    Args:
        path: a folder, or a URL that pyarrow or fsspec supports (``s3://bucket/folder``).
        create: create the store if it doesn't exist.

    Raises:
        ValueError: there is no preference store at ``path``, or another major version wrote it.
        SettingError: neither pyarrow nor fsspec supports the URL.
    """

    def __init__(self, path: Path | str, *, create: bool = True):
        self._files = open_files(path)
        self.path = self._files.root
        self._prepare(create)
        self._settled = False
        self._contents = Contents(self._files)
        self._contents.refresh()

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

    def commit(self, comparisons: Comparisons, *, annotator: str, annotator_type: str = "scripted") -> int:
        """Store the answers as those of ``annotator``. They are on disk when this returns.

        Commits are idempotent: pairs that ``annotator`` has already answered are skipped.

        Args:
            comparisons: the pairs and answers.
            annotator: who answered; one name for all.
            annotator_type: ``scripted``, ``human``, ``import``, …

        Returns:
            The number of new comparisons.

        Raises:
            SettingError: the fragments differ in length, shape or kind of dtype from those of the active comparisons.
            OSError: the write failed. Earlier commits are safe; the commit may be repeated.
        """
        return self._commit(comparisons.pairs, comparisons.preferences, annotator, annotator_type)

    def skip(self, pairs: Pairs, *, annotator: str, annotator_type: str = "scripted") -> int:
        """Store that ``annotator`` could not decide these pairs. They are never trained on.

        Idempotent as `commit`. Returns the number of new skips, and raises the same errors.
        """
        return self._commit(pairs, None, annotator, annotator_type)

    def _commit(self, pairs: Pairs, preferences: FloatArray | None, annotator: str, annotator_type: str) -> int:
        """Store answers, or skips if ``preferences`` is None."""
        self._begin()
        self._check_kind(pairs.left)
        left, right = pairs.left.ids(), pairs.right.ids()
        # All of them: committing a comparison again restores a fragment that was lost to damage.
        self._store_fragments([left, right], [pairs.left, pairs.right])
        events = [scripted_event_id(pair, annotator) for pair in pairs.ids]
        new = self._new(events)
        columns: dict[str, Any] = {
            "event_id": [events[i] for i in new],
            "kind": ["label" if preferences is not None else "skip"] * len(new),
            "pair_id": [pairs.ids[i] for i in new],
            "left_id": [left[i] for i in new],
            "right_id": [right[i] for i in new],
            "annotator": [annotator] * len(new),
            "annotator_type": [annotator_type] * len(new),
            "presented_swapped": [False] * len(new),
            "t_answered": [datetime.now(UTC)] * len(new),
            "policy_version": np.maximum(pairs.left.policy_versions, pairs.right.policy_versions)[new],
            "reward_version": [pairs.reward_version] * len(new),
        }
        if preferences is not None:
            columns["preference"] = preferences[new].astype(np.float32)
        else:
            columns["extra"] = [json.dumps({"answer": UNDECIDED})] * len(new)
        table = pa.table([columns.get(field.name, pa.nulls(len(new), field.type)) for field in LABELS], schema=LABELS)
        self._append(table)
        return len(new)

    def record(self, events: Sequence[Event], fragments: Fragments | None = None) -> int:
        """Store events of any kind. They are on disk when this returns.

        Args:
            events: in the order in which they apply. An event whose id is already stored is skipped.
            fragments: those that the events refer to; may omit those already stored.

        Returns:
            The number of new events.

        Raises:
            ValueError: an event refers to a fragment that is neither stored nor among ``fragments``.
            SettingError: the fragments differ in length, shape or kind of dtype from those of the active comparisons.
            OSError: the write failed. Earlier events are safe; the call may be repeated.
        """
        self._begin()
        names = [] if fragments is None else fragments.ids()
        there = set(names)
        for event in events:
            for side in (event.left_id, event.right_id):
                if side is not None and side not in there and not self._contents.has_fragment(side):
                    raise ValueError(
                        f"event {event.event_id!r}: fragment {side} is not stored; pass it with the event, in fragments."
                    )
        new = self._new([event.event_id for event in events])
        table = pa.Table.from_pylist([events[i].row() for i in new], schema=LABELS)
        if fragments is not None:
            self._check_kind(fragments)
            self._store_fragments([names], [fragments])
        self._append(table)
        return len(new)

    def snapshot(self, last: int | None = None) -> Snapshot:
        """Return the active comparisons as of now, without reading fragments.

        Args:
            last: include only the newest ``last`` comparisons (a training window); all by default. Nothing is deleted.
        """
        self._contents.refresh()
        return self._contents.snapshot(last)

    def load(self, last: int | None = None) -> Comparisons | None:
        """Load the active comparisons in the order they were stored.

        Args:
            last: load only the newest ``last`` comparisons; all by default.

        Returns:
            The comparisons with their fragments, or None if there are none.

        Raises:
            SettingError: the fragments differ in length, shape or kind of dtype; `undo` repairs that.
        """
        while len(snapshot := self.snapshot(last)):
            with contextlib.suppress(DamagedFragmentError):  # the damage is now known: the next snapshot omits it
                return snapshot.gather(slice(None))
        return None

    def tally(self, until: int | None = None) -> Tally:
        """Count the active comparisons.

        Args:
            until: sequence number of the last event to count; all events by default.
        """
        self._contents.refresh()
        events = self._contents.events()
        if until is not None:
            events = events.filter(pyarrow.compute.less_equal(events["sequence"], until))
        snapshot = self._contents.snapshot(rows=rows_holding(events))  # events are in order, so row numbers stay valid
        return Tally(
            last=self._contents.last_number if until is None else until,
            held=len(snapshot),
            ties=int((snapshot.preferences == 0.5).sum()),
            by_annotator=dict(Counter(snapshot.annotators)),
            skipped=undecided(events),
        )

    def last_answer(self, pairs: Sequence[str], annotator: str) -> int:
        """Return the sequence number of ``annotator``'s last scripted answer to any of ``pairs``; 0 if there is none."""
        self._contents.refresh()
        rows = self._contents.rows()
        wanted = pa.array([scripted_event_id(pair, annotator) for pair in pairs])
        sequences = rows.filter(pyarrow.compute.is_in(rows["event_id"], value_set=wanted))["sequence"].to_pylist()
        return max(sequences, default=0)

    def since(self, sequence: int, until: int | None = None) -> Changes:
        """Return what changed after event number ``sequence``; with 0, everything.

        A comparison whose fragment is missing or damaged is neither active nor withdrawn. Annotator weights are not events: the
        result has the current ones, whatever ``sequence`` is.

        Args:
            sequence: sequence number of the last event the caller knows.
            until: sequence number of the last event to consider; all events by default.

        Returns:
            The changed comparisons and the current weights.

        Raises:
            ValueError: see `weights`.
            SettingError: see `load`.
        """
        while True:
            self._contents.refresh()
            rows, events = self._contents.rows(), self._contents.events()
            if until is not None:
                rows, events = (
                    table.filter(pyarrow.compute.less_equal(table["sequence"], until)) for table in (rows, events)
                )
            keys, held = touched(rows, sequence), holding(events)
            snapshot = self._contents.snapshot(
                rows=np.array(sorted(held[key] for key in keys if key in held), np.int64)
            )
            with contextlib.suppress(DamagedFragmentError):  # see `load`
                return Changes(
                    last=max([sequence, *rows["sequence"].to_pylist()[-1:]]),
                    held=snapshot.gather(slice(None)) if len(snapshot) else None,
                    withdrawn=tuple(key for key in keys if key not in held),
                    weights=self.weights(),
                )

    def weigh(self, annotator: str, weight: float) -> None:
        """Set the weight of ``annotator``'s comparisons in the loss: 1 is the default, 0 excludes them. Deletes nothing.

        Of two concurrent calls, one may be lost.

        Args:
            annotator: whose comparisons.
            weight: 0 or more.

        Raises:
            ValueError: ``weight`` is negative or not finite, or the weights file is damaged.
            OSError: the write failed. The earlier weights stay in force.
        """
        weights.check(annotator, weight)
        try:
            known = self.weights()
        except weights.WeightsMissingError:
            known = {}
        self._weigh(known | {annotator: float(weight)})

    def weights(self) -> dict[str, float]:
        """Return the weights that were set with `weigh`, by annotator. All other annotators have weight 1.

        Raises:
            ValueError: the weights file is damaged, or missing although weights were set.
        """
        marker = self._contents.marker
        return weights.read(self._files, were_set=marker is not None and marker.weighs)

    def _weigh(self, all_weights: Mapping[str, float]) -> None:
        """Replace all weights."""
        weights.write(self._files, all_weights)
        self._contents.refresh()
        self._files.make()
        self._contents.mark(weighs=True)

    def events(self) -> pa.Table:
        """Return all events in order, without those that were undone, as a table with the columns `LABELS`."""
        self._contents.refresh()
        return self._contents.events()

    def pairs(self) -> list[tuple[str, str]]:
        """Return the fragment ids of the pairs that were asked about, answered or skipped, also of answers taken back."""
        events = self.events()
        sides = (events[side].to_pylist() for side in ("left_id", "right_id"))
        return [(left, right) for left, right in zip(*sides, strict=True) if left and right]

    def import_from(self, path: Path | str, source: str | None = None) -> int:
        """Merge another store into this one: append the events that this one lacks, in the same order.

        An annotator's weight is copied if none is set here. `undo` reverts the merge.

        Args:
            path: the other store.
            source: its display name in the record of the merge; ``path`` by default.

        Returns:
            The number of new comparisons.

        Raises:
            ValueError: there is no store at ``path``.
            SettingError: its fragments differ in length, shape or kind of dtype from those here. Nothing was written.
        """
        other, source = PreferenceStore(path, create=False), source or str(path)
        self._begin()
        merges.check_one_family({str(self.path): self.families(), source: other.families()})
        before = len(self)
        events = other.events()
        # An answer that may have been taken back here, by an event that is missing, must not come back.
        new = take(events, self._new(events["event_id"].to_pylist(), never=self._contents.doubtful))
        wanted = {name for side in ("left_id", "right_id") for name in new[side].to_pylist()}
        for pack in other._contents.packs.values():
            rows = pack[np.array([i for i in pack.intact() if pack.ids[i] in wanted], np.int64)]
            self._store_fragments([rows.ids], [rows.fragments])
        mine, theirs = self.weights(), other.weights()
        added = {name: weight for name, weight in theirs.items() if name not in mine}
        if len(new):
            self._append(merges.brought(new, source, added))
        if added:
            self._weigh(mine | added)
        return len(self) - before

    def merges(self) -> list[merges.MergeRecord]:
        """Return the merges that were not undone, oldest first."""
        self._contents.refresh()
        return merges.merges(self._contents)

    def undo(self) -> str:
        """Revert the latest merge; or, if the store mixes fragments of several shapes, remove those that differ from the oldest.

        Reverting a merge removes exactly what it added: an answer that it superseded becomes active again. The same store can be
        merged again later.

        Returns:
            A description of what was removed.

        Raises:
            ValueError: there is nothing to revert.
            OSError: the write failed. The call may be repeated.
        """
        self._begin()
        snapshot, done = self._contents.snapshot(), self.merges()
        if len(merges.families(snapshot)) > 1:  # possible in stores from before version 1.2
            self._append(merges.taken_back(None, merges.foreign(self._contents, snapshot)))
            gone = len(snapshot) - len(self)
            return f"{gone} comparisons of {', '.join(list(merges.families(snapshot).values())[1:])}"
        if not done:
            raise ValueError(f"{self.path} has no merge to undo.")
        last, mine = done[-1], self.weights()
        kept = {name: weight for name, weight in mine.items() if last.weights.get(name) != weight}
        if kept != mine:
            self._weigh(kept)
        self._append(merges.taken_back(last.id, []))
        return f"{last.comparisons} comparisons from {last.source}, merged {last.time:%Y-%m-%d %H:%M} UTC"

    def families(self) -> dict[str, str]:
        """Return the kinds (length, shapes, dtypes) of active comparisons' fragments, in words. More than one can't be loaded."""
        return merges.families(self.snapshot())

    def replace_with(self, path: Path | str) -> None:
        """Replace the content of this store with that of the store at ``path``.

        The old content is kept next to it, in a folder of the same name with the suffix ``.replaced-1`` (or the next free number).

        Args:
            path: the other store.

        Raises:
            ValueError: there is no store at ``path``, or this store is at a URL, where it can't be replaced in one step.
        """
        other = PreferenceStore(path, create=False)
        if not isinstance(self._files, LocalFiles):
            raise ValueError(f"{self.path} is a URL; only a store in a folder can be replaced.")
        root = self._files.root
        aside = (root.with_name(f"{root.name}.replaced-{number}") for number in itertools.count(1))
        # A process killed between the two renames leaves no store here; repeating the call completes it.
        with whole_folder(root, keep_old=next(folder for folder in aside if not folder.exists())) as new:
            other.copy_to(new)
        self._settled = False
        self._contents = Contents(self._files)
        self._contents.refresh()

    def copy_to(self, path: Path | str) -> None:
        """Copy the store to ``path``, with hard links if both are on one disk (files are immutable)."""
        target = open_files(path)
        target.make()
        marker = self._contents.read_marker()  # before the events, which are written before it
        for _ in range(100):
            labels, packs = self._contents.listing()
            decided = [weights.FILE] if self._files.exists(weights.FILE) else []
            try:
                for name in ["store.json", *decided, *packs, *labels]:
                    copy_file(self._files, target, name)
                if marker is not None:
                    target.mark(str(marker))
                return
            except FileNotFoundError as error:  # compacted in the meantime
                vanished = error
        raise vanished

    def compact(self) -> None:
        """Join small files into larger ones. Safe to interrupt; commits do it automatically when there are many."""
        self._begin()
        upkeep.compact(self._contents, 2)

    def verify(self) -> upkeep.Verification:
        """Read all files and check them against their checksums."""
        self._contents = Contents(self._files)  # nothing counts as read before
        verification = upkeep.verify(self._contents)
        problems = list(verification.problems)
        if len(self.families()) > 1:
            problems.append(
                f"clips: active comparisons have fragments of several kinds; `rlhf-ray store undo {self.path}` repairs that"
            )
        try:
            self.weights()
        except ValueError as error:
            problems.append(str(error))
        return replace(verification, problems=tuple(problems))

    def describe(self) -> dict[str, Any]:
        """Return summary counts of the store, as JSON values."""
        done = [
            {"source": value.source, "time": value.time.isoformat(), "comparisons": value.comparisons}
            for value in self.merges()
        ]
        return upkeep.describe(self._contents) | {
            "weights": self.weights(),
            "chosen": {name: asdict(value) for name, value in self.presses().items()},
            "agreement": asdict(self.agreement()),
            "merges": done,
        }

    def presses(self) -> dict[str, Presses]:
        """Count, for each annotator of active comparisons, how often they chose the fragment shown left, right, and neither."""
        return presses_in(self.snapshot().labels)

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

    def _prepare(self, create: bool) -> None:
        if self._files.exists("store.json"):
            check_version(self.path, self._files.read("store.json"))
        elif not create:
            raise ValueError(
                f"{self.path} is not a preference store: it has no store.json. A run's is its folder preferences."
            )
        else:
            if isinstance(self._files, LocalFiles):
                claim(self._files.root)
            content = json.dumps({"format": FORMAT, "major": MAJOR, "minor": MINOR}) + "\n"
            self._files.write("store.json", lambda sink: sink.write(content.encode()))
        if create:  # after store.json: a process killed here leaves a folder that the next one accepts as a store
            self._files.make()
            if not any(self._files.list(folder) for folder in (LAST, "labels")):
                self._files.mark(str(Marker(0, 0)))

    def _begin(self) -> None:
        """Prepare for a write: settle the files, refresh, quarantine damage, renew copies and marker."""
        self._files.make()
        renew = not self._settled
        if renew:
            self._files.settle()
            self._settled = True
        self._contents.refresh()
        renew |= bool(self._contents.unreadable)
        upkeep.quarantine(self._contents)
        for folder, rows in self._contents.incomplete().items() if renew else ():
            upkeep.write_segment(self._contents, rows, folder)
            self._contents.refresh()
        if self._contents.marker is None:
            self._contents.mark()

    def _check_kind(self, fragments: Fragments) -> None:
        """Refuse fragments that can't be loaded together with those of the active comparisons."""
        rows = Rows([], fragments[np.arange(0)])
        if all(pack.family == rows.family for pack in self._contents.packs.values()):
            return
        held = self.families()
        if held and rows.family not in held:
            merges.check_one_family({str(self.path): held, "the commit": {rows.family: merges.in_words(rows)}})

    def _new(self, events: list[str], never: Collection[str] = ()) -> IntArray:
        """Return the positions of events that are not stored yet, counting duplicates once, and none of ``never``."""
        first = {event: i for i, event in reversed(list(enumerate(events))) if event not in never}
        return np.array(sorted(i for event, i in first.items() if event not in self._contents.event_ids), np.int64)

    def _store_fragments(self, names: Sequence[list[str]], fragments: Sequence[Fragments]) -> None:
        """Write the fragments (of one kind, with ids ``names``) that are not stored yet, as one pack."""
        seen, parts = set[str](), []
        for ids, some in zip(names, fragments, strict=True):
            new = [i for i, name in enumerate(ids) if not (name in seen or self._contents.has_fragment(name))]
            first = {ids[i]: i for i in reversed(new)}
            seen.update(first)
            if first:
                parts.append(Rows(list(first), some[np.array(list(first.values()))]))
        if parts:
            self._settled = False  # until the write completes: a file may have its name without being durable
            upkeep.write_pack(self._contents, Rows.concatenate(parts))
            self._settled = True
            self._contents.refresh()

    def _append(self, table: pa.Table) -> None:
        """Write the events, whose fragments are stored, with the next sequence numbers."""
        if len(table) == 0:
            return
        start = self._contents.last_number + 1
        numbers = pa.array(range(start, start + len(table)), pa.int64())
        self._settled = False
        table = table.set_column(0, "sequence", numbers)
        amends = self._contents.amending(table)
        upkeep.write_segment(self._contents, table)
        if amends.any():
            upkeep.write_segment(self._contents, table.filter(pa.array(amends)), AMENDMENTS)
        self._settled = True
        self._contents.refresh()
        self._contents.mark(int(amends.sum()))
        try:
            upkeep.compact(self._contents, COMPACT_AT)
        except OSError as error:  # the events are stored; the next commit tries again
            log.warning("Can't compact the store: %s", error)
