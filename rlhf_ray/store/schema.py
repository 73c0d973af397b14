"""The store's schema: events about pairs of fragments, and the rules for which labels are active."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute

from rlhf_ray.data.answers import answer_of
from rlhf_ray.data.arrays import BoolArray, IntArray
from rlhf_ray.data.comparisons import pair_id

FORMAT, MAJOR, MINOR = "rlhf_ray.preferences", 1, 3

Kind = Literal["label", "supersede", "retract", "skip", "flag", "check"]

LABELS = pa.schema(
    [
        ("sequence", pa.int64()),
        ("event_id", pa.string()),
        ("kind", pa.string()),
        ("target", pa.string()),
        ("pair_id", pa.string()),
        ("left_id", pa.string()),
        ("right_id", pa.string()),
        ("preference", pa.float32()),
        ("annotator", pa.string()),
        ("annotator_type", pa.string()),
        ("presented_swapped", pa.bool_()),
        ("t_shown", pa.timestamp("us", tz="UTC")),
        ("t_answered", pa.timestamp("us", tz="UTC")),
        ("view_ms", pa.int64()),
        ("session", pa.string()),
        ("run_id", pa.string()),
        ("policy_version", pa.int64()),
        ("reward_version", pa.int64()),
        ("extra", pa.string()),
        ("merge", pa.string()),
    ]
)
"""One row per event; `Event` describes the columns. ``sequence`` defines the order; timestamps don't. ``merge`` is the id of the
merge that brought the event from another store; null for the store's own events."""

ANSWERS = ("label", "supersede")
"""Kinds of events that are trained on."""

UNDECIDED = "incomparable"
"""``extra.answer`` of a skip by a scripted teacher that can't decide; `rlhf_ray.data.answers` declares people's."""

MERGE, UNDO = "merge", "undo"
"""Kinds of rows that are not events: the record of a merge (``extra``: its source), and the undoing of one (``target``: its id; for
a merge without an id, ``extra`` lists the events)."""


@dataclass(frozen=True)
class Event:
    """One action of an annotator on a pair.

    Attributes:
        event_id: created by the client with the answer, so that resending the event stores it once.
        kind: ``label`` (an answer), ``supersede`` (an answer that replaces the event ``target``), ``retract`` (withdraws the
            event ``target``), ``skip`` (no answer), ``flag`` (a problem with the pair) or ``check`` (the answer to a pair
            with a known answer, which measures the annotator; never trained on).
        annotator: who.
        left_id, right_id: ids of the fragments (`Fragments.ids`). Optional for a retraction.
        preference: for label, supersede and check: the probability that the left fragment is better: 1, 0, or 0.5 for a tie.
        target: the event that a retract or supersede refers to.
        annotator_type: ``human``, ``scripted``, ``import`` …
        presented_swapped: whether the left fragment was shown on the right side.
        t_shown, t_answered: times with a time zone, for people to read. They don't order events: clocks may go back.
        view_ms: viewing time in milliseconds.
        session: session of the labelling page.
        run_id: id of the training run.
        policy_version: the newest policy version that acted in the pair.
        reward_version: version of the reward model that selected the pair (0: none).
        extra: additional data, stored as JSON.

    Raises:
        ValueError: a field is missing or invalid for this kind.
    """

    event_id: str
    kind: Kind
    annotator: str
    left_id: str | None = None
    right_id: str | None = None
    preference: float | None = None
    target: str | None = None
    annotator_type: str = "human"
    presented_swapped: bool = False
    t_shown: datetime | None = None
    t_answered: datetime | None = None
    view_ms: int | None = None
    session: str | None = None
    run_id: str | None = None
    policy_version: int | None = None
    reward_version: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        def require(condition: bool, rule: str) -> None:
            if not condition:
                raise ValueError(f"event {self.event_id!r} of kind {self.kind!r}: {rule}.")

        require(self.kind in get_args(Kind), f"kind must be one of {', '.join(get_args(Kind))}")
        require(bool(self.event_id and self.annotator), "event_id and annotator must not be empty")
        answers, about = self.kind in ("label", "supersede", "check"), self.kind in ("retract", "supersede")
        require((self.target is not None) == about, "a retract or supersede needs a target; other kinds have none")
        require(self.target != self.event_id, "target must be another event")
        require(
            (self.preference is not None) == answers,
            "label, supersede and check need a preference; other kinds have none",
        )
        require(self.preference is None or 0 <= self.preference <= 1, "preference must be a probability, 0 to 1")
        require(self.kind == "retract" or bool(self.left_id and self.right_id), "left_id or right_id is missing")
        for time in (self.t_shown, self.t_answered):
            require(time is None or time.tzinfo is not None, "t_shown and t_answered need a time zone")

    def row(self) -> dict[str, Any]:
        """Return the event as a row of `LABELS`, without its sequence number."""
        values = {name: getattr(self, name, None) for name in LABELS.names}
        pair = pair_id(self.left_id, self.right_id) if self.left_id and self.right_id else None
        return values | {"pair_id": pair, "extra": json.dumps(dict(self.extra)) if self.extra else None}


