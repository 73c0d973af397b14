"""Export and import: one file with all events, for other programs and other stores."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from rlhf_ray.store import foreign, parquet, sharing
from rlhf_ray.store.files import LocalFiles
from rlhf_ray.store.schema import rows_holding
from rlhf_ray.store.store import PreferenceStore


def export(store: PreferenceStore, out: Path) -> int:
    """Write a store to ``out``.

    ``.parquet``, ``.csv`` and ``.jsonl`` get all events, in order; the column ``holds`` marks active labels. A ``.parquet`` file
    also gets the fragments: arrays as bytes, and in ``left_arrays`` and ``right_arrays`` their dtypes and shapes as JSON.

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
        ".parquet": parquet.write,
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


def import_file(store: PreferenceStore | Path | str, file: Path) -> int:
    """Add the content of ``file``: an exported Parquet file, or a pickle that `foreign` reads. `PreferenceStore.undo` reverts it.

    Args:
        store: the store to add to, or its path; a new one is created once the file was read.
        file: the file to import.

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
                parquet.read(received, file)
            except (pa.ArrowInvalid, OSError) as error:
                raise ValueError(f"{file} is damaged ({' '.join(str(error).split())}): export it again.") from error
        elif file.suffix == ".parquet":
            raise ValueError(f"{file} is no Parquet file, whatever its name says: export it again.")
        elif file.suffix in (".csv", ".jsonl"):
            raise ValueError(f"{file} has no clips, which an import needs: export to .parquet, and import that.")
        else:
            origin, comparisons = foreign.read(file)
            for side in (comparisons.pairs.left, comparisons.pairs.right):
                side.check_finite(str(file))
            received.commit(comparisons, annotator=origin, annotator_type="import")
        store = store if isinstance(store, PreferenceStore) else PreferenceStore(store)
        return store.import_from(received.path, source=str(file))


def _write_jsonl(store: PreferenceStore, events: pa.Table, sink: BinaryIO) -> None:
    for row in events.to_pylist():
        sink.write(json.dumps(row, default=lambda time: time.isoformat()).encode() + b"\n")
