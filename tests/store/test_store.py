import json
import os
import tracemalloc
from pathlib import Path

import duckdb
import gymnasium as gym
import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.store import LABELS, PreferenceStore
from tests.made_up import CHOICES, IMAGES, joined, same_comparisons, some_comparisons, some_fragments


def _commit(store: PreferenceStore, comparisons: Comparisons) -> int:
    return store.commit(comparisons, annotator="oracle")


def _load(path: Path) -> Comparisons:
    return PreferenceStore(path).load()


@pytest.mark.parametrize("actions", [CHOICES, gym.spaces.Box(-1, 1, (2, 3), np.float32)])
@pytest.mark.parametrize("observations", [IMAGES, gym.spaces.Box(-1, 1, (4,), np.float32)])
def test_shapes_and_dtypes_are_kept(tmp_path, observations, actions):
    comparisons = some_comparisons(3, observations=observations, actions=actions)
    _commit(PreferenceStore(tmp_path), comparisons)
    loaded = _load(tmp_path)
    assert same_comparisons(loaded, comparisons)  # dtypes are part of it
    assert loaded.pairs.left.observations.dtype == observations.dtype
    assert loaded.pairs.left.actions.dtype == (np.int64 if actions is CHOICES else np.float32)
    assert loaded.preferences.dtype == np.float32
    assert loaded.pairs.left.ids() == comparisons.pairs.left.ids()


def test_an_answer_is_stored_once_the_first_one(tmp_path):
    store, batch = PreferenceStore(tmp_path), some_comparisons(4)
    twice = Comparisons(batch[np.array([0, 1, 0])].pairs, np.array([1, 0, 0], dtype=np.float32))
    assert _commit(store, twice) == len(store) == 2
    assert _commit(store, batch) == 2
    assert _commit(store, batch) == _commit(PreferenceStore(tmp_path), batch) == 0
    loaded = _load(tmp_path)
    assert (loaded.pairs.ids, loaded.preferences[:2].tolist()) == (batch.pairs.ids, [1, 0])


def test_each_clip_is_stored_once_however_often_it_is_asked_about(tmp_path):
    clips = some_fragments(4)
    store = PreferenceStore(tmp_path)
    for index in ([[0, 1], [1, 2], [0, 2]], [[3, 0], [2, 1]], [[1, 0]]):
        pairs = Pairs.of(clips, np.array(index))
        _commit(store, Comparisons(pairs, np.ones(len(pairs), dtype=np.float32)))
        store = PreferenceStore(tmp_path)
    files = list((tmp_path / "clips").iterdir())
    stored = [name for file in files for name in pa.ipc.open_file(file).read_all()["clip_id"].to_pylist()]
    assert sorted(stored) == sorted(clips.ids())
    assert len(files) == 2  # the last commit brought no new clip
    assert len(_load(tmp_path)) == 6


def test_a_newer_major_version_is_refused(tmp_path):
    PreferenceStore(tmp_path)
    described = json.loads((tmp_path / "store.json").read_text())
    (tmp_path / "store.json").write_text(json.dumps(described | {"minor": 99}))
    PreferenceStore(tmp_path)
    for content, said in (
        (
            json.dumps(described | {"major": described["major"] + 1}),
            "has format rlhf_ray.preferences 2; this version reads",
        ),
        ("{", "store.json is damaged .* replace its content with"),
        (json.dumps(described | {"format": "something.else"}), "has format something.else"),
    ):
        (tmp_path / "store.json").write_text(content)
        with pytest.raises(ValueError, match=said):
            PreferenceStore(tmp_path)


