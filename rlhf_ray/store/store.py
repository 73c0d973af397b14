"""The store itself: commits, readings and copies."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.store import merges, upkeep, weights
from rlhf_ray.store.clips import DamagedClipError, Rows, gather
from rlhf_ray.store.contents import Contents, log
from rlhf_ray.store.files import Files, LocalFiles, open_files
from rlhf_ray.store.schema import (
    FORMAT,
    LABELS,
    MAJOR,
    MINOR,
    Event,
    holding,
    rows_holding,
    scripted_event_id,
    take,
    touched,
)
from rlhf_ray.store.snapshot import Snapshot

COMPACT_AT = 128
"""Small segments, or small packs, that a commit may leave before it joins them."""


@dataclass(frozen=True)
class Tally:
    """What a store holds, in numbers.

    Attributes:
        last: the number of the last event that is counted.
        held: comparisons that hold.
        ties: how many of them say "equally good".
        by_annotator: how many of them are of each annotator.
    """

    last: int = 0
    held: int = 0
    ties: int = 0
    by_annotator: Mapping[str, int] = field(default_factory=dict)


class PreferenceStore:
    """The preferences in the folder or at the URL ``path``. One process writes, any number read.

    Several writers lose nothing either; only the order of what they write at the same moment is then decided by ids.

    Args:
        path: a folder, or a URL that pyarrow or fsspec knows (``s3://bucket/folder``).
        create: whether to make the store where there is none.

    Raises:
        ValueError: there is no preference store, or one written by another major version.
    """

    def __init__(self, path: Path | str, *, create: bool = True):
        self._files = open_files(path)
        self.path = self._files.root
        self._prepare(create)
        self._settled = False
        self._contents = Contents(self._files)
        self._contents.refresh()

    def __len__(self) -> int:
        """How many comparisons hold."""
        return len(self.snapshot())

    def __bool__(self) -> bool:
        """A store is something, also an empty one. Without this, whoever asks has it read: Ray does, of actors that raised."""
        return True

    @property
    def problems(self) -> list[str]:
        """Damage that was come across so far, here or by the writer that moved it to quarantine. `verify` looks for more."""
        return self._contents.problems()

    def commit(self, comparisons: Comparisons, *, annotator: str, annotator_type: str = "scripted") -> int:
        """Store the answers as those of ``annotator``. When this returns they are on the disk.

        Committing again what ``annotator`` has already answered stores nothing, so that a commit may be repeated.

        Returns:
            How many comparisons were new.

        Raises:
            ValueError: the clips are of another length or shape than those of the comparisons that hold.
            OSError: writing failed. What was stored before is safe, and the commit may be repeated.
        """
        self._begin()
        pairs = comparisons.pairs
        self._check_kind(pairs.left)
        left, right = pairs.left.ids(), pairs.right.ids()
        # All of them: a clip that was lost to damage comes back when its comparison is committed again.
        self._store_clips([left, right], [pairs.left, pairs.right])
        events = [scripted_event_id(pair, annotator) for pair in pairs.ids]
        new = self._new(events)
        columns: dict[str, Any] = {
            "event_id": [events[i] for i in new],
            "kind": ["label"] * len(new),
            "pair_id": [pairs.ids[i] for i in new],
            "left_id": [left[i] for i in new],
            "right_id": [right[i] for i in new],
            "preference": comparisons.preferences[new].astype(np.float32),
            "annotator": [annotator] * len(new),
            "annotator_type": [annotator_type] * len(new),
            "presented_swapped": [False] * len(new),
            "t_answered": [datetime.now(UTC)] * len(new),
            "policy_version": np.maximum(pairs.left.policy_versions, pairs.right.policy_versions)[new],
            "reward_version": [pairs.reward_version] * len(new),
        }
        table = pa.table([columns.get(field.name, pa.nulls(len(new), field.type)) for field in LABELS], schema=LABELS)
        self._append(table)
        return len(new)

    def record(self, events: Sequence[Event], clips: Fragments | None = None) -> int:
        """Store events of any kind. When this returns they are on the disk.

        Args:
            events: in the order in which they count. One whose id is stored already is left out.
            clips: those that the events name, as far as they may not be stored yet.

        Returns:
            How many events were new.

        Raises:
            ValueError: an event is about a clip that is neither stored nor among ``clips``; or these are of another length or
                shape than those of the comparisons that hold.
            OSError: writing failed. What was stored before is safe, and the call may be repeated.
        """
        self._begin()
        names = [] if clips is None else clips.ids()
        there = set(names)
        for event in events:
            for side in (event.left_id, event.right_id):
                if side is not None and side not in there and not self._contents.has_clip(side):
                    raise ValueError(
                        f"event {event.event_id!r}: clip {side} is not stored; hand it over with the event, in clips."
                    )
        new = self._new([event.event_id for event in events])
        table = pa.Table.from_pylist([events[i].row() for i in new], schema=LABELS)
        if clips is not None:
            self._check_kind(clips)
            self._store_clips([names], [clips])
        self._append(table)
        return len(new)

    def snapshot(self, last: int | None = None) -> Snapshot:
        """What holds now, without reading the clips.

        Args:
            last: only so many of the latest comparisons: a training window, for which nothing is deleted.
        """
        self._contents.refresh()
        return self._contents.snapshot(last)

    def load(self, last: int | None = None) -> Comparisons | None:
        """The comparisons that hold, or the ``last`` so many, in the order they were stored; None when there are none.

        Raises:
            ValueError: their clips are of several lengths or shapes; `undo` repairs that.
        """
        while len(snapshot := self.snapshot(last)):
            with contextlib.suppress(DamagedClipError):  # known from now on, so that the next snapshot is without it
                return snapshot.gather(slice(None))
        return None

    def tally(self, until: int | None = None) -> Tally:
        """What holds, in numbers.

        Args:
            until: number of the last event to count; all of them unless given.
        """
        self._contents.refresh()
        events = self._contents.events()
        if until is not None:
            events = events.filter(pyarrow.compute.less_equal(events["sequence"], until))
        snapshot = self._contents.snapshot(rows=rows_holding(events))  # events are in order, so that rows stay the same
        return Tally(
            last=self._contents.last_number if until is None else until,
            held=len(snapshot),
            ties=int((snapshot.preferences == 0.5).sum()),
            by_annotator=dict(Counter(snapshot.annotators)),
        )

    def last_answer(self, pairs: Sequence[str], annotator: str) -> int:
        """The number of the last of the events that are ``annotator``'s scripted answers to ``pairs``; 0 where there is none."""
        self._contents.refresh()
        rows = self._contents.rows()
        wanted = pa.array([scripted_event_id(pair, annotator) for pair in pairs])
        found = rows.filter(pyarrow.compute.is_in(rows["event_id"], value_set=wanted))["sequence"].to_pylist()
        return max(found, default=0)

    def since(self, sequence: int, until: int | None = None) -> Changes:
        """What has become of the comparisons that events after number ``sequence`` are about; of all, with 0.

        A comparison whose clip is missing or damaged is neither among those that hold nor among those withdrawn. An annotator's
        weight is no event: the weights are those of now, whatever ``sequence`` is.

        Args:
            sequence: number of the last event that is known.
            until: number of the last event to look at; all of them unless given.

        Raises:
            ValueError: see `weights` and `load`.
        """
        while True:
            self._contents.refresh()
            rows, events = self._contents.rows(), self._contents.events()
            if until is not None:
                rows, events = (of.filter(pyarrow.compute.less_equal(of["sequence"], until)) for of in (rows, events))
            keys, held = touched(rows, sequence), holding(events)
            snapshot = self._contents.snapshot(
                rows=np.array(sorted(held[key] for key in keys if key in held), np.int64)
            )
            with contextlib.suppress(DamagedClipError):  # see `load`
                return Changes(
                    last=max([sequence, *rows["sequence"].to_pylist()[-1:]]),
                    held=snapshot.gather(slice(None)) if len(snapshot) else None,
                    withdrawn=tuple(key for key in keys if key not in held),
                    weights=self.weights(),
                )

    def weigh(self, annotator: str, weight: float) -> None:
        """Decide what each comparison of ``annotator`` counts from now on: 1 is the rule, 0 leaves them out and deletes nothing.

        Two who decide at the same moment may undo each other.

        Raises:
            ValueError: ``weight`` is no number of 0 or more, or the file that says the weights is damaged.
            OSError: writing failed. What was decided before stands.
        """
        weights.check(annotator, weight)
        weights.write(self._files, self.weights() | {annotator: float(weight)})

    def weights(self) -> dict[str, float]:
        """What a comparison counts of those annotators for whom that was decided (`weigh`); of all others, 1.

        Raises:
            ValueError: the file that says it is damaged.
        """
        return weights.read(self._files)

    def events(self) -> pa.Table:
        """Everything that was recorded and counts, in order, with the columns `LABELS`."""
        self._contents.refresh()
        return self._contents.events()

    def import_from(self, path: Path | str, source: str | None = None) -> int:
        """Add what another store holds and this one lacks, after what is here and in the same order.

        An annotator's weight is taken over where none was decided on here. `undo` takes back what this brought.

        Args:
            path: the other store.
            source: what to call it, for people; its path unless given.

        Returns:
            How many comparisons were new.

        Raises:
            ValueError: there is no store; or its clips are of another length or shape than those here. Nothing was written.
        """
        other, source = PreferenceStore(path, create=False), source or str(path)
        self._begin()
        merges.check_one_kind({str(self.path): self.kinds(), source: other.kinds()})
        before = len(self)
        events = other.events()
        new = take(events, self._new(events["event_id"].to_pylist()))
        wanted = {name for side in ("left_id", "right_id") for name in new[side].to_pylist()}
        for pack in other._contents.packs.values():
            rows = pack[np.array([i for i in pack.intact() if pack.ids[i] in wanted], np.int64)]
            self._store_clips([rows.ids], [rows.fragments])
        mine, theirs = self.weights(), other.weights()
        added = {name: weight for name, weight in theirs.items() if name not in mine}
        if len(new):
            self._append(merges.brought(new, source, added))
        if added:
            weights.write(self._files, mine | added)
        return len(self) - before

    def merges(self) -> list[merges.MergeRecord]:
        """What was taken from other stores and not taken back, the oldest first."""
        self._contents.refresh()
        return merges.merges(self._contents)

    def undo(self) -> str:
        """Take back what does not fit to the rest: clips of another length or shape; else what the latest merge brought.

        Taken back is all that the merge brought, and nothing else: an answer that it withdrew counts again. It may be merged anew.

        Returns:
            What was taken back, in words.

        Raises:
            ValueError: there is nothing to take back.
            OSError: writing failed. The call may be repeated.
        """
        self._begin()
        snapshot, done = self._contents.snapshot(), self.merges()
        if len(merges.kinds(snapshot)) > 1:  # as stores of before version 1.2 may be
            self._append(merges.taken_back(None, merges.foreign(self._contents, snapshot)))
            gone = len(snapshot) - len(self)
            return f"{gone} comparisons of {', '.join(list(merges.kinds(snapshot).values())[1:])}"
        if not done:
            raise ValueError(f"{self.path} remembers no merge that could be undone.")
        last, mine = done[-1], self.weights()
        kept = {name: weight for name, weight in mine.items() if last.weights.get(name) != weight}
        if kept != mine:
            weights.write(self._files, kept)
        self._append(merges.taken_back(last.id, []))
        return f"{last.comparisons} comparisons from {last.source}, merged {last.time:%Y-%m-%d %H:%M} UTC"

    def kinds(self) -> dict[str, str]:
        """The kinds of clips that comparisons hold about, in words; more than one cannot be loaded together."""
        return merges.kinds(self.snapshot())

    def replace_with(self, path: Path | str) -> None:
        """Hold what the store at ``path`` holds, and nothing else.

        What was here is kept beside it: in a folder of this one's name with ``.replaced-1`` (or the next free number) behind.

        Raises:
            ValueError: there is no store at ``path``, or this one is at a URL, where nothing can be put aside in one step.
        """
        other = PreferenceStore(path, create=False)
        if not isinstance(self._files, LocalFiles):
            raise ValueError(f"{self.path} is no folder: a store at a URL cannot take the place of another.")
        root = self._files.root
        aside = (root.with_name(f"{root.name}.replaced-{number}") for number in itertools.count(1))
        # A process killed between its two renames leaves no store here; whoever repeats the call makes it whole.
        with whole_folder(root, keep_old=next(folder for folder in aside if not folder.exists())) as new:
            other.copy_to(new)
        self._settled = False
        self._contents = Contents(self._files)
        self._contents.refresh()

    def copy_to(self, path: Path | str) -> None:
        """Copy the store to ``path``: by hard links where both are on one disk, since files never change."""
        target = open_files(path)
        target.make()
        for _ in range(100):
            labels, clips = self._contents.listing()
            decided = [weights.FILE] if self._files.exists(weights.FILE) else []
            try:
                for name in ["store.json", *decided, *clips, *labels]:
                    _copy(self._files, target, name)
                return
            except FileNotFoundError as error:  # compacted meanwhile
                vanished = error
        raise vanished

    def compact(self) -> None:
        """Join small files into larger ones. May be interrupted anywhere, and runs by itself when there are many."""
        self._begin()
        upkeep.compact(self._contents, 2)

    def verify(self) -> upkeep.Verification:
        """Read everything there is and compare it with its checksums."""
        self._contents = Contents(self._files)  # nothing counts as read before
        found = upkeep.verify(self._contents)
        problems = list(found.problems)
        if len(self.kinds()) > 1:
            problems.append(
                f"clips: comparisons are of several kinds of clips; `rlhf-ray store undo {self.path}` repairs that"
            )
        try:
            self.weights()
        except ValueError as error:
            problems.append(str(error))
        return replace(found, problems=tuple(problems))

    def describe(self) -> dict[str, Any]:
        """What is in the store, in numbers; as JSON takes it."""
        done = [
            {"source": of.source, "time": of.time.isoformat(), "comparisons": of.comparisons} for of in self.merges()
        ]
        return upkeep.describe(self._contents) | {"weights": self.weights(), "merges": done}

    def clips(self, names: Sequence[str | None]) -> tuple[IntArray, Fragments | None]:
        """The clips with these ids, as far as they are stored and intact.

        Returns:
            The positions in ``names`` of those that are, and the clips in that order (None when there are none).
        """
        while True:
            self._contents.refresh()
            where = self._contents.where(names)
            there = np.flatnonzero(where[:, 0] >= 0)
            if len(there) == 0:
                return there, None
            try:
                return there, gather(list(self._contents.packs.values()), *where[there].T)
            except DamagedClipError:  # which is therefore left out the next time
                continue

    def _prepare(self, create: bool) -> None:
        if self._files.exists("store.json"):
            _check_version(self.path, self._files.read("store.json"))
        elif not create:
            raise ValueError(f"{self.path} is no preference store (it has no store.json).")
        else:
            if isinstance(self._files, LocalFiles):
                _claim(self._files.root)
            content = json.dumps({"format": FORMAT, "major": MAJOR, "minor": MINOR}) + "\n"
            self._files.write("store.json", lambda sink: sink.write(content.encode()))
        if create:  # After store.json, so that a process killed here leaves what the next one takes for a store.
            self._files.make()

    def _begin(self) -> None:
        """What every writing begins with."""
        if not self._settled:
            self._files.settle()
            self._settled = True
        self._contents.refresh()
        upkeep.quarantine(self._contents)

    def _check_kind(self, clips: Fragments) -> None:
        """Refuse clips that could not be loaded together with those of the comparisons that hold."""
        given = Rows([], clips[np.arange(0)])
        if all(pack.kind == given.kind for pack in self._contents.packs.values()):
            return
        held = self.kinds()
        if held and given.kind not in held:
            merges.check_one_kind({str(self.path): held, "what is to be stored": {given.kind: merges.in_words(given)}})

    def _new(self, events: list[str]) -> IntArray:
        """The positions of the events that are not stored, the first of those that are there twice."""
        first = {event: i for i, event in reversed(list(enumerate(events)))}
        return np.array(sorted(i for event, i in first.items() if event not in self._contents.event_ids), np.int64)

    def _store_clips(self, names: Sequence[list[str]], clips: Sequence[Fragments]) -> None:
        """Write those of the clips, which have these ids and are of one kind, that are not stored: as one pack."""
        seen, parts = set[str](), []
        for ids, fragments in zip(names, clips, strict=True):
            new = [i for i, name in enumerate(ids) if not (name in seen or self._contents.has_clip(name))]
            first = {ids[i]: i for i in reversed(new)}
            seen.update(first)
            if first:
                parts.append(Rows(list(first), fragments[np.array(list(first.values()))]))
        if parts:
            self._settled = False  # until it is through: a file may have its name without being durable
            upkeep.write_pack(self._contents, Rows.concatenate(parts))
            self._settled = True
            self._contents.refresh()

    def _append(self, table: pa.Table) -> None:
        """Write the events, whose clips are stored, with the next numbers."""
        if len(table) == 0:
            return
        start = self._contents.last_number + 1
        numbers = pa.array(range(start, start + len(table)), pa.int64())
        self._settled = False
        upkeep.write_segment(self._contents, table.set_column(0, "sequence", numbers))
        self._settled = True
        self._contents.refresh()
        try:
            upkeep.compact(self._contents, COMPACT_AT)
        except OSError as error:  # what was to be stored is stored; the next commit tries again
            log.warning("not compacted: %s", error)


def _check_version(path: Path | str, description: bytes) -> None:
    try:
        found = json.loads(description)
        name, major = found["format"], found["major"]
    except (ValueError, KeyError, TypeError) as error:
        expected = json.dumps({"format": FORMAT, "major": MAJOR, "minor": MINOR})
        raise ValueError(f"{path}/store.json is damaged ({error}); it should read {expected}: write that.") from error
    if name != FORMAT or major != MAJOR:
        raise ValueError(
            f"{path} has format {name} {major}; this version reads {FORMAT} {MAJOR}. Use the version that wrote it, or a newer one."
        )


def _claim(folder: Path) -> None:
    """Make the folder for a new store, unless something else is in it."""
    if folder.exists() and any(not file.name.startswith(".tmp-") for file in folder.iterdir()):
        raise ValueError(f"{folder} is not empty and no preference store (it has no store.json); name another folder.")
    folder.mkdir(parents=True, exist_ok=True)


def _copy(source: Files, target: Files, name: str) -> None:
    if isinstance(source, LocalFiles) and isinstance(target, LocalFiles):
        old, new = source.root / name, target.root / name
        if new.exists() and new.samefile(old):
            return
        new.unlink(missing_ok=True)
        try:
            os.link(old, new)
            return
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or one without links
            pass
    content = source.read(name)
    target.write(name, lambda sink: sink.write(content))
