"""A store's comparisons for others: a data set with a card, and imitation's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import yaml

from rlhf_ray.cli.store import run
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.settings import SettingError
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.exchange import export, import_file
from tests.made_up import CHOICES, IMAGES, same_comparisons, some_comparisons

SPACES: list[dict[str, gym.Space[Any]]] = [{}, {"observations": IMAGES, "actions": CHOICES}]


@pytest.mark.parametrize("spaces", SPACES, ids=["vectors", "images"])
def test_datasets_opens_an_exported_folder(
    tmp_path: Path, spaces: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    datasets = pytest.importorskip("datasets", reason="a dependency of the extra 'imitation'")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    batch = some_comparisons(70, 2, **spaces)  # two row groups
    store = PreferenceStore(tmp_path / "store")
    store.commit(batch, annotator="Anna Smith")
    store.commit(some_comparisons(3, 2, seed=1, **spaces), annotator="Ben")
    store.weigh("Ben", 0.5)
    run(["export", str(tmp_path / "store"), str(tmp_path / "out")])
    assert capsys.readouterr().out == f"{tmp_path / 'out'}: 73 comparisons\n"
    read = datasets.load_dataset(str(tmp_path / "out"), split="train", cache_dir=str(tmp_path / "cache"))
    rows = read[:70]
    for side, of in (("left", batch.pairs.left), ("right", batch.pairs.right)):
        for name in ("observations", "actions", "rewards", "terminated"):
            np.testing.assert_array_equal(rows[f"{side}_{name}"], getattr(of, name))
            kind = read.features[f"{side}_{name}"]
            while hasattr(kind, "feature"):
                kind = kind.feature
            assert kind.dtype == str(getattr(of, name).dtype)
    np.testing.assert_array_equal(rows["preference"], batch.preferences)
    assert read["annotator"][69:71] == ["annotator-1", "annotator-2"]
    assert read["weight"][69:71] == [1.0, 0.5]
    assert read["pair_id"][:70] == list(batch.pairs.ids)
    card = (tmp_path / "out" / "README.md").read_text()
    header = yaml.safe_load(card.split("---")[1])
    assert header["size_categories"] == ["n<1K"]
    assert header["configs"][0]["data_files"] == [{"split": "train", "path": "data/*.parquet"}]
    assert "73 comparisons of two clips of 2 environment steps each, by 2 annotators" in card
    written = b"".join(file.read_bytes() for file in (tmp_path / "out").rglob("*") if file.is_file())
    assert b"Anna" not in written


@pytest.mark.parametrize("wrong", [0, 5])
def test_the_card_tells_how_far_people_agree(wrong: int, tmp_path: Path) -> None:
    batch, store = some_comparisons(20, 2), PreferenceStore(tmp_path / "store")
    store.commit(batch, annotator="Ann", annotator_type="human")
    flipped = np.where(np.arange(20) < wrong, 1 - batch.preferences, batch.preferences).astype(np.float32)
    export(store, tmp_path / "alone")
    assert "Agreement" not in (tmp_path / "alone" / "README.md").read_text()
    store.commit(Comparisons(batch.pairs, flipped), annotator="Ben", annotator_type="human")
    export(store, tmp_path / "two")
    card = (tmp_path / "two" / "README.md").read_text()
    found = store.agreement()
    assert f"Agreement: Krippendorff's alpha {found.alpha:.2f} on 20 shared pairs" in card
    assert found.raw == (20 - wrong) / 20
    assert ("reliable" in card) == (wrong == 0)


def test_a_folder_that_is_something_else_is_not_replaced(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "store")
    with pytest.raises(SettingError, match="no comparisons to export"):
        export(store, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    store.commit(some_comparisons(2), annotator="oracle")
    with pytest.raises(SettingError, match="not a data set that was exported here"):
        run(["export", str(tmp_path / "store"), str(tmp_path), "--overwrite"])
    assert export(store, tmp_path / "out") == 2
    run(["export", str(tmp_path / "store"), str(tmp_path / "out"), "--overwrite"])


@pytest.mark.parametrize("spaces", SPACES, ids=["vectors", "images"])
def test_imitation_opens_an_exported_file_and_it_comes_back(tmp_path: Path, spaces: Any) -> None:
    pc = pytest.importorskip("imitation.algorithms.preference_comparisons", reason="the extra 'imitation'")
    batch = some_comparisons(5, **spaces)
    store = PreferenceStore(tmp_path / "store")
    store.commit(batch, annotator="oracle")
    store.commit(some_comparisons(2, seed=1, **spaces), annotator="careless")
    store.weigh("careless", 0.0)
    assert export(store, tmp_path / "out" / "preferences.pkl") == 5
    dataset = pc.PreferenceDataset.load(tmp_path / "out" / "preferences.pkl")
    assert len(dataset) == 5
    (left, right), preference = dataset[3]
    np.testing.assert_array_equal(left.obs, batch.pairs.left.observations[3])
    np.testing.assert_array_equal(right.rews, batch.pairs.right.rewards[3])
    assert (preference, right.terminal) == (batch.preferences[3], batch.pairs.right.terminated[3])
    other = PreferenceStore(tmp_path / "other")
    assert import_file(other, tmp_path / "out" / "preferences.pkl") == 5
    loaded = other.load()
    assert loaded is not None
    assert loaded.pairs.ids == batch.pairs.ids
    del loaded, dataset
    assert same_comparisons(store.snapshot().gather(slice(5)), batch)
