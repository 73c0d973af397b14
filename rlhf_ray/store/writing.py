"""How the writer of a store adds files, joins small ones and moves damaged ones out of the way."""

from __future__ import annotations

import io
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from rlhf_ray.store.contents import Contents, hash_of, log
from rlhf_ray.store.files import AMENDMENTS
from rlhf_ray.store.packs import Pack, Rows
from rlhf_ray.store.schema import in_order

SMALL_SEGMENT = 4096
"""A segment with fewer events is small."""
SMALL_PACK = 32 << 20
"""A pack with fewer bytes of fragments is small."""


def write_segment(contents: Contents, events: pa.Table, folder: str = "labels") -> str:
    """Write numbered events as a segment in ``folder``, durably. Return its name."""
    content = io.BytesIO()
    pq.write_table(events, content, write_page_checksum=True)
    last = pc.max(events["sequence"]).as_py()
    name = f"{folder}/{last:012d}-{hash_of(content.getvalue())}.parquet"
    contents.files.write(name, lambda sink: sink.write(content.getbuffer()))
    return name


def write_pack(contents: Contents, rows: Rows) -> str:
    """Write fragments as a pack, durably. Return its name."""
    name = f"clips/{contents.last_number:012d}-{rows.content()}.arrow"
    contents.files.write(name, rows.write)
    return name


def compact(contents: Contents, at_least: int) -> None:
    """Join the small segments, and the small packs, if there are ``at_least`` that many.

    The replacement is durable before the originals are deleted. An interrupted compaction leaves duplicates, which readers
    ignore.
    """
    joined = False
    for folder in ("labels", AMENDMENTS):
        segments = {
            name: table
            for name, table in contents.segments.items()
            if len(table) < SMALL_SEGMENT and name.startswith(folder)
        }
        if len(segments) >= at_least and not contents.doubt:  # answers that don't count may have been given again
            joined = True
            written = write_segment(contents, in_order(list(segments.values())), folder)
            for name in segments.keys() - {written}:  # joining the same events again gives the same name
                contents.files.delete(name)
    packs = [pack for pack in contents.packs.values() if pack.fragments.nbytes < SMALL_PACK]
    groups = _groups(packs) if len(packs) >= at_least else []
    for group in groups:
        _rewrite(contents, group)
    if joined or groups:
        contents.refresh()


def quarantine(contents: Contents) -> None:
    """Move damaged files out of the way, after rewriting their intact fragments."""
    damaged = contents.damaged_packs()
    if not contents.unreadable and not damaged:
        return
    try:
        # Read them again first: the damage may be limited to a cached copy.
        contents.forget([*contents.unreadable, *(pack.name for pack in damaged)])
        contents.refresh()
        for name in contents.unreadable:
            log.warning("Moving %s to quarantine: it is damaged.", name)
            contents.files.quarantine(name)
        for again in [contents.packs[pack.name] for pack in damaged if pack.name in contents.packs]:
            if len(again.intact()) < len(again.ids):
                _rewrite(contents, [again])
    except OSError as error:
        log.warning("Can't move damaged files to quarantine: %s", error)
    contents.refresh()


def _groups(packs: Sequence[Pack]) -> list[list[Pack]]:
    """Group packs to be joined: of one kind, up to the size of a large pack."""
    groups: list[list[Pack]] = []
    filling: dict[str, list[Pack]] = {}
    for pack in packs:
        group = filling.setdefault(pack.kind, [])
        group.append(pack)
        if sum(one.fragments.nbytes for one in group) >= SMALL_PACK:
            groups.append(filling.pop(pack.kind))
    return [group for group in [*groups, *filling.values()] if len(group) > 1]


def _rewrite(contents: Contents, packs: Sequence[Pack]) -> None:
    """Write the intact fragments of ``packs`` as one pack without duplicates, then delete or quarantine the originals."""
    parts, seen = [], set[str]()
    for pack in packs:
        rows = [row for row in pack.intact() if pack.ids[row] not in seen]
        seen.update(pack.ids[row] for row in rows)
        if rows:
            parts.append(pack[np.array(rows)])
    written = write_pack(contents, Rows.concatenate(parts)) if parts else None
    for pack in packs:
        if pack.damaged.any():
            log.warning("Moving %s to quarantine: it is damaged.", pack.name)
            contents.files.quarantine(pack.name)
        elif pack.name != written:
            contents.files.delete(pack.name)
