"""A store's active comparisons for others: a data set with a card, and imitation's ``PreferenceDataset``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rlhf_ray.data.atomic import whole_file, whole_folder
from rlhf_ray.data.by_pip import IMITATION
from rlhf_ray.data.columns import to_lists
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.measure.agreement import AnnotatorAgreement
from rlhf_ray.store.store import PreferenceStore

AT_ONCE = 64
"""Comparisons per row group. Bounds the fragments in memory."""

CARD, DATA = "README.md", "data/train-00000-of-00001.parquet"
ARRAYS = ("observations", "actions", "rewards")
LABELS = ("pair_id", "t_answered", "view_ms", "presented_swapped", "policy_version", "reward_version")


def write_dataset(store: PreferenceStore, out: Path) -> int:
    """Write the active comparisons to the folder ``out``, which Hugging Face's ``datasets.load_dataset`` opens and its hub shows.

    The folder has one Parquet file and a card (``README.md``) with the header that the hub reads. One row is one comparison:
    ``left_observations`` ``[length + 1, …]``, ``left_actions`` and ``left_rewards`` ``[length, …]`` as nested lists,
    ``left_terminated``, the same for the right side, ``preference``, ``annotator`` and ``weight``, and more about the answer.
    Annotators are numbered in the order of their first answer; their names stay in the store.

    Returns:
        The number of comparisons.

    Raises:
        SettingError: there are none, or ``out`` exists and is not such a folder.
    """
    if out.exists() and not all((out / name).is_file() for name in (CARD, DATA)):
        raise SettingError(f"{out} exists and is not a data set that was exported here; give another folder.")
    snapshot, weights, count = store.snapshot(), store.weights(), 0
    numbers = {name: number for number, name in enumerate(dict.fromkeys(snapshot.annotators), 1)}
    answers: Counter[float] = Counter()
    with whole_folder(out) as new:
        (new / DATA).parent.mkdir()
        writer = None
        for batch, labels in _batches(store):
            columns: dict[str, Any] = {}
            for side, fragments in (("left", batch.pairs.left), ("right", batch.pairs.right)):
                columns |= {f"{side}_{name}": to_lists(getattr(fragments, name)) for name in ARRAYS}
                columns[f"{side}_terminated"] = pa.array(fragments.terminated)
            columns["preference"] = pa.array(batch.preferences)
            names = labels["annotator"].to_pylist()
            columns["annotator"] = pa.array([f"annotator-{numbers[name]}" for name in names])
            columns["annotator_type"] = labels["annotator_type"]
            columns["weight"] = pa.array([weights.get(name, 1.0) for name in names])
            columns |= {name: labels[name] for name in LABELS}
            table = pa.table(columns)
            writer = writer or pq.ParquetWriter(new / DATA, table.schema, compression="zstd")
            writer.write_table(table)
            count += len(batch)
            answers.update(batch.preferences.tolist())
        if writer is None:
            raise SettingError(f"{store.path} has no comparisons to export; collect some first.")
        writer.close()
        (new / CARD).write_text(_card(batch, answers, len(numbers), store.agreement()), encoding="utf-8")
    return count


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
    for batch, labels in _batches(store):
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
        kept = [row for row, name in enumerate(labels["annotator"].to_pylist()) if name not in excluded]
        if kept:
            dataset.push([pairs[row] for row in kept], batch.preferences[kept])
    if not len(dataset):
        raise SettingError(f"{store.path} has no comparisons to export; collect some first.")
    out.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(out) as sink:
        dataset.save(sink.name)
    return len(dataset)


WRITERS: Mapping[str, Callable[[PreferenceStore, Path], int]] = {"": write_dataset, ".pkl": write_imitation}
"""Writes the active comparisons, by the suffix of the file or folder."""


def _batches(store: PreferenceStore) -> Iterator[tuple[Comparisons, pa.Table]]:
    """Yield the active comparisons with their rows of labels, `AT_ONCE` at a time."""
    snapshot = store.snapshot()
    for start in range(0, len(snapshot), AT_ONCE):
        part = slice(start, start + AT_ONCE)
        yield snapshot.gather(part), snapshot.labels.slice(start, AT_ONCE)


def _card(of: Comparisons, answers: Counter[float], annotators: int, agreed: AnnotatorAgreement) -> str:
    """Write the data set card."""
    fragments, n = of.pairs.left, answers.total()
    size = next((name for most, name in SIZES if n < most), "n>1M")
    shapes = {name: list(np.shape(getattr(fragments, name))[1:]) for name in ARRAYS}
    dtypes = {name: getattr(fragments, name).dtype for name in ARRAYS}
    rows = "\n".join(
        f"| `left_{name}`, `right_{name}` | {dtypes[name]} {shapes[name]} | {meaning} |"
        for name, meaning in zip(
            ARRAYS,
            (
                "what the agent saw; the last one is after the last step",
                "what it did",
                "the true rewards, unknown to the annotators; NaN if unknown",
            ),
            strict=True,
        )
    )
    return CARD_TEXT.format(
        size=size,
        n=n,
        length=shapes["rewards"][0],
        left=answers[1.0],
        right=answers[0.0],
        other=n - answers[1.0] - answers[0.0],
        annotators=f"{annotators} annotator{'s' if annotators > 1 else ''}",
        agreement=f"Agreement: {agreed}.\n\n" if agreed.units else "",
        rows=rows,
    )


SIZES = ((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M"))
"""The hub's names of sizes."""

CARD_TEXT = """---
pretty_name: Comparisons of clips of behaviour
task_categories:
- reinforcement-learning
tags:
- preferences
- rlhf
- rlhf_ray
size_categories:
- {size}
configs:
- config_name: default
  data_files:
  - split: train
    path: data/*.parquet
---

# Comparisons of clips of behaviour

{n} comparisons of two clips of {length} environment steps each, by {annotators}: the left clip is better in {left}, the right one
in {right}; {other} are ties or soft labels. Written by `rlhf-ray store export`.

{agreement}```python
import datasets

comparisons = datasets.load_dataset("FOLDER", split="train").with_format("numpy")
```

| column | type | |
|---|---|---|
{rows}
| `left_terminated`, `right_terminated` | bool | whether the last step terminated the episode |
| `preference` | float32 | the probability that the left clip is better: 1, 0, or 0.5 for a tie |
| `annotator`, `annotator_type` | string | a number instead of the name; human, scripted or import |
| `weight` | float64 | the weight of the annotator's labels in fits; 0 excludes them |
| `pair_id` | string | the content of both clips, hashed |
| `t_answered`, `view_ms` | timestamp, int64 | when, and after how long |
| `presented_swapped` | bool | whether the left clip was shown on the right |
| `policy_version`, `reward_version` | int64 | which policy acted last, and which reward model chose the pair |
"""
