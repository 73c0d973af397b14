"""Export and import: one file with all events, for other programs and other stores."""

from __future__ import annotations

import json
import tempfile
import zlib
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.csv

from rlhf_ray.data import pickles
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.atomic import whole_file
from rlhf_ray.data.by_pip import IMITATION
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.pickles import Stored, array_of, check_size, frames_of, stack
from rlhf_ray.data.spaces import of_one_choice
from rlhf_ray.store import parquet
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
    """Add the content of ``file``: an exported Parquet file, or what `read_foreign` reads. `PreferenceStore.undo` reverts it.

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
            origin, comparisons = read_foreign(file)
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


def read_foreign(file: Path) -> tuple[str, Comparisons]:
    """Read another project's preference file, a pickle, without running code from it.

    It is imitation's `PreferenceDataset`, or the `PrefDB` of Matthew Rahtz's learning-from-human-preferences and its descendants
    (``train.pkl.gz``, ``val.pkl.gz``). A `PrefDB` has neither actions nor true rewards: actions become 0 and rewards NaN. A segment
    of n frames becomes a fragment of n - 1 steps, with the last frame as the final observation.

    Returns:
        The origin (``imitation`` or ``drlhp``) and the comparisons.

    Raises:
        ValueError: the format is unknown, the file refers to an unexpected class, or it exceeds `rlhf_ray.data.pickles.LARGEST`.
    """
    content = file.read_bytes()
    room = _Room()
    try:
        content_read = pickles.load(room.unpack(content, GZIP) if content[:2] == b"\x1f\x8b" else content)
        if isinstance(content_read, Stored) and content_read.kind == "PreferenceDataset":
            return "imitation", _imitation(vars(content_read))
        if isinstance(content_read, Stored) and content_read.kind == "PrefDB":
            return "drlhp", _drlhp(vars(content_read), room)
    except (*pickles.ERRORS, OSError, zlib.error) as error:
        raise ValueError(f"Can't import {file}: {pickles.reason(error)}") from error
    raise ValueError(f"Can't import {file}: it holds neither imitation's PreferenceDataset nor a PrefDB.")


GZIP = 16 + zlib.MAX_WBITS
"""zlib's code for the gzip format."""


class _Room:
    """Tracks how much may still be unpacked: `pickles.LARGEST` bytes in total."""

    def __init__(self) -> None:
        self._left = pickles.LARGEST

    def unpack(self, content: bytes, kind: int = zlib.MAX_WBITS) -> bytes:
        """Decompress ``content``.

        Raises:
            ValueError: the result exceeds the remaining room.
            EOFError: the content is truncated.
        """
        unpacked = bytearray()
        while content:  # a gzip file may have several members
            unpacker = zlib.decompressobj(kind)
            unpacked += unpacker.decompress(content, self._left + 1)
            check_size(pickles.LARGEST - self._left + len(unpacked))
            if not unpacker.eof:
                raise EOFError("its compressed data is truncated")
            content = unpacker.unused_data.lstrip(b"\0") if kind == GZIP else b""
        self._left -= len(unpacked)
        return bytes(unpacked)


def _imitation(found: dict[str, Any]) -> Comparisons:
    if not len(found["fragments1"]):
        raise ValueError("it has no comparisons")

    def stacked(some: list[Any]) -> Fragments:
        actions = of_one_choice(stack([one.acts for one in some]), axes=2)
        actions = actions.astype(np.int64 if actions.dtype.kind in "iu" else np.float32)
        rewards = stack([one.rews for one in some]).astype(np.float64)
        return _fragments(stack([one.obs for one in some]), actions, rewards, [bool(one.terminal) for one in some])

    return _compared(stacked(found["fragments1"]), stacked(found["fragments2"]), stack(found["preferences"]))


def _drlhp(found: dict[str, Any], room: _Room) -> Comparisons:
    segments = found["segments"]
    if isinstance(segments, Stored):  # each one pickled and compressed separately
        segments = {name: pickles.load(room.unpack(content)) for name, content in vars(segments)["store"].items()}

    def named(names: list[Any]) -> Fragments:
        # Check before building any: a file may name the same fragment any number of times.
        sizes = {name: sum(array_of(frame).nbytes for frame in frames_of(segments[name])) for name in set(names)}
        check_size(sum(sizes[name] for name in names))
        observations = stack([stack(segments[name]) for name in names])
        steps = len(names), observations.shape[1] - 1
        return _fragments(observations, np.zeros(steps, np.int64), np.full(steps, np.nan), [False] * len(names))

    left, right, preferences = zip(*found["prefs"], strict=True)
    return _compared(named(list(left)), named(list(right)), np.stack([stack(mu) for mu in preferences])[:, 0])


def _fragments(observations: Array, actions: Array, rewards: Array, terminated: list[bool]) -> Fragments:
    zeros = np.zeros(len(terminated), np.int64)
    return Fragments(observations, actions, rewards, np.array(terminated, bool), zeros, zeros)


def _compared(left: Fragments, right: Fragments, preferences: Array) -> Comparisons:
    n = len(left)
    pairs = Pairs.of(Fragments.concatenate([left, right]), np.stack([np.arange(n), np.arange(n) + n], axis=1))
    return Comparisons(pairs, preferences.astype(np.float32))
