"""Merges: which stores can be merged, and the record of each merge that makes it reversible."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa

from rlhf_ray.data.errors import SettingError
from rlhf_ray.store.contents import Contents
from rlhf_ray.store.packs import Rows, Snapshot
from rlhf_ray.store.schema import LABELS, MERGE, UNDO, rows_holding, take


@dataclass(frozen=True)
class MergeRecord:
    """The record of one merge.

    Attributes:
        id: id of the merge.
        source: display name of the store it came from.
        time: when it was merged.
        comparisons: number of its comparisons that are still active.
        weights: the annotator weights that it added.
    """

    id: str
    source: str
    time: datetime
    comparisons: int
    weights: Mapping[str, float]


def merges(contents: Contents) -> list[MergeRecord]:
    """Return the merges that were not undone, oldest first."""
    rows, events = contents.rows().to_pylist(), contents.events()
    undone = {row["target"] for row in rows if row["kind"] == UNDO}
    held = take(events, rows_holding(events))["merge"].to_pylist()
    return [
        MergeRecord(row["event_id"], about["source"], row["t_answered"], held.count(row["event_id"]), about["weights"])
        for row in rows
        if row["kind"] == MERGE and row["event_id"] not in undone
        for about in [json.loads(row["extra"])]
    ]


def brought(events: pa.Table, source: str, weights: Mapping[str, float]) -> pa.Table:
    """Return ``events`` marked as those of a new merge, after the row that records the merge."""
    name = uuid.uuid4().hex[:12]
    events = events.set_column(LABELS.get_field_index("merge"), "merge", pa.array([name] * len(events), pa.string()))
    about = {"source": source, "weights": dict(weights)}
    return pa.concat_tables([_row(MERGE, name, merge=name, about=about), events], promote_options="default")


def taken_back(merge: str | None, events: list[str]) -> pa.Table:
    """Return the row that undoes a merge, or the ``events`` of a merge without an id."""
    return _row(UNDO, uuid.uuid4().hex, target=merge, about={"events": events})


def families(snapshot: Snapshot) -> dict[str, str]:
    """Return the families (`Rows.family`) of the active comparisons' fragments, described; the oldest comparison's first."""
    packs = dict.fromkeys(np.stack([snapshot.left[:, 0], snapshot.right[:, 0]], 1).ravel().tolist())
    return {snapshot.packs[number].family: in_words(snapshot.packs[number]) for number in packs}


def in_words(rows: Rows) -> str:
    """Describe the length, shapes and dtypes of these fragments."""
    length = rows.arrays["actions"].shape[1]
    shapes = (
        f"{name} {array.shape[2:]} {array.dtype}"
        for name, array in rows.arrays.items()
        if name in ("observations", "actions")
    )
    return f"fragments of {length} steps, {', '.join(shapes)}"


def check_one_family(stores: Mapping[str, Mapping[str, str]]) -> None:
    """Check that one reward model can be fitted to the content of several stores.

    Args:
        stores: the `families` of each store, by its name.

    Raises:
        SettingError: there are several kinds of fragments.
    """
    kinds = {kind: (store, words) for store, families in stores.items() for kind, words in families.items()}
    if len(kinds) > 1:
        held = "; ".join(f"{store} holds {words}" for store, words in kinds.values())
        raise SettingError(f"{held}. One reward model can't be fitted to both: keep them in separate stores.")


def foreign(contents: Contents, snapshot: Snapshot) -> list[str]:
    """Return the ids of events about fragments of another kind than those of the oldest active comparison."""
    events = contents.events()
    sides = [contents.where(events[side].to_pylist())[:, 0].tolist() for side in ("left_id", "right_id")]
    first = next(iter(families(snapshot)))
    return [
        event
        for event, *packs in zip(events["event_id"].to_pylist(), *sides, strict=True)
        if any(number >= 0 and snapshot.packs[number].family != first for number in packs)
    ]


def _row(
    kind: str, name: str, *, about: dict[str, Any], target: str | None = None, merge: str | None = None
) -> pa.Table:
    row = dict.fromkeys(LABELS.names) | {"kind": kind, "event_id": name, "target": target, "merge": merge}
    row |= {"annotator": "", "t_answered": datetime.now(UTC), "extra": json.dumps(about)}
    return pa.Table.from_pylist([row], schema=LABELS)
