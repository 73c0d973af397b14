"""A sweep resumes from whole files or not at all."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path

import pytest

from rlhf_ray.data import signed
from rlhf_ray.data.checkpoints import add_manifest
from rlhf_ray.settings import SettingError
from rlhf_ray.sweeps import state
from rlhf_ray.sweeps.running import read_plan

STATE, SEARCH = "experiment_state-2026-01-02_03-04-05.json", "basic-variant-state-2026-01-02_03-04-05.json"
CHECKPOINT = "trial_0/checkpoint_000002"


def a_sweep(folder: Path) -> Path:
    """A sweep of one trial that was killed, with its state of before as Tune wrote it."""
    trial = folder / "trial_0"
    for number in (1, 2):
        (trial / f"checkpoint_{number:06d}").mkdir(parents=True)
        (trial / f"checkpoint_{number:06d}" / "weights").write_bytes(bytes(range(100)))
        add_manifest(trial / f"checkpoint_{number:06d}", "preferences")
    (folder / "sweep.json").write_text(json.dumps({"experiment": {}, "trials": 1}))
    (folder / "tuner.pkl").write_bytes(pickle.dumps({"name": "a sweep"}))
    (folder / SEARCH).write_bytes(pickle.dumps({"counter": 1}))
    (folder / STATE).write_text(json.dumps({"trial_data": [], "runner_data": {"_iteration": 12}, "stats": {}}))
    (trial / "result.json").write_text('{"env_steps": 1000}\n{"env_steps": 2000}\n')
    (trial / "progress.csv").write_text("env_steps\n1000\n2000\n")
    state.keep(folder, folder, {"trial_0": str(folder / CHECKPOINT)})
    return folder


def delete(file: Path) -> None:
    file.unlink()


def empty(file: Path) -> None:
    file.write_bytes(b"")


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-7])


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[len(content) // 3] ^= 1
    file.write_bytes(content)


FILES = [
    *(f"state/{name}" for name in ("sweep.json", "tuner.pkl", SEARCH, STATE, "trials.json")),
    f"{CHECKPOINT}/weights",
]


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("damage", [delete, empty, cut, flip])
def test_a_damaged_file_is_named_and_nothing_is_changed(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    folder = a_sweep(tmp_path / "sweep")
    state.check(folder)
    damage(folder / file)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    with pytest.raises(SettingError) as error:
        read_plan(folder)
    said = str(error.value)
    assert said.startswith(f"{folder / file} is ")
    assert "nothing was changed" in said
    assert "\n" not in said
    assert "bug report" not in said
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("file", ["sweep.json", "tuner.pkl", SEARCH, STATE])
@pytest.mark.parametrize("damage", [delete, empty, cut, flip])
def test_the_plan_and_tunes_own_files_may_be_damaged_or_old_as_a_kill_leaves_them(
    tmp_path: Path, file: str, damage: Callable[[Path], None]
) -> None:
    folder = a_sweep(tmp_path / "sweep")
    whole = (folder / file).read_bytes()
    damage(folder / file)
    state.check(folder)
    state.put_back(folder)
    assert (folder / file).read_bytes() == whole


def test_rows_that_are_no_rows_are_named(tmp_path: Path) -> None:
    folder = a_sweep(tmp_path / "sweep")
    (folder / "trial_0" / "result.json").write_text('{"env_steps" 1000}\n{"env_steps": 2000}\n')
    with pytest.raises(SettingError, match=r"trial_0/result\.json is damaged; nothing was changed"):
        state.check(folder)


def test_rows_after_the_state_are_kept_and_one_cut_by_the_kill_is_not(tmp_path: Path) -> None:
    folder = a_sweep(tmp_path / "sweep")
    with (folder / "trial_0" / "result.json").open("a") as rows:
        rows.write('{"env_steps": 3000}\n{"env_st')
    state.check(folder)
    state.put_back(folder)
    lines = (folder / "trial_0" / "result.json").read_text().splitlines()
    assert [json.loads(line)["env_steps"] for line in lines] == [1000, 2000, 3000]
    # Tune deletes the checkpoints in its state again.
    assert sorted(path.name for path in (folder / "trial_0").glob("checkpoint_*")) == [
        "checkpoint_000000",
        "checkpoint_000001",
        "checkpoint_000002",
    ]


def test_pickles_of_another_user_are_asked_about_and_own_ones_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_sweep(tmp_path / "sweep")
    monkeypatch.setattr(signed, "_trusted", set())
    state.check_pickles(folder)
    (folder / CHECKPOINT / "more.pkl").touch()
    with pytest.raises(SettingError, match=f"{folder} has pickles"):
        state.check_pickles(folder)
    (folder / CHECKPOINT / "more.pkl").unlink()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "another"))
    with pytest.raises(SettingError, match=f"add --allow-pickle {folder} "):
        state.check_pickles(folder)
    signed.trust(folder)
    state.check_pickles(folder)
    monkeypatch.setattr(signed, "_trusted", set())
    state.check_pickles(folder)


def test_what_tune_would_unpickle_besides_the_state_is_removed(tmp_path: Path) -> None:
    folder = a_sweep(tmp_path / "sweep")
    planted = [folder / "experiment_state-2027-01-01_00-00-00.json", folder / "trial_0" / "error.pkl"]
    for file in planted:
        file.touch()
    state.put_back(folder)
    assert not any(file.exists() for file in planted)
    assert (folder / STATE).exists()
