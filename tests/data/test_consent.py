"""A module that a file names is imported when somebody has said so, and not before."""

import json
import sys
from pathlib import Path

import pytest

from rlhf_ray.cli import presets
from rlhf_ray.cli.train import _callbacks
from rlhf_ray.data import consent, modules
from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, PreferenceSettings, save_experiment, to_json
from tests.command_line import fails_with

NAME = "foreign_envs:Pendulum-v1"


@pytest.fixture(autouse=True)
def nobody_has_said_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setattr(consent, "_allowed", set())


@pytest.fixture
def imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """There once the module `foreign_envs` was imported, which is one that Python finds."""
    marker = tmp_path / "imported"
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "foreign_envs.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    monkeypatch.syspath_prepend(tmp_path / "modules")
    return marker


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A run's folder, a sweep's and its best.json, as they come out of somebody's archive."""
    folder = tmp_path / "foreign"
    RunFolder.create(folder, Experiment(environment="Pendulum-v1"))
    save_experiment(Experiment(environment=NAME), folder / "config.json")
    save_experiment(Experiment(environment=NAME), folder / "best.json")
    (folder / "sweep.json").write_text(json.dumps({"experiment": to_json(Experiment(environment=NAME))}))
    return folder


@pytest.mark.parametrize(
    "words",
    [
        "train {}/best.json",
        "train --resume {}",
        "evaluate {}",
        "record {} --out {}/steps.npz",
        "label {} --store {}/labels",
        "fit {}/preferences",
        "tune {}/best.json",
        "tune --resume {}",
    ],
)
def test_foreign_files_import_nothing(words, foreign, imported, capsys):
    said = fails_with(capsys, *words.replace("{}", str(foreign)).split())
    assert "'foreign_envs'" in said
    assert str(imported.parent / "modules" / "foreign_envs.py") in said
    assert "add --allow-import foreign_envs" in said
    assert not imported.exists()


def test_a_flag_is_consent_for_this_file_of_the_module_from_then_on(foreign, imported, capsys, monkeypatch, tmp_path):
    assert "has no policy yet" in fails_with(capsys, "evaluate", foreign, "--allow-import", "foreign_envs")
    monkeypatch.setattr(consent, "_allowed", set())  # as in a new process
    assert "has no policy yet" in fails_with(capsys, "evaluate", foreign)
    # A module of that name beside the foreign files is another one.
    (foreign / "foreign_envs.py").write_text("")
    monkeypatch.syspath_prepend(foreign)
    assert "--allow-import" in fails_with(capsys, "evaluate", foreign)


def test_typing_a_name_is_consent(foreign, imported, monkeypatch):
    assert presets.preset(NAME).environment == NAME
    monkeypatch.setattr(consent, "_allowed", set())
    assert presets.preset(str(foreign / "best.json")).environment == NAME
    assert RunFolder.open(foreign).experiment().environment == NAME


def test_whoever_made_a_run_is_not_asked(tmp_path, imported, monkeypatch):
    RunFolder.create(tmp_path / "own", Experiment(environment=NAME))
    monkeypatch.setattr(consent, "_allowed", set())
    assert RunFolder.open(tmp_path / "own").experiment().environment == NAME


def test_folders_that_a_file_names_are_searched_for_what_is_allowed_there(foreign, imported, monkeypatch, tmp_path):
    monkeypatch.setenv(modules.FOLDERS, "")
    monkeypatch.setattr(sys, "path", list(sys.path))
    theirs, source = tmp_path / "theirs", foreign / "run.json"
    theirs.mkdir()
    consent.allow("foreign_envs")  # in its own folder
    about = json.loads(source.read_text())
    source.write_text(json.dumps(about | {"modules": [str(theirs), 7]}))
    run = RunFolder.open(foreign)
    run.experiment()
    _callbacks([], run)  # of a run to resume
    assert modules.folders() == []
    assert str(theirs) not in sys.path
    # A module of that name there, even as a link to the allowed one, is another one.
    (theirs / "foreign_envs.py").symlink_to(imported.parent / "modules" / "foreign_envs.py")
    with pytest.raises(SettingError, match=f"{theirs}/foreign_envs.py.*--allow-import foreign_envs"):
        run.experiment()
    assert modules.folders() == []
    consent.allow("foreign_envs", anywhere=True)
    for _ in range(2):
        run.experiment()
        assert modules.folders() == [str(theirs)]
        monkeypatch.setattr(consent, "_allowed", set())  # as in a new process
        monkeypatch.setenv(modules.FOLDERS, "")
    assert not imported.exists()


def test_only_the_flags_that_are_ours_are_taken():
    words = ["x.json", "--environment", "my_envs:A-v0", "--seed", "3", "--allow-import=other.envs"]
    assert consent.take_flags(words) == words[:-1]
    assert consent._allowed == {"my_envs", "other"}
    job = ["--env", "A=b", "--", "train", "x.json", "--allow-import", "their_envs"]
    assert consent.take_flags(job) == job
    assert "their_envs" not in consent._allowed
    with pytest.raises(ValueError, match="name the Python module"):
        consent.take_flags(["--allow-import"])


def test_what_is_remembered_may_be_damaged_or_unwritable(foreign, tmp_path):
    (tmp_path / "config").write_text("a file in the way")
    consent.allow("foreign_envs")
    consent.check(NAME, foreign / "config.json")


def test_a_part_that_is_joined_to_others_needs_consent_too(imported):
    settings = PreferenceSettings(selection="disagreement+foreign_envs:Mine")
    names = Experiment(preferences=settings).own_names()
    assert names == ["foreign_envs:Mine"]
    with pytest.raises(SettingError, match="foreign_envs"):
        consent.check(names, Path("config.json"))
    words = ["train", "--preferences.selection", settings.selection]
    assert consent.take_flags(words) == words  # typed: that is consent
    consent.check(names, Path("config.json"))
    assert not imported.exists()