def test_a_folder_of_something_else_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(ValueError, match="neither empty nor a preference store"):
        PreferenceStore(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_store_whose_making_was_cut_short_can_be_opened(tmp_path):
    (tmp_path / ".tmp-1-store.json").write_text('{"form')
    PreferenceStore(tmp_path)
    for folder in ("clips", "labels"):
        (tmp_path / folder).rmdir()
    assert _commit(PreferenceStore(tmp_path), some_comparisons(1)) == 1


def test_the_files_open_without_this_library(tmp_path):
    batch = some_comparisons(3, observations=IMAGES, reward_version=4)
    PreferenceStore(tmp_path).commit(batch, annotator="anna", annotator_type="human")
    (labels,) = (tmp_path / "labels").iterdir()
    table = pd.read_parquet(labels)
    columns = {"pair_id": batch.pairs.ids, "preference": batch.preferences, "left_id": batch.pairs.left.ids()}
    columns |= {
        "sequence": (1, 2, 3),
        "annotator": ["anna"] * 3,
        "annotator_type": ["human"] * 3,
        "kind": ["label"] * 3,
    }
    for name, values in (columns | {"reward_version": [4] * 3}).items():
        assert table[name].tolist() == list(values)
    assert str(table["t_answered"].dt.tz) == "UTC"
    assert pq.ParquetFile(labels).schema_arrow.field("preference").type == pa.float32()
    (clips,) = (tmp_path / "clips").iterdir()
    rows = pa.ipc.open_file(clips).read_all()
    first = rows["clip_id"].to_pylist().index(batch.pairs.right.ids()[1])
    observations = rows["observations"].chunk(0).to_numpy_ndarray()
    assert np.array_equal(observations[first], batch.pairs.right.observations[1])
    assert pl.read_parquet(tmp_path / "labels" / "*.parquet")["pair_id"].to_list() == list(batch.pairs.ids)
    assert pl.read_ipc(clips)["clip_id"].to_list() == rows["clip_id"].to_pylist()
    counted = duckdb.sql(f"select annotator, count(*) from '{tmp_path}/labels/*.parquet' group by 1").fetchall()
    assert counted == [("anna", 3)]


def test_a_snapshot_does_not_copy_the_clips_into_memory(tmp_path):
    many = some_comparisons(100, 10, observations=IMAGES)
    _commit(PreferenceStore(tmp_path), many)
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    snapshot = PreferenceStore(tmp_path).snapshot()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert pa.total_allocated_bytes() - before < many.pairs.left.nbytes / 10  # Arrow's memory
    assert peak < many.pairs.left.nbytes / 10  # Python's and numpy's
    some = snapshot.gather(np.array([7, 3]))
    some.pairs.left.observations[:] = 0  # the result is no view of the file
    assert same_comparisons(snapshot.gather(slice(None)), many)


def test_a_snapshot_gathers_any_of_its_comparisons_in_any_order(tmp_path):
    batches = [some_comparisons(4, seed=seed, reward_version=seed) for seed in range(3)]
    for batch in batches:
        _commit(PreferenceStore(tmp_path), batch)
    everything, snapshot = joined(batches), PreferenceStore(tmp_path).snapshot()
    assert len(snapshot) == 12
    assert snapshot.ids == everything.pairs.ids
    assert snapshot.annotators == ("oracle",) * 12
    assert np.array_equal(snapshot.preferences, everything.preferences)
    one_file, many_of_each = np.array([1, 0, 3, 0]), np.arange(12).repeat(3)[::-1]
    for index in (np.array([11, 0, 5, 5]), slice(2, 9), np.arange(12) % 2 == 0, one_file, many_of_each):
        assert same_comparisons(snapshot.gather(index), everything[index])
    assert snapshot.gather(np.array([0, 5])).pairs.reward_version == 1


def test_a_snapshot_stays_as_it_is_while_the_store_goes_on_and_is_compacted(tmp_path):
    store, first = PreferenceStore(tmp_path), some_comparisons(3)
    _commit(store, first)
    snapshot = store.snapshot()
    _commit(store, some_comparisons(3, seed=1))
    store.compact()
    assert same_comparisons(snapshot.gather(slice(None)), first)


def test_a_training_window_is_the_last_comparisons_and_deletes_nothing(tmp_path):
    store, batches = PreferenceStore(tmp_path), [some_comparisons(3, seed=seed) for seed in range(3)]
    for batch in batches:
        _commit(store, batch)
    everything = joined(batches)
    assert same_comparisons(store.load(last=4), everything[5:])
    assert len(store.snapshot(last=100)) == len(store) == 9
    assert store.load(last=0) is None


@pytest.mark.parametrize("linked", [True, False])
def test_a_copy_is_a_store_of_its_own(tmp_path, monkeypatch, linked):
    def link(source: Path, target: Path) -> None:
        raise OSError(18, "Invalid cross-device link")

    if not linked:
        monkeypatch.setattr(os, "link", link)
    store = PreferenceStore(tmp_path / "one")
    first, second, third = (some_comparisons(2, seed=seed) for seed in range(3))
    _commit(store, first)
    store.copy_to(tmp_path / "one")  # onto itself: loses nothing
    store.copy_to(tmp_path / "two")
    assert same_comparisons(_load(tmp_path / "two"), first)
    _commit(PreferenceStore(tmp_path / "two"), second)
    _commit(store, third)
    assert same_comparisons(_load(tmp_path / "one"), joined([first, third]))
    assert same_comparisons(_load(tmp_path / "two"), joined([first, second]))


def test_the_format_is_what_the_documentation_of_existing_stores_says(tmp_path):
    PreferenceStore(tmp_path)
    assert json.loads((tmp_path / "store.json").read_text()) == {
        "format": "rlhf_ray.preferences",
        "major": 1,
        "minor": 3,
    }
    assert LABELS.names == [
        *("sequence", "event_id", "kind", "target", "pair_id", "left_id", "right_id", "preference"),
        *("annotator", "annotator_type", "presented_swapped", "t_shown", "t_answered", "view_ms", "session", "run_id"),
        *("policy_version", "reward_version", "extra", "merge"),
    ]


def test_an_empty_store_is_true_and_asking_reads_nothing(tmp_path):
    assert bool(PreferenceStore.__new__(PreferenceStore))  # as Ray asks of one whose __init__ has failed
    assert len(PreferenceStore(tmp_path)) == 0


def test_a_replaced_store_holds_what_the_other_holds_and_its_own_content_is_kept_beside_it(tmp_path):
    own, donor = some_comparisons(3, seed=1), some_comparisons(5, seed=2)
    store, other = PreferenceStore(tmp_path / "own"), PreferenceStore(tmp_path / "donor")
    _commit(store, own)
    _commit(other, donor)
    other.weigh("oracle", 0.5)
    with pytest.raises(ValueError, match="not a preference store"):
        store.replace_with(tmp_path / "nothing")
    assert len(store) == 3
    store.replace_with(tmp_path / "donor")
    for now in (store, PreferenceStore(tmp_path / "own", create=False)):
        assert same_comparisons(now.load(), donor)
        assert now.weights() == {"oracle": 0.5}
        assert now.verify().problems == ()
        assert now.tally() == other.tally()
    store.replace_with(tmp_path / "donor")
    for number, comparisons in ((1, own), (2, donor)):
        kept = PreferenceStore(tmp_path / f"own.replaced-{number}", create=False).load()
        assert same_comparisons(kept, comparisons)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["donor", "own", "own.replaced-1", "own.replaced-2"]
    store.commit(own, annotator="oracle")
    assert (len(store), len(other)) == (8, 5)


def test_a_replacement_that_was_cut_off_between_its_two_steps_can_be_repeated(tmp_path):
    donor = some_comparisons(5, seed=2)
    PreferenceStore(tmp_path / "donor").commit(donor, annotator="oracle")
    PreferenceStore(tmp_path / "own").commit(some_comparisons(3, seed=1), annotator="oracle")
    (tmp_path / "own").rename(tmp_path / "own.replaced-1")
    restarted = PreferenceStore(tmp_path / "own")
    restarted.replace_with(tmp_path / "donor")
    assert same_comparisons(restarted.load(), donor)
    assert len(PreferenceStore(tmp_path / "own.replaced-1", create=False)) == 3


def test_a_store_at_a_url_is_not_replaced(tmp_path):
    PreferenceStore(tmp_path / "donor")
    with pytest.raises(ValueError, match="memory://replaced"):
        PreferenceStore("memory://replaced").replace_with(tmp_path / "donor")
