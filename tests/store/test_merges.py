"""Merges of stores: what does not fit is refused, what was brought can be taken back, and a store that was mixed opens again."""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Comparisons, pair_id
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.exchange import export, import_file
from tests.command_line import fails_with
from tests.made_up import CHOICES, some_comparisons, some_fragments
from tests.store.test_commands import run


def made(path: Path, n: int, length: int = 5, *, seed: int = 0, **spaces: Any) -> PreferenceStore:
    store = PreferenceStore(path)
    store.commit(some_comparisons(n, length, seed=seed, **spaces), annotator="oracle")
    return store


def files(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


def mixed(folder: Path) -> Path:
    """A store as versions before 1.2 left it after a merge of clips of another length: nothing was checked or remembered."""
    store, other = made(folder, 4, 5), made(folder.with_name("longer"), 3, 7, seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlhf_ray.store.merges.check_one_family", lambda held: None)
        patch.setattr("rlhf_ray.store.merges.brought", lambda events, *_: events)
        store.import_from(other.path)
    return folder


@pytest.mark.parametrize("spaces", [{"length": 7}, {"actions": CHOICES}])
def test_clips_of_another_kind_are_refused_before_anything_is_written(tmp_path, spaces, capsys):
    store, other = made(tmp_path / "store", 4), made(tmp_path / "other", 3, seed=1, **spaces)
    made(tmp_path / "fits", 2, seed=2)
    other.weigh("oracle", 0.5)
    export(other, tmp_path / "other.parquet")
    before = files(tmp_path)
    for words in (
        ["merge", "store", "fits", "other"],
        ["merge", "new", "fits", "other"],
        ["import", "store", "other.parquet"],
    ):
        (line,) = run(capsys, words[0], *(tmp_path / word for word in words[1:]), code=2).splitlines()
        assert "fragments of 5 steps" in line
        assert "separate stores" in line
    for adding in (
        lambda: store.import_from(other.path),
        lambda: store.commit(some_comparisons(1, seed=9, **spaces), annotator="oracle"),
        lambda: store.record([], some_fragments(1, seed=9, **spaces)),
    ):
        with pytest.raises(ValueError, match="fragments of 5 steps"):
            adding()
    assert files(tmp_path) == before
    assert len(store.load() or ()) == 4


def test_an_undo_takes_back_what_the_merge_brought_and_nothing_else(tmp_path, capsys):
    store = made(tmp_path / "store", 4)
    store.copy_to(tmp_path / "other")
    other = PreferenceStore(tmp_path / "other")
    other.commit(some_comparisons(3, seed=1), annotator="anna")
    other.record([Event("r", "retract", "oracle", target=store.events()["event_id"][0].as_py())])
    before = store.snapshot().ids
    assert store.import_from(other.path) == 2  # one was withdrawn
    store.commit(some_comparisons(1, seed=5), annotator="oracle")
    (merge,) = store.describe()["merges"]
    assert (merge["source"], merge["comparisons"]) == (str(other.path), 3)
    merged = store.since(0).last
    assert f"removed 3 comparisons from {other.path}" in run(capsys, "undo", tmp_path / "store")
    assert (store.snapshot().ids[:4], len(store), store.merges()) == (before, 5, [])
    changes = store.since(merged)  # as a run reads it
    assert len(changes.withdrawn) == 3
    assert changes.comparisons.pairs.ids == before[:1]
    assert "has no merge to undo" in run(capsys, "undo", tmp_path / "store", code=2)


def test_an_import_of_a_file_can_be_undone(tmp_path):
    store = made(tmp_path / "store", 4)
    export(made(tmp_path / "other", 70, seed=1), tmp_path / "out.parquet")
    assert import_file(store, tmp_path / "out.parquet") == 70
    assert "70 comparisons from" in store.undo()
    assert len(store) == 4


def test_an_undo_that_is_interrupted_is_repeated(tmp_path, monkeypatch):
    store, other = made(tmp_path / "store", 4), made(tmp_path / "other", 3, seed=1)
    other.weigh("oracle", 0.5)
    store.import_from(other.path)

    def fail(*_: Any) -> None:
        raise OSError("the disk is full")

    with monkeypatch.context() as patch:
        patch.setattr("rlhf_ray.store.writing.write_segment", fail)
        with pytest.raises(OSError, match="disk is full"):
            store.undo()
    assert len(PreferenceStore(tmp_path / "store")) == 7
    PreferenceStore(tmp_path / "store").undo()
    assert len(store) == 4
    assert store.weights() == {}


def test_a_store_that_an_older_version_mixed_names_the_command_that_repairs_it(tmp_path, capsys):
    path = mixed(tmp_path / "store")
    store = PreferenceStore(path)
    assert len(store) == 7
    for load in (store.load, lambda: store.since(0), lambda: store.snapshot().gather(np.arange(2))):
        with pytest.raises(ValueError, match=f"rlhf-ray store undo {path}"):
            load()
    said = fails_with(capsys, "fit", path, "--environment", "Pendulum-v1", "--out", tmp_path / "fit")
    (line,) = said.splitlines()
    assert f"rlhf-ray store undo {path}" in line
    (problem,) = store.verify().problems
    assert f"rlhf-ray store undo {path}" in problem
    assert "removed 3 comparisons of fragments of 7 steps" in run(capsys, "undo", path)
    found = PreferenceStore(path).load()
    assert (len(found), found.pairs.left.length) == (4, 5)
    assert PreferenceStore(path).verify().problems == ()


def _wide(comparisons: Comparisons) -> Comparisons:
    """With float64 observations, as MuJoCo's environments have them."""
    sides = (comparisons.pairs.left, comparisons.pairs.right)
    left, right = (dataclasses.replace(side, observations=side.observations.astype(np.float64) / 3) for side in sides)
    ids = tuple(pair_id(*sides) for sides in zip(left.ids(), right.ids(), strict=True))
    return Comparisons(dataclasses.replace(comparisons.pairs, left=left, right=right, ids=ids), comparisons.preferences)


@pytest.mark.parametrize("length", [5, 200])  # joined in memory, and gathered from the files
def test_floats_of_two_widths_share_a_store(tmp_path, length):
    narrow, wide = some_comparisons(4, length), _wide(some_comparisons(3, length, seed=1))
    store = made(tmp_path / "store", 4, length)
    other = PreferenceStore(tmp_path / "other")
    other.commit(wide, annotator="oracle")
    assert store.import_from(other.path) == 3
    store.commit(_wide(some_comparisons(2, length, seed=2)), annotator="oracle")
    held = store.load()
    assert held.pairs.left.observations.dtype == np.float64
    for side in ("left", "right"):
        found, first, then = (getattr(of.pairs, side).observations for of in (held, narrow, wide))
        assert np.array_equal(found[:4], first)
        assert np.array_equal(found[4:7], then)
    part = store.snapshot().gather(slice(0, 2))
    assert part.pairs.left.observations.dtype == np.float64  # one dtype, whatever the batch
    store.compact()
    assert not store.verify().problems
    export(store, tmp_path / "out.parquet")
    again = PreferenceStore(tmp_path / "again")
    import_file(again, tmp_path / "out.parquet")
    assert again.load().pairs.ids == held.pairs.ids  # type: ignore[union-attr]
    assert np.array_equal(again.load().pairs.right.observations, held.pairs.right.observations)  # type: ignore[union-attr]
    assert not again.verify().problems  # ids are hashes of what was stored
