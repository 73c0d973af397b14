"""The preference store: comparisons on disk, durable when `PreferenceStore.commit` returns.

Layout of the folder (everything in it is immutable once it has its name, and opens with pyarrow, pandas, polars or duckdb)::

    store.json                     format and version
    clips/NUMBER-HASH.arrow        Arrow IPC: the fragments of one commit that were not stored before, one row each
    labels/NUMBER-HASH.parquet     Parquet with page checksums: one row for each answer of one commit

A commit writes the clips, then the labels that name them, each under a temporary name that is flushed to the disk and then
renamed. A process that is killed leaves whole files and perhaps a ``.tmp-`` file, which readers ignore.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pyarrow.parquet as pq

from rlhf_ray.arrays import Array
from rlhf_ray.comparisons import Comparisons, Pairs
from rlhf_ray.fragments import Fragments

FORMAT, MAJOR, MINOR = "rlhf_ray.preferences", 1, 0

LABELS = pa.schema(
    [
        ("event_id", pa.string()),
        ("kind", pa.string()),
        ("pair_id", pa.string()),
        ("left_id", pa.string()),
        ("right_id", pa.string()),
        ("preference", pa.float32()),
        ("annotator", pa.string()),
        ("annotator_type", pa.string()),
        ("answered_at", pa.timestamp("us", tz="UTC")),
        ("reward_version", pa.int64()),
    ]
)
"""One row for each answer. ``preference`` is the probability that the left clip is better: 1, 0, or 0.5 for a tie."""


class PreferenceStore:
    """The comparisons in the folder ``path``, which is made if it is not there. One writer at a time.

    Raises:
        ValueError: the folder is no preference store, or one written by a newer major version.
    """

    def __init__(self, path: Path | str):
        self.path = Path(path)
        self._prepare()
        self._read_index()

    def _read_index(self) -> None:
        self._clips: dict[str, tuple[Path, int]] = {}
        self._events: set[str] = set()
        for file in self._files("clips"):
            for row, name in enumerate(_open_clips(file).column("clip_id").to_pylist()):
                self._clips[name] = (file, row)
        self._events.update(self._labels()["event_id"].to_pylist())

    def __len__(self) -> int:
        return len(self._events)

    def commit(self, comparisons: Comparisons, *, annotator: str, annotator_type: str = "scripted") -> int:
        """Store ``comparisons``. When this returns they are on the disk.

        Committing again what ``annotator`` has already answered stores nothing, so that a commit may be repeated.

        Returns:
            How many comparisons were new.
        """
        ids = comparisons.pairs.ids
        events = [hashlib.sha256(f"{pair}|{annotator}".encode()).hexdigest()[:32] for pair in ids]
        first = {event: i for i, event in reversed(list(enumerate(events)))}  # a batch may hold a pair twice
        new = np.array(sorted(i for event, i in first.items() if event not in self._events), dtype=np.int64)
        if len(new) == 0:
            return 0
        left, right = comparisons.pairs.left[new], comparisons.pairs.right[new]
        left_ids, right_ids = left.ids(), right.ids()
        self._commit_clips(Fragments.concatenate([left, right]), left_ids + right_ids)
        table = pa.table(
            {
                "event_id": [events[i] for i in new],
                "kind": ["label"] * len(new),
                "pair_id": [ids[i] for i in new],
                "left_id": left_ids,
                "right_id": right_ids,
                "preference": comparisons.preferences[new].astype(np.float32),
                "annotator": [annotator] * len(new),
                "annotator_type": [annotator_type] * len(new),
                "answered_at": [datetime.now(UTC)] * len(new),
                "reward_version": [comparisons.pairs.reward_version] * len(new),
            },
            schema=LABELS,
        )
        content = hashlib.sha256("".join(table["event_id"].to_pylist()).encode()).hexdigest()
        file = self._name("labels", content, "parquet")
        _write(file, lambda temporary: pq.write_table(table, temporary, write_page_checksum=True))
        self._events.update(events[i] for i in new)
        return len(new)

    def load(self) -> Comparisons | None:
        """All comparisons in the order they were committed; None when there are none."""
        labels = self._labels()
        if len(labels) == 0:
            return None
        columns = {name: labels[name].to_pylist() for name in ("left_id", "right_id", "pair_id", "reward_version")}
        pairs = Pairs(
            self._fragments(columns["left_id"]),
            self._fragments(columns["right_id"]),
            tuple(columns["pair_id"]),
            max(columns["reward_version"]),
        )
        return Comparisons(pairs, labels["preference"].to_numpy().astype(np.float32))

    def import_from(self, path: Path | str) -> int:
        """Add the comparisons of another store that this one lacks, with their files as they are.

        Returns:
            How many comparisons were new.
        """
        before = len(self)
        if not (Path(path) / "store.json").exists():
            raise ValueError(f"{path} is no preference store (it has no store.json).")
        other = PreferenceStore(path)
        for folder in ("clips", "labels"):
            have = {file.name.split("-", 1)[1] for file in self._files(folder)}
            for file in other._files(folder):
                content, suffix = file.name.split("-", 1)[1].rsplit(".", 1)
                if f"{content}.{suffix}" not in have:
                    _write(self._name(folder, content, suffix), partial(shutil.copyfile, file))
        self._read_index()
        return len(self) - before

    def copy_to(self, path: Path | str) -> None:
        """Copy the store to the folder ``path``: by hard links where the file system allows, since files never change."""
        for file in [self.path / "store.json", *self._files("clips"), *self._files("labels")]:
            target = Path(path) / file.relative_to(self.path)
            target.parent.mkdir(parents=True, exist_ok=True)
            if target.exists() and target.samefile(file):
                continue
            target.unlink(missing_ok=True)
            try:
                os.link(file, target)
            except OSError:
                target.write_bytes(file.read_bytes())

    def _prepare(self) -> None:
        description = self.path / "store.json"
        if description.exists():
            found = json.loads(description.read_text())
            if found.get("format") != FORMAT or found.get("major", 0) > MAJOR:
                raise ValueError(
                    f"{self.path} has format {found.get('format')} {found.get('major')}; this version reads {FORMAT} up to {MAJOR}."
                )
        else:
            if self.path.exists() and any(not file.name.startswith(".tmp-") for file in self.path.iterdir()):
                raise ValueError(
                    f"{self.path} is not empty and no preference store (it has no store.json); name another folder."
                )
            self.path.mkdir(parents=True, exist_ok=True)
            content = json.dumps({"format": FORMAT, "major": MAJOR, "minor": MINOR}) + "\n"
            _write(description, lambda temporary: temporary.write_text(content))
        # After store.json, so that a process killed here leaves what the next one takes for a store.
        if not all((self.path / folder).is_dir() for folder in ("clips", "labels")):
            for folder in ("clips", "labels"):
                (self.path / folder).mkdir(exist_ok=True)
            _flush(self.path)

    def _commit_clips(self, fragments: Fragments, names: list[str]) -> None:
        first = {name: i for i, name in reversed(list(enumerate(names)))}
        new = [i for name, i in sorted(first.items(), key=lambda item: item[1]) if name not in self._clips]
        if not new:
            return
        chosen = fragments[np.array(new)]
        table = pa.table(
            {
                "clip_id": [names[i] for i in new],
                "observations": _tensors(chosen.observations),
                "actions": _tensors(chosen.actions),
                "rewards": _tensors(chosen.rewards),
                "terminated": chosen.terminated,
                "start": chosen.starts,
                "policy_version": chosen.policy_versions,
            }
        )
        file = self._name("clips", hashlib.sha256("".join(names[i] for i in new).encode()).hexdigest(), "arrow")

        def write(temporary: Path) -> None:
            with pa.OSFile(str(temporary), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)

        _write(file, write)
        for row, i in enumerate(new):
            self._clips[names[i]] = (file, row)

    def _fragments(self, names: list[str]) -> Fragments:
        """The fragments with these ids, gathered file by file from memory-mapped columns."""
        by_file: dict[Path, list[int]] = {}
        for position, name in enumerate(names):
            by_file.setdefault(self._clips[name][0], []).append(position)
        parts, positions = [], []
        for file, where in by_file.items():
            rows = np.array([self._clips[names[position]][1] for position in where])
            parts.append(_fragments_of(_open_clips(file))[rows])
            positions += where
        return Fragments.concatenate(parts)[np.argsort(positions)]

    def _labels(self) -> pa.Table:
        files = self._files("labels")
        tables = [pq.read_table(file, schema=LABELS, page_checksum_verification=True) for file in files]
        if not tables:
            return LABELS.empty_table()
        table = pa.concat_tables(tables)
        # Stores that grew apart and were joined may hold an answer twice.
        first = {event: i for i, event in reversed(list(enumerate(table["event_id"].to_pylist())))}
        return table if len(first) == len(table) else table.take(sorted(first.values()))

    def _files(self, folder: str) -> list[Path]:
        return sorted(file for file in (self.path / folder).iterdir() if not file.name.startswith(".tmp-"))

    def _name(self, folder: str, content: str, suffix: str) -> Path:
        return self.path / folder / f"{len(self._files(folder)):08d}-{content[:32]}.{suffix}"


def _tensors(values: Array) -> pa.Array:
    """``[n, …]`` as ``n`` fixed-shape tensors."""
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(values))


def _open_clips(file: Path) -> pa.Table:
    """The table in ``file``; its columns are views of the memory-mapped file."""
    return pa.ipc.open_file(pa.memory_map(str(file))).read_all()


def _fragments_of(table: pa.Table) -> Fragments:
    def tensors(name: str) -> Array:
        column = table[name]
        # Joining chunks copies them out of the memory-mapped file, even where there is only one.
        array: Array = (column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()).to_numpy_ndarray()
        return array

    return Fragments(
        observations=tensors("observations"),
        actions=tensors("actions"),
        rewards=tensors("rewards"),
        terminated=table["terminated"].to_numpy(),
        starts=table["start"].to_numpy(),
        policy_versions=table["policy_version"].to_numpy(),
    )


def _write(file: Path, write: Callable[[Path], Any]) -> None:
    """Let ``write`` make a temporary file, flush it to the disk, give it its name, and flush the folder."""
    temporary = file.with_name(f".tmp-{os.getpid()}-{file.name}")
    write(temporary)
    _flush(temporary)
    temporary.replace(file)
    _flush(file.parent)


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
