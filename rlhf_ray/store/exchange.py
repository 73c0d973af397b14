"""Export and import: one file with all events, for other programs and other stores.

Other programs may filter, sort and rewrite a Parquet file: the columns tell everything, nothing depends on the schema's metadata,
on types or on order. What an import can't trust it refuses: fragments are named by their content, ``checksum`` covers the answer,
and ``holds`` says which answers count.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq

from rlhf_ray.data import pickles
from rlhf_ray.data.atomic import whole_file
from rlhf_ray.data.by_pip import IMITATION
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.store.files import LocalFiles
from rlhf_ray.store.packs import COLUMNS
from rlhf_ray.store.schema import FORMAT, LABELS, MAJOR, Event, rows_holding
from rlhf_ray.store.store import PreferenceStore

AT_ONCE = 64
"""Comparisons read at once, and events per row group. Bounds the fragments in memory."""


TENSORS = ("observations", "actions", "rewards")
SIDES = ("left", "right")
META = FORMAT.encode()
NEEDED = (
    *("event_id", "kind", "target", "left_id", "right_id", "preference", "annotator", "annotator_type"),
    *("presented_swapped", "extra", "holds"),
)
"""Columns of events without which an answer would change. The others of `LABELS` may be dropped."""


def _kind(name: str) -> pa.DataType:
    """Return the column type for this array of `Fragments`."""
    return pa.binary() if name in TENSORS else pa.bool_() if name == "terminated" else pa.int64()


CLIPS = pa.schema(
    [
        *((f"{side}_{column}", _kind(name)) for side in SIDES for name, column in COLUMNS.items()),
        *((f"{side}_arrays", pa.string()) for side in SIDES),
    ]
)
"""Columns of the two fragments; ``left_arrays``: dtype and shape of each tensor, as JSON."""


def export(store: PreferenceStore, out: Path) -> int:
    """Write a store to ``out``.

    ``.parquet``, ``.csv`` and ``.jsonl`` get all events, in order; the column ``holds`` marks active labels. A ``.parquet`` file
    also gets the fragments: arrays as bytes, and in ``left_arrays`` and ``right_arrays`` their dtypes and shapes as JSON.

    ``.pkl`` gets the active comparisons alone: see `write_imitation`.

    Returns:
        The number of events, or of comparisons.

    Raises:
        ValueError: the suffix is unknown, or the fragments have several shapes.
        SettingError: there are no comparisons for imitation, or it is not installed.
    """
    if out.suffix == ".pkl":
        return write_imitation(store, out)
    events = store.events()
    holds = np.isin(np.arange(len(events)), rows_holding(events))
    events = events.append_column("holds", pa.array(holds))
    writers = {
        ".parquet": write_parquet,
        ".csv": lambda _, rows, sink: pa.csv.write_csv(rows, sink),
        ".jsonl": _write_jsonl,
    }
    if out.suffix not in writers:
        raise ValueError(f"{out} must end in {', '.join([*writers, '.pkl'])}.")
    out.parent.mkdir(parents=True, exist_ok=True)
    LocalFiles(out.parent).write(out.name, lambda sink: writers[out.suffix](store, events, sink))
    return len(events)


def import_file(store: PreferenceStore | Path | str, file: Path) -> int:
    """Add the content of ``file``: an exported Parquet file, or a pickle that `rlhf_ray.data.pickles` reads.

    `PreferenceStore.undo` reverts it.

    Args:
        store: the store to add to, or its path; a new one is created once the file was read.
        file: the file.

    Returns:
        The number of new comparisons.

    Raises:
        ValueError: the format is unknown, or the file is damaged or was changed.
        SettingError: the fragments don't fit those in the store. Nothing was added.
    """
    with tempfile.TemporaryDirectory() as folder:  # a store of its own first: import everything or nothing
        received = PreferenceStore(Path(folder) / "given")
        with file.open("rb") as content:
            start = content.read(4)
        if start == b"PAR1":
            try:
                read_parquet(received, file)
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{file} is damaged ({' '.join(str(error).split())}): export it again.") from error
        elif file.suffix == ".parquet":
            raise ValueError(f"{file} is no Parquet file, whatever its name says: export it again.")
        elif file.suffix in (".csv", ".jsonl"):
            raise ValueError(f"{file} has no clips, which an import needs: export to .parquet, and import that.")
        else:
            origin, comparisons = pickles.read(file)
            for side in (comparisons.pairs.left, comparisons.pairs.right):
                side.check_finite(str(file))
            received.commit(comparisons, annotator=origin, annotator_type="import")
        store = store if isinstance(store, PreferenceStore) else PreferenceStore(store)
        return store.import_from(received.path, source=str(file))


def write_imitation(store: PreferenceStore, out: Path) -> int:
    """Write the active comparisons to the file that imitation's ``PreferenceDataset.load`` opens.

    imitation keeps preferences as a pickle, and has no other format. This is the only pickle that is written here, by imitation
    itself and for imitation alone. Answers of annotators with weight 0 are left out.

    Returns:
        The number of comparisons.

    Raises:
        SettingError: there are none, or imitation is not installed.
    """
    try:
        from imitation.algorithms.preference_comparisons import PreferenceDataset
        from imitation.data.types import TrajectoryWithRew
    except ImportError as error:
        raise SettingError(f"{out} is for imitation, which is not installed. Install it: {IMITATION}") from error
    dataset, excluded = PreferenceDataset(), {name for name, weight in store.weights().items() if weight == 0}
    snapshot = store.snapshot()
    for start in range(0, len(snapshot), AT_ONCE):
        batch = snapshot.gather(slice(start, start + AT_ONCE))
        sides = [
            [
                TrajectoryWithRew(obs, acts, None, bool(end), rews)
                for obs, acts, rews, end in zip(
                    fragments.observations, fragments.actions, fragments.rewards, fragments.terminated, strict=True
                )
            ]
            for fragments in (batch.pairs.left, batch.pairs.right)
        ]
        pairs = list(zip(*sides, strict=True))
        kept = [row for row, name in enumerate(batch.annotators) if name not in excluded]
        if kept:
            dataset.push([pairs[row] for row in kept], batch.preferences[kept])
    if not len(dataset):
        raise SettingError(f"{store.path} has no comparisons to export; collect some first.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as sink:
        dataset.save(sink.name)
    return len(dataset)


def _write_jsonl(store: PreferenceStore, events: pa.Table, sink: BinaryIO) -> None:
    for row in events.to_pylist():
        sink.write(json.dumps(row, default=lambda time: time.isoformat()).encode() + b"\n")


def write_parquet(store: PreferenceStore, events: pa.Table, sink: BinaryIO) -> None:
    """Write ``events`` (with the column ``holds``) and their fragments to ``sink``."""
    sums = [checksum(row, row["extra"]) for row in events.to_pylist()]
    events = events.append_column("checksum", pa.array(sums, pa.string()))
    schema = pa.schema([*events.schema, *CLIPS]).with_metadata({META: json.dumps({"major": MAJOR})})
    sides = [events[f"{side}_id"].to_pylist() for side in SIDES]
    with pq.ParquetWriter(sink, schema, compression="zstd", write_page_checksum=True) as writer:
        for start in range(0, len(events), AT_ONCE):
            clips = [_columns(store, names[start : start + AT_ONCE]) for names in sides]
            columns = [*(column for side in clips for column in side[:-1]), *(side[-1] for side in clips)]
            writer.write_table(pa.table([*events.slice(start, AT_ONCE).columns, *columns], schema=schema))


def checksum(row: dict[str, Any], extra: str | None = None) -> str:
    """Return a hash of what an event (a row of `LABELS`) says, and of its ``extra``, which earlier versions left out."""
    names = ("event_id", "kind", "target", "left_id", "right_id", "preference")
    content = [*(row[name] for name in names), bool(row["presented_swapped"])]
    if noted := json.loads(extra or "{}"):
        content.append(json.dumps(noted, sort_keys=True))
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _columns(store: PreferenceStore, names: Sequence[str | None]) -> list[pa.Array]:
    there, fragments = store.fragments(names)
    if fragments is not None and len(there) > 1 and fragments.ids() != [names[i] for i in there]:
        # Floats of several widths: one by one, each is as it was stored, which its id depends on.
        parts = [_columns(store, [name]) for name in names]
        return [pa.concat_arrays(column) for column in zip(*parts, strict=True)]
    columns = []
    for name in COLUMNS:
        values: list[Any] = [None] * len(names)
        for i, position in enumerate(there):
            value = getattr(fragments, name)[i]
            values[position] = value.tobytes() if name in TENSORS else value.item()
        columns.append(pa.array(values, _kind(name)))
    kinds: list[Any] = [None] * len(names)
    if fragments is not None:
        arrays = {name: getattr(fragments, name) for name in TENSORS}
        kind = json.dumps({name: [array.dtype.str, array.shape[1:]] for name, array in arrays.items()})
        for position in there:
            kinds[position] = kind
    return [*columns, pa.array(kinds, pa.string())]


def read_parquet(store: PreferenceStore, file: Path) -> None:
    """Record the content of ``file`` in the empty ``store``. Events whose fragments the file lacks are left out.

    Raises:
        ValueError: the file lacks columns, or its content was changed since `write_parquet`.
        pa.ArrowInvalid, OSError: it is damaged.
    """
    parquet = pq.ParquetFile(file, page_checksum_verification=True)
    names = parquet.schema_arrow.names
    if parquet.schema_arrow.metadata and META in parquet.schema_arrow.metadata:
        major = json.loads(parquet.schema_arrow.metadata[META]).get("major")
        if major != MAJOR:
            raise ValueError(f"{file} has format {FORMAT} {major}; this version reads {FORMAT} {MAJOR}.")
    missing = [name for name in (*NEEDED, *CLIPS.names) if names.count(name) != 1]
    if len(missing) == len(NEEDED) + len(CLIPS):
        raise ValueError(f"{file} was not exported by `rlhf-ray store export`: it has none of its columns.")
    if missing:
        raise ValueError(
            f"{file} must have each of these columns once: {', '.join(missing)}; export it again, and keep them."
        )
    known = [name for name in (*LABELS.names, "holds", "checksum", *CLIPS.names) if names.count(name) == 1]
    events: dict[str, tuple[int, Event]] = {}
    holding: set[str] = set()
    for batch in parquet.iter_batches(AT_ONCE, columns=known, use_threads=False):
        rows = [_typed(row, file) for row in _cast(pa.Table.from_batches([batch]), file).to_pylist()]
        for fragments in _fragments(rows, file):
            store.record([], fragments)
        for row in rows:
            if any(row[f"{side}_id"] is not None and row[f"{side}_arrays"] is None for side in SIDES):
                continue  # its fragments were lost before the export
            event, number = row["event"], row.get("sequence")
            before = events.setdefault(event.event_id, (len(events) if number is None else number, event))
            if before[1] != event:
                raise ValueError(f"{file}: two different rows have the event id {event.event_id!r}; keep one of them.")
            if row["holds"]:
                holding.add(event.event_id)
    store.record([event for _, event in sorted(events.values(), key=lambda one: one[0])])
    _check_holding(store, holding, file)


def _cast(table: pa.Table, file: Path) -> pa.Table:
    """Return the columns in their types, whatever other programs made of them; pandas turns null into NaN."""
    types = {field.name: field.type for schema in (LABELS, CLIPS) for field in schema} | {"holds": pa.bool_()}
    columns = {}
    for name in table.column_names:
        column, kind = table[name], types.get(name, pa.string())
        try:
            if pa.types.is_dictionary(column.type):
                column = column.cast(column.type.value_type)
            if pa.types.is_floating(column.type):
                column = pc.if_else(pc.is_nan(column), pa.scalar(None, column.type), column)
            columns[name] = column.cast(kind)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            why = str(error).strip().splitlines()[0]
            raise ValueError(
                f"{file}: the column {name} has type {column.type} and can't be read as {kind} ({why})."
            ) from error
    return pa.table(columns)


def _typed(row: dict[str, Any], file: Path) -> dict[str, Any]:
    """Return the row with its ``event``, checked."""
    names = [field.name for field in fields(Event) if field.name in row]
    try:
        extra = json.loads(row["extra"] or "{}")
        event = Event(**{name: row[name] for name in names} | {"extra": dict(extra)})
    except (ValueError, TypeError) as error:
        raise ValueError(f"{file}: {error}" if "event" in str(error) else _changed(row, file, "extra")) from error
    if row.get("checksum") not in (None, "", checksum(row), checksum(row, row["extra"])):
        raise ValueError(_changed(row, file, "answer"))
    return row | {"event": event}


def _changed(row: dict[str, Any], file: Path, what: str) -> str:
    return (
        f"{file}: the {what} of event {row['event_id']!r} was changed after the export. Export it again; or, to add a changed "
        "answer as a new one, give its row a new event_id and an empty checksum."
    )


def _fragments(rows: Sequence[dict[str, Any]], file: Path) -> Iterator[Fragments]:
    """Yield the fragments of ``rows``, those of one kind together; refuse one that is not what its id says."""
    alike: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        for side in SIDES:
            if (kind := row[f"{side}_arrays"]) is not None:
                values = {name: row[f"{side}_{column}"] for name, column in COLUMNS.items()}
                alike.setdefault(kind, {})[row[f"{side}_id"]] = values
    for kind, clips in alike.items():
        try:
            fragments = _joined(json.loads(kind), list(clips.values()))
            wrong = [name for name, known in zip(clips, fragments.ids(), strict=True) if name != known]
        except (ValueError, TypeError, KeyError):
            wrong = list(clips)
        if wrong:
            raise ValueError(
                f"{file}: the clip {wrong[0]} was changed after the export: its content is not what its id says. Export it again."
            )
        yield fragments


def _joined(kinds: dict[str, Any], clips: Sequence[dict[str, Any]]) -> Fragments:
    arrays: dict[str, Any] = {}
    for name in COLUMNS:
        values = [clip[name] for clip in clips]
        if name in TENSORS:
            dtype, shape = kinds[name]
            arrays[name] = np.frombuffer(b"".join(values), np.dtype(dtype)).reshape(len(values), *shape)
        else:
            arrays[name] = np.array(values, dtype=bool if name == "terminated" else np.int64)
    return Fragments(**arrays)


def _check_holding(store: PreferenceStore, holding: set[str], file: Path) -> None:
    """Check that the answers that count are those that did when the file was written."""
    events = store.events()
    names = events["event_id"].to_pylist()
    now = {names[row] for row in rows_holding(events)}
    if wrong := sorted((now ^ holding) & set(names)):
        raise ValueError(
            f"{file}: {len(wrong)} answers would count although they didn't at the export, or the other way round (first: event "
            f"{wrong[0]!r}), because rows that took answers back are missing or the column holds was changed. Keep these rows, or "
            "only those where holds is true."
        )
