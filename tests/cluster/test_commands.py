"""`rlhf-ray submit | ps | stop`: what they say and refuse, without a cluster."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ray

from rlhf_ray import cli
from rlhf_ray.actors import access
from rlhf_ray.actors.announced import AnnouncedRun
from rlhf_ray.cli import cluster as commands
from rlhf_ray.cli import presets
from rlhf_ray.cluster import jobs
from rlhf_ray.data.places import JOB
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, SettingError

NOBODY = "http://127.0.0.1:1"


def run(name: str, job: str | None = None, **more: Any) -> dict[str, Any]:
    of = {
        "name": name,
        "folder": f"/home/ada/runs/{name}",
        "job": job,
        "state": "training",
        "started": 5.0,
        "since": 6.0,
    }
    return of | {"user": "ada", "environment": "Pendulum-v1", "env_steps": 10, "total_env_steps": 20} | more


def job(name: str, state: str, started: float = 1.0) -> dict[str, Any]:
    return {
        "job": name,
        "state": state,
        "started": started,
        "since": started,
        "user": "bob",
        "command": "rlhf-ray train x",
    }


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as error:
        cli.main(words)
    assert error.value.code == 2
    printed = capsys.readouterr()
    return " ".join((printed.out + printed.err).split())


def test_a_job_whose_run_goes_on_is_listed_once_and_the_oldest_is_first() -> None:
    rows = commands.listed(
        [run("a", "job-1")], [job("job-1", "running"), job("job-2", "pending"), job("job-3", "failed", 9.0)]
    )
    assert [(row["name"], row["job"], row["state"]) for row in rows] == [
        (None, "job-2", "pending"),
        ("a", "job-1", "training"),
        (None, "job-3", "failed"),
    ]
    assert len({frozenset(row) for row in rows}) == 1  # all have the same columns


@pytest.mark.parametrize("word", ["a", "/home/ada/runs/a", "/home/ada/runs/a/", "runs/a", "./runs/a/", "job-1"])
def test_a_run_is_found_by_its_name_its_folder_and_its_job(word: str) -> None:
    rows = commands.listed([run("a", "job-1"), run("b", "job-2")], [])
    assert commands.find(rows, word)["name"] == "a"


def test_what_cannot_be_stopped_is_said() -> None:
    rows = commands.listed([run("a"), run("a", folder="/shared/a")], [job("job-3", "failed")])
    for word, message in (
        ("a", "/home/ada/runs/a, /shared/a"),
        ("job-3", r"already ended \(failed\)"),
        ("c", "it has job-3, a, a"),
        ("uns/a", "it has job-3, a, a"),
        ("/runs/a", "it has job-3, a, a"),
    ):
        with pytest.raises(SettingError, match=message):
            commands.find(rows, word)


def test_each_run_is_listed_in_80_columns_under_a_name_that_can_be_pasted() -> None:
    name = "procgen-coinrun-seed3-20261120-105010-4fQz"
    far = {"environment": "procgen:procgen-coinrun-v0", "env_steps": 12_345_678, "total_env_steps": 25_000_000}
    runs = [
        run(name, pages=["http://127.0.0.1:8765"], labels=3, total_labels=9, **far),
        run("a"),
        run("a", folder="/b/a"),
    ]
    waiting = job("raysubmit_abcdefghijklmnop", "pending") | {"command": f"rlhf-ray train {'x' * 9} --seed 3 " * 5}
    lines = commands.in_lines(commands.listed(runs, [waiting, job("job-3", "failed")]))
    assert max(map(len, lines)) <= 80
    names = [line for line in lines if not line.startswith(" ")]
    assert names == ["raysubmit_abcdefghijklmnop", "job-3", name, "/home/ada/runs/a", "/b/a"]
    for each in names[:3]:
        said = " ".join(line.strip() for line in lines[lines.index(each) :])
        for words in {
            name: ("training for", "12345678/25000000 env steps", "3/9 labels", "of ada", "http://127.0.0.1:8765"),
            "job-3": ("failed", " ago, train x, of bob"),
        }.get(each, ("pending for", "train xxxxxxxxx --seed 3")):
            assert words in said


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


def test_a_run_tells_its_state_and_since_when_and_is_interrupted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []
    monkeypatch.setattr("rlhf_ray.actors.announced.os.kill", lambda *arguments: sent.append(arguments))
    announced = AnnouncedRun({"name": "a", "pid": 12345})
    started = announced.status()["since"]
    announced.tell({"state": "training", "env_steps": 3})
    assert announced.status()["since"] > started
    since = announced.status()["since"]
    announced.tell({"env_steps": 4})
    assert announced.status() == {"name": "a", "pid": 12345, "state": "training", "env_steps": 4, "since": since}
    announced.stop()
    announced.stop()  # a second Ctrl-C would end it without a checkpoint
    assert [pid for pid, _ in sent] == [12345]
    announced.tell({"state": "evaluating", "env_steps": 5})
    assert (announced.status()["state"], announced.status()["env_steps"]) == ("stopping", 5)


def test_submit_explains_itself_and_names_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # is put back afterwards
    for words in (("submit",), ("submit", "--address", NOBODY)):
        assert "no command is given; write it after --" in said(capsys, *words)
    assert "which does not exist" in said(capsys, "submit", "--working-dir", str(tmp_path / "x"), "--", "ps")


@pytest.mark.parametrize("address", [NOBODY, "127.0.0.1:1"])
@pytest.mark.parametrize("words", [["submit", "--", "ps"], ["ps"], ["stop", "a"], ["doctor"]])
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
        assert f"Nothing answers at {address}" in printed.out
        return
    assert error.value.code == 2
    (line,) = printed.err.splitlines()
    assert line.startswith(f"rlhf-ray: Nothing answers at {address} (")
    assert "ray dashboard cluster.yaml" in line


def test_a_job_asks_its_own_cluster_and_what_it_relays_is_not_relayed_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # a command has a process of its own
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", NOBODY)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    assert f"at {NOBODY}" in said(capsys, "ps")
    monkeypatch.setenv(JOB, "{}")
    for words in (["ps"], ["stop", "a"], ["submit", "--", "ps"]):
        monkeypatch.setenv("RAY_API_SERVER_ADDRESS", NOBODY)
        assert NOBODY not in said(capsys, *words)
    monkeypatch.setenv(jobs.RELAYED, "1")
    assert "would submit itself again" in said(capsys, "ps", "--address", NOBODY)


def test_environment_variables_are_names_with_values() -> None:
    assert commands._variables(["A=1", "B=x=y", "C="]) == {"A": "1", "B": "x=y", "C": ""}
    for wrong in ("A", "=1"):
        with pytest.raises(SettingError, match="NAME=VALUE"):
            commands._variables([wrong])


def test_of_a_job_only_what_the_command_says_is_shown() -> None:
    own = jobs._own_lines
    printed = "2026-11-20 10:00:00 INFO setting up\nRunning entrypoint for job j-1: rlhf-ray ps\nno runs\n"
    assert own(printed, "j-1") == "no runs\n"
    assert own(printed, "j-2") == own(printed[:80], "j-1") == ""


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