def scripted_event_id(pair: str, annotator: str) -> str:
    """Return the event id (32 hex digits) of a script's one answer to a pair. It depends on nothing else."""
    return hashlib.sha256(f"{pair}|{annotator}".encode()).hexdigest()[:32]


def with_columns(table: pa.Table) -> pa.Table:
    """Return the table with all columns of `LABELS` in their types, followed by columns that a later version added."""
    columns = {
        field.name: table[field.name].cast(field.type)
        if field.name in table.column_names
        else pa.nulls(len(table), field.type)
        for field in LABELS
    }
    return pa.table(columns | {name: table[name] for name in table.column_names if name not in columns})


def in_order(tables: Sequence[pa.Table]) -> pa.Table:
    """Return all rows ordered by sequence number, without duplicates (from a crash or a merge of stores).

    An event that two merges brought stays twice, since either merge may be undone.
    """
    table = pa.concat_tables(tables or [LABELS.empty_table()], promote_options="default")
    # Ids order the events of writers that took the same number.
    if not (np.diff(table["sequence"].to_numpy()) > 0).all():
        table = table.sort_by([("sequence", "ascending"), ("event_id", "ascending")])
    return _once(table, "event_id", "merge")


def counting(rows: pa.Table) -> pa.Table:
    """Return the events among ``rows`` (from `in_order`), each once, without those that were undone."""
    if not touches_merges(rows):
        return rows
    columns = list(_values(rows, "event_id", "kind", "target", "extra", "merge"))
    undone = {target for _, kind, target, _, _ in columns if kind == UNDO}
    events = {event for _, kind, _, extra, _ in columns if kind == UNDO for event in json.loads(extra)["events"]}
    kept = [
        row
        for row, (event, kind, _, _, merge) in enumerate(columns)
        if kind not in (MERGE, UNDO) and (merge not in undone if merge else event not in events)
    ]
    return _once(take(rows, np.array(kept)), "event_id")


def touches_merges(rows: pa.Table) -> bool:
    """Return whether any row came with a merge or undoes one."""
    return rows["merge"].null_count < len(rows) or bool(pa.compute.any(pa.compute.equal(rows["kind"], UNDO)).as_py())


def amending(rows: pa.Table, answered: Collection[tuple[str, str]] = ()) -> BoolArray:
    """Find the rows without which an earlier answer would count that doesn't.

    Args:
        rows: rows in order.
        answered: pair and annotator of the answers before them.

    Returns:
        ``[n]`` bool: True for retracts and supersedes, undone merges, and an annotator's later answers to a pair.
    """
    result, seen = [], set[tuple[str, str]]()
    for kind, target, *key in _values(rows, "kind", "target", "pair_id", "annotator"):
        again = False
        if kind in ANSWERS:
            again = (key[0], key[1]) in answered or (key[0], key[1]) in seen
            seen.add((key[0], key[1]))
        result.append(again or target is not None or kind == UNDO)
    return np.array(result, dtype=bool)


def answered(rows: pa.Table) -> set[tuple[str, str]]:
    """Return pair and annotator of the answers among ``rows``."""
    return {(pair, who) for kind, pair, who in _values(rows, "kind", "pair_id", "annotator") if kind in ANSWERS}


def keys(rows: pa.Table) -> list[tuple[str, str | None]]:
    """Return what identifies each row: the event's id, and the merge that brought it."""
    return [(event, merge) for event, merge in _values(rows, "event_id", "merge")]


def check_version(path: Path | str, description: bytes) -> None:
    """Check the content of a store's ``store.json``.

    Raises:
        ValueError: it is damaged, or of another major version.
    """
    try:
        version = json.loads(description)
        name, major = version["format"], version["major"]
    except (ValueError, KeyError, TypeError) as error:
        expected = json.dumps({"format": FORMAT, "major": MAJOR, "minor": MINOR})
        raise ValueError(f"{path}/store.json is damaged ({error}); replace its content with {expected}.") from error
    if name != FORMAT or major != MAJOR:
        raise ValueError(
            f"{path} has format {name} {major}; this version reads {FORMAT} {MAJOR}. Use the version that wrote it, or a newer one."
        )


