"""Export and import: one file with all events, for other programs and other stores."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from rlhf_ray.data.atomic import whole_file
from rlhf_ray.data.by_pip import IMITATION
from rlhf_ray.data.errors import SettingError
from rlhf_ray.store import foreign, parquet
from rlhf_ray.store.files import LocalFiles
from rlhf_ray.store.schema import rows_holding
from rlhf_ray.store.store import PreferenceStore

AT_ONCE = 64
"""Comparisons read at once. Bounds the fragments in memory."""


def export(store: PreferenceStore, out: Path) -> int:
    """Write a store to ``out``.

    ``.parquet``, ``.csv`` and ``.jsonl`` get all events, in order; the column ``holds`` marks active labels. A ``.parquet`` file
    also gets the fragments: arrays as bytes, and in ``left_arrays`` and ``right_arrays`` their dtypes and shapes as JSON.

    ``.pkl`` gets the active comparisons alone: see `write_imitation`.

    Args:
        store: the store to export.
        out: the file, whose suffix selects the format.

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
        ".parquet": parquet.write,
        ".csv": lambda _, rows, sink: pa.csv.write_csv(rows, sink),
        ".jsonl": _write_jsonl,
    }
    if out.suffix not in writers:
        raise ValueError(f"{out} must end in {', '.join([*writers, '.pkl'])}.")
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
