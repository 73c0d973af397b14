"""The preference store: commits, merges and copies; what it reads is in `rlhf_ray.store.reading`."""

from __future__ import annotations

import itertools
import json
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.store import merges, writing
from rlhf_ray.store.contents import Contents, Marker, log
from rlhf_ray.store.files import (
    AMENDMENTS,
    LAST,
    WEIGHTS,
    LocalFiles,
    check_weight,
    claim,
    copy_file,
    open_files,
    write_weights,
)
from rlhf_ray.store.packs import Rows
from rlhf_ray.store.reading import StoreReader
from rlhf_ray.store.schema import (
    ANSWERS,
    FORMAT,
    LABELS,
    MAJOR,
    MINOR,
    UNDECIDED,
    Event,
    check_version,
    scripted_event_id,
    take,
)

COMPACT_AT = 128
"""Number of small segments, or small packs, at which a commit compacts them."""
ITSELF = "Left out %d comparisons of a fragment with itself."


class PreferenceStore(StoreReader):
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

    def commit(self, comparisons: Comparisons, *, annotator: str, annotator_type: str = "scripted") -> int:
        """Store the answers as those of ``annotator``. They are on disk when this returns.

        Commits are idempotent: pairs that ``annotator`` has already answered are skipped. A fragment compared with itself is left
        out; how many are is logged.

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
        differ = np.array([one != other for one, other in zip(left, right, strict=True)], bool)
        if not differ.all():
            log.warning(ITSELF, int((~differ).sum()))
            if not differ.any():
                return 0
            return self._commit(
                pairs[differ], None if preferences is None else preferences[differ], annotator, annotator_type
            )
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
        itself = sum(events[i].kind in ANSWERS and events[i].left_id == events[i].right_id for i in new)
        if itself:  # stored, as all that was received, but never active: see `holding`
            log.warning(ITSELF, itself)
        table = pa.Table.from_pylist([events[i].row() for i in new], schema=LABELS)
        if fragments is not None:
            self._check_kind(fragments)
            self._store_fragments([names], [fragments])
        self._append(table)
        return len(new)

    def weigh(self, annotator: str, weight: float) -> None:
        """Set the weight of ``annotator``'s comparisons in the loss: 1 is the default, 0 excludes them. Deletes nothing.

        Of two concurrent calls, one may be lost.

        Raises:
            ValueError: ``weight`` is negative or not finite, or the weights file is damaged.
            OSError: the write failed. The earlier weights stay in force.
        """
        check_weight(annotator, weight)
        known = self.weights() if self._files.exists(WEIGHTS) else {}
        self._weigh(known | {annotator: float(weight)})

    def _weigh(self, all_weights: Mapping[str, float]) -> None:
        """Replace all weights."""
        write_weights(self._files, all_weights)
        self._contents.refresh()
        self._files.make()
        self._contents.mark(weighs=True)

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

    def replace_with(self, path: Path | str) -> None:
        """Replace the content of this store with that of the store at ``path``.

        The old content is kept next to it, in a folder of the same name with the suffix ``.replaced-1`` (or the next free number).

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

    def copy_to(self, path: Path | str) -> None:
        """Copy the store to ``path``, with hard links if both are on one disk (files are immutable)."""
        target = open_files(path)
        target.make()
        marker = self._contents.read_marker()  # before the events, which are written before it
        for _ in range(100):
            labels, packs = self._contents.listing()
            decided = [WEIGHTS] if self._files.exists(WEIGHTS) else []
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
        writing.compact(self._contents, 2)

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
        writing.quarantine(self._contents)
        for folder, rows in self._contents.incomplete().items() if renew else ():
            writing.write_segment(self._contents, rows, folder)
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
            writing.write_pack(self._contents, Rows.concatenate(parts))
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
        writing.write_segment(self._contents, table)
        if amends.any():
            writing.write_segment(self._contents, table.filter(pa.array(amends)), AMENDMENTS)
        self._settled = True
        self._contents.refresh()
        self._contents.mark(int(amends.sum()))
        try:
            writing.compact(self._contents, COMPACT_AT)
        except OSError as error:  # the events are stored; the next commit tries again
            log.warning("Can't compact the store: %s", error)