def _once(table: pa.Table, *names: str) -> pa.Table:
    """Return the first row for each value of these columns."""
    if pyarrow.compute.count_distinct(table[names[0]], mode="all").as_py() == len(table):
        return table
    first = {value: i for i, value in reversed(list(enumerate(_values(table, *names))))}
    return take(table, np.array(sorted(first.values()), np.int64))


def take(table: pa.Table, rows: IntArray) -> pa.Table:
    """Return these rows of the table. `pa.Table.take` would import pandas for a numpy array, which takes longer than the rest."""
    content = pa.py_buffer(np.ascontiguousarray(rows, dtype=np.int64))
    return table.take(pa.Array.from_buffers(pa.int64(), len(rows), [None, content]))


def holding(events: pa.Table, pairs: Collection[str] | None = None) -> dict[tuple[str, str], int]:
    """Return the rows of ``events`` (from `in_order`) that are active labels, of all ``pairs`` or these, by pair and annotator."""
    rows = rows_holding(events)
    labels = take(events.select(["pair_id", "annotator"]), rows)
    if pairs is not None:
        among = pyarrow.compute.is_in(labels["pair_id"], value_set=pa.array(pairs, pa.string())).to_numpy()
        rows, labels = rows[among], labels.filter(among)
    return dict(zip(zip(*labels.to_pydict().values(), strict=True), rows.tolist(), strict=True))


def undecided(events: pa.Table) -> int:
    """Count the skips among ``events`` that were not retracted and mean that the annotator can't decide."""
    skips = events.filter(pyarrow.compute.equal(events["kind"], "skip"))
    if not len(skips):
        return 0
    cancelled = set(events["target"].drop_null().to_pylist())
    names, extra = skips["event_id"].to_pylist(), skips["extra"].to_pylist()
    return sum(
        name not in cancelled and answer_of(json.loads(more or "{}").get("answer")).undecided
        for name, more in zip(names, extra, strict=True)
    )


def rows_holding(events: pa.Table) -> IntArray:
    """Return the rows of ``events`` (from `in_order`) that are active labels, ascending.

    A retract or supersede cancels its target, regardless of their order; a cancelled event stays cancelled. Of the remaining
    labels, the latest by each annotator for each pair is active. A fragment with itself is no pair: an answer about it never is.
    """
    compute, cancelled = pyarrow.compute, events["target"].drop_null().combine_chunks()
    counts = compute.and_(
        compute.is_in(events["kind"], value_set=pa.array(ANSWERS)),
        compute.and_not(
            compute.not_equal(events["left_id"], events["right_id"]),
            compute.is_in(events["event_id"], value_set=cancelled),
        ),
    )
    rows: IntArray = np.flatnonzero(counts.fill_null(False).to_numpy())
    pair, annotator = (_codes(events[name])[rows] for name in ("pair_id", "annotator"))
    _, last = np.unique((pair * (annotator.max(initial=0) + 1) + annotator)[::-1], return_index=True)
    return rows if len(last) == len(rows) else np.sort(rows[::-1][last])


def _codes(column: pa.ChunkedArray) -> IntArray:
    """Return a number for each value of a column, ``[n]`` int64: the same for equal ones."""
    encoded = column.combine_chunks().dictionary_encode(null_encoding="encode")
    codes: IntArray = encoded.indices.to_numpy().astype(np.int64)
    return codes


def touched(rows: pa.Table, sequence: int) -> list[tuple[str, str]]:
    """Return pair and annotator of all labels affected by rows after number ``sequence``: each once, in order."""
    newer = rows.filter(pyarrow.compute.greater(rows["sequence"], sequence))
    about: list[str | None] = []
    for event, kind, target, extra in _values(newer, "event_id", "kind", "target", "extra"):
        if kind == UNDO:
            if target is not None:
                of_merge = rows.filter(pyarrow.compute.equal(rows["merge"], target))
                about += itertools.chain.from_iterable(_values(of_merge, "target", "event_id"))
            about += json.loads(extra)["events"]
        else:
            about += [target, event]
    there = pa.array([name for name in about if name is not None], pa.string())
    found = rows.filter(pyarrow.compute.is_in(rows["event_id"], value_set=there))
    labels = {
        event: (pair, who)
        for event, kind, pair, who in _values(found, "event_id", "kind", "pair_id", "annotator")
        if kind in ANSWERS
    }
    return list(dict.fromkeys(labels[name] for name in about if name in labels))


def _values(table: pa.Table, *names: str) -> Iterator[tuple[Any, ...]]:
    """Return the values of these columns, row by row."""
    return zip(*(table[name].to_pylist() for name in names), strict=True)
