"""Export and import: one file with all events, for other programs and other stores."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from rlhf_ray.data.fragments import Fragments
from rlhf_ray.store import foreign, sharing
from rlhf_ray.store.files import LocalFiles
from rlhf_ray.store.packs import COLUMNS
from rlhf_ray.store.schema import FORMAT, MAJOR, Event, rows_holding
from rlhf_ray.store.store import PreferenceStore

ROWS = 64
"""Events per row group. Bounds the fragments in memory."""
TENSORS = ("observations", "actions", "rewards")
META = FORMAT.encode()


def export(store: PreferenceStore, out: Path) -> int:
    """Write a store to ``out``.

    ``.parquet``, ``.csv`` and ``.jsonl`` get all events, in order; the column ``holds`` marks active labels. A ``.parquet`` file
    also gets the fragments: arrays as bytes, with dtype and shape (without the first dimension) as JSON in the file's metadata
    under ``rlhf_ray.preferences``. If a store has floats of several widths, the number of bytes tells a row's.

    ``.pkl`` and a folder get the active comparisons alone: see `rlhf_ray.store.sharing`.

    Args:
        store: the store to export.
        out: the file, whose suffix selects the format; without one, the folder of a data set.

    Returns:
        The number of events, or of comparisons.

    Raises:
        ValueError: the suffix is unknown, or the fragments have several shapes.
        SettingError: there are no comparisons for a data set, or imitation is not installed.
    """
    if out.suffix in sharing.WRITERS:
        return sharing.WRITERS[out.suffix](store, out)
    events = store.events()
    holds = np.isin(np.arange(len(events)), rows_holding(events))
    events = events.append_column("holds", pa.array(holds))
    writers = {
        ".parquet": _write_parquet,
        ".csv": lambda _, rows, sink: pa.csv.write_csv(rows, sink),
        ".jsonl": _write_jsonl,
    }
    if out.suffix not in writers:
        raise ValueError(
            f"{out} must end in {', '.join([*writers, *filter(None, sharing.WRITERS)])}, or have no suffix for a data set's folder."
        )
    out.parent.mkdir(parents=True, exist_ok=True)
    LocalFiles(out.parent).write(out.name, lambda sink: writers[out.suffix](store, events, sink))
    return len(events)


def import_file(store: PreferenceStore, file: Path) -> int:
    """Add the content of ``file``: an exported Parquet file, or a pickle that `foreign` reads. `PreferenceStore.undo` reverts it.

    Args:
        store: the store to add to.
        file: the file to import.

    Returns:
        The number of new comparisons.

    Raises:
        ValueError: the format is unknown.
        SettingError: the fragments don't fit those in the store. Nothing was added.
    """
    with tempfile.TemporaryDirectory() as folder:  # a store of its own first: import everything or nothing
        received = PreferenceStore(Path(folder) / "given")
        if file.read_bytes()[:4] == b"PAR1":
            try:
                for events, fragments in _read_parquet(file):
                    received.record(events, fragments)
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{file} is damaged ({' '.join(str(error).split())}): export it again.") from error
        else:
            origin, comparisons = foreign.read(file)
            for side in (comparisons.pairs.left, comparisons.pairs.right):
                side.check_finite(str(file))
            received.commit(comparisons, annotator=origin, annotator_type="import")
        return store.import_from(received.path, source=str(file))


def _write_jsonl(store: PreferenceStore, events: pa.Table, sink: BinaryIO) -> None:
    for row in events.to_pylist():
        sink.write(json.dumps(row, default=lambda time: time.isoformat()).encode() + b"\n")


def _write_parquet(store: PreferenceStore, events: pa.Table, sink: BinaryIO) -> None:
    sides, kinds = [events[side].to_pylist() for side in ("left_id", "right_id")], dict[str, Any]()
    for names in sides:
        _, fragments = store.fragments(names[:1])
        if fragments is not None:
            kinds = {name: [getattr(fragments, name).dtype.str, getattr(fragments, name).shape[1:]] for name in TENSORS}
    schema = events.schema
    for side in ("left", "right"):
        for name, column in COLUMNS.items():
            schema = schema.append(pa.field(f"{side}_{column}", _kind(name)))
    schema = schema.with_metadata({META: json.dumps({"major": MAJOR, "clips": kinds})})
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, len(events), ROWS):
            table = events.slice(start, ROWS)
            columns = list(table.columns)
            for names in sides:
                columns += _fragment_columns(store, names[start : start + ROWS])
            writer.write_table(pa.table(columns, schema=schema))


def _fragment_columns(store: PreferenceStore, names: Sequence[str | None]) -> list[pa.Array]:
    there, fragments = store.fragments(names)
    if fragments is not None and len(there) > 1 and fragments.ids() != [names[i] for i in there]:
        # Floats of several widths: one by one, each is as it was stored, which its id depends on.
        parts = [_fragment_columns(store, [name]) for name in names]
        return [pa.concat_arrays(column) for column in zip(*parts, strict=True)]
    columns = []
    for name in COLUMNS:
        values: list[Any] = [None] * len(names)
        for i, position in enumerate(there):
            value = getattr(fragments, name)[i]
            values[position] = value.tobytes() if name in TENSORS else value.item()
        columns.append(pa.array(values, _kind(name)))
    return columns


def _kind(name: str) -> pa.DataType:
    """Return the column type for this array of `Fragments`."""
    return pa.binary() if name in TENSORS else pa.bool_() if name == "terminated" else pa.int64()


def _read_parquet(file: Path) -> Iterator[tuple[list[Event], Fragments | None]]:
    parquet = pq.ParquetFile(file, page_checksum_verification=True)
    about = json.loads((parquet.schema_arrow.metadata or {}).get(META, b"{}"))
    if about.get("major") != MAJOR:
        raise ValueError(
            f"{file} was not exported by `rlhf-ray store export` in format {FORMAT} {MAJOR}; export it again."
        )
    named = {field.name for field in fields(Event)}
    for number in range(parquet.num_row_groups):
        rows = parquet.read_row_group(number, use_threads=False).to_pylist()
        sides = [(row, side) for row in rows for side in ("left", "right") if row[f"{side}_observations"] is not None]
        there = {row[f"{side}_id"] for row, side in sides}
        events = [
            Event(**{k: v for k, v in row.items() if k in named} | {"extra": json.loads(row["extra"] or "{}")})
            for row in rows
            if {row["left_id"], row["right_id"]} <= there | {None}  # skip events whose fragments were lost
        ]
        widths: dict[tuple[int, ...], list[Any]] = {}
        for row, side in sides:
            widths.setdefault(tuple(len(row[f"{side}_{COLUMNS[name]}"]) for name in TENSORS), []).append((row, side))
        for alike in widths.values():
            arrays = {column: [row[f"{side}_{column}"] for row, side in alike] for column in COLUMNS.values()}
            yield (
                [],
                Fragments(
                    **{name: _array(arrays[column], about["clips"].get(name)) for name, column in COLUMNS.items()}
                ),
            )
        yield events, None


def _array(values: list[Any], kind: list[Any] | None) -> Any:
    """Return one array of `Fragments`, from plain values or from tensors' bytes with this dtype and shape."""
    if kind is None:
        return np.array(values)
    dtype, shape = np.dtype(kind[0]), kind[1]
    width = len(values[0]) // math.prod(shape)  # floats of a store may be of several widths
    return np.frombuffer(b"".join(values), f"{dtype.byteorder}{dtype.kind}{width}").reshape(len(values), *shape)
