"""Where an algorithm built in Python writes: under runs/ as on the command line, or where it is told."""

import logging

import pytest

from rlhf_ray.data import places
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import LockedError
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.store import PreferenceStore
from tests.whole_runs import small


def test_comparisons_are_under_runs_and_a_line_says_where(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(places, "RUNS", str(tmp_path / "runs"))
    with caplog.at_level(logging.WARNING, "rlhf_ray"):
        algorithm = preference_config(small()).build_algo()
        algorithm.begin()
        algorithm.stop()
    (folder,) = (tmp_path / "runs").iterdir()
    assert folder.name.startswith("Pendulum-v1-seed3-")
    assert f"The comparisons are in {folder}/preferences; " in caplog.text
    assert len(PreferenceStore(folder / "preferences", create=False)) == 10


def test_a_folder_of_ones_own_has_everything_and_one_writer(tmp_path, monkeypatch, caplog):
    monkeypatch.chdir(tmp_path)
    config = preference_config(small()).preferences(run_dir="mine")
    algorithm = config.build_algo()
    assert algorithm.logdir == str(tmp_path / "mine")
    assert "comparisons are in" not in caplog.text
    with pytest.raises(LockedError, match=f"{tmp_path}/mine/preferences is being written by process "):
        config.build_algo()
    algorithm.stop()
    config.build_algo().stop()
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["preferences"]


def test_a_folder_that_can_not_be_made_is_named_and_a_refused_run_leaves_none(tmp_path, monkeypatch):
    monkeypatch.setattr(places, "RUNS", str(tmp_path / "runs"))
    (tmp_path / "file").touch()
    with pytest.raises(SettingError, match=f"folder {tmp_path}/file.* can't be made .*run_dir"):
        preference_config(small()).preferences(run_dir=tmp_path / "file" / "run").build_algo()
    with pytest.raises(SettingError, match=r"fragments\.length"):
        preference_config(small()).fragments(length=250).build_algo()
    assert not list((tmp_path / "runs").glob("*"))
