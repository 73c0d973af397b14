"""`rlhf-ray submit` and `doctor`: what they say and refuse, without a cluster."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import ray

from rlhf_ray import cli
from rlhf_ray.actors import access
from rlhf_ray.cli import cluster as commands
from rlhf_ray.cli import presets
from rlhf_ray.cluster import jobs
from rlhf_ray.data.places import JOB
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, SettingError

NOBODY = "http://127.0.0.1:1"


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as error:
        cli.main(words)
    assert error.value.code == 2
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


def test_submit_warns_that_variables_are_no_place_for_keys(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[dict[str, str]] = []
    monkeypatch.setattr(jobs, "connect", lambda address: None)
    monkeypatch.setattr(jobs, "submit", lambda client, command, **of: given.append(of["env"]) or "job-1")
    cli.main(["submit", "--no-follow", "--env", "WANDB_API_KEY=abc", "A=b", "--", "train", "pendulum"])
    said = capsys.readouterr().err
    assert "everyone with the cluster's token can read the values of WANDB_API_KEY, A" in said
    assert "abc" not in said
    cli.main(["submit", "--no-follow", "--", "train", "pendulum"])
    assert not capsys.readouterr().err
    assert given == [{"WANDB_API_KEY": "abc", "A": "b"}, {}]


def test_submit_explains_itself_and_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # is put back afterwards
    for words in (("submit",), ("submit", "--address", NOBODY)):
        assert "no command is given; write it after --" in said(capsys, *words)
    assert "which does not exist" in said(capsys, "submit", "--working-dir", str(tmp_path / "x"), "--", "doctor")


@pytest.mark.parametrize("address", [NOBODY, "127.0.0.1:1"])
@pytest.mark.parametrize("words", [["submit", "--", "train", "pendulum"], ["doctor"]])
def test_where_nothing_answers_one_line_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], address: str, words: list[str]
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # a command has a process of its own
    for name in ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # is put back afterwards
    with pytest.raises(SystemExit) as error:
        cli.main([words[0], "--address", address, *words[1:]])
    printed = capsys.readouterr()
    if words == ["doctor"] and "://" not in address:  # a finding among others
        assert error.value.code == 1
        assert f"problem  Ray              Nothing answers at {address}" in printed.out
        assert "ok       Python" in printed.out
        return
    if words == ["doctor"]:
        assert "give HOST:PORT" in printed.err
        return
    assert error.value.code == 2
    (line,) = printed.err.splitlines()
    assert line.startswith(f"rlhf-ray: Nothing answers at {address} (")
    assert "ray dashboard cluster.yaml" in line


def test_a_job_asks_its_own_cluster(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", NOBODY)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert f"at {NOBODY}" in said(capsys, "submit", "--", "train", "pendulum")
    monkeypatch.setenv(JOB, "{}")
    assert NOBODY not in said(capsys, "submit", "--", "train", "pendulum")


def test_environment_variables_are_names_with_values() -> None:
    assert commands._variables(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    for wrong in ("A", "=1"):
        with pytest.raises(SettingError, match="NAME=VALUE"):
            commands._variables([wrong])


def test_the_token_is_shown_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_MODE", "")  # is put back afterwards
    monkeypatch.delenv("RAY_AUTH_MODE")
    access.show_token()
    assert "RAY_AUTH_MODE" not in os.environ
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    access.show_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"


def test_in_a_job_run_folders_are_relative_to_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir("/")
    assert RunFolder("runs/a").path == Path("/runs/a")
    monkeypatch.setenv(JOB, '{"metadata": {"job_submission_id": "raysubmit_abcdWXYZ"}}')
    assert RunFolder("runs/a").path == tmp_path / "runs" / "a"
    assert RunFolder("/shared/a").path == Path("/shared/a")
    assert RunFolder.create("runs/a", Experiment()).config.exists()
    assert RunFolder.around(tmp_path / "runs" / "a" / "preferences") is not None
    with presets.new_folder(None, "procgen/coinrun", 3) as folder:
        assert folder.name.startswith("procgen-coinrun-seed3-")
        assert folder.name.endswith("-WXYZ")
