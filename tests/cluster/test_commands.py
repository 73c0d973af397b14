"""`rlhf-ray submit` and `doctor`: what they say, refuse and upload, without a cluster."""

import json
import os
import socket
from pathlib import Path

import pytest
import ray
from packaging.requirements import Requirement
from ray._private.runtime_env import packaging

from rlhf_ray import cli
from rlhf_ray.actors import access
from rlhf_ray.cli import cluster as commands
from rlhf_ray.cli import presets
from rlhf_ray.cluster import doctor, jobs
from rlhf_ray.cluster.doctor import Finding
from rlhf_ray.cluster.upload import check_upload
from rlhf_ray.data.places import JOB
from rlhf_ray.runs.folder import FORMAT, RunFolder
from rlhf_ray.settings import Experiment, SettingError
from rlhf_ray.sweeps.results import FORMAT as SWEEP
from tests.command_line import fails_with

NOBODY = "http://127.0.0.1:1"


def test_submit_warns_that_variables_are_no_place_for_keys(monkeypatch, capsys):
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


def test_submit_explains_itself_and_names_what_is_wrong(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("RAY_API_SERVER_ADDRESS", "")  # is put back afterwards
    for words in (("submit",), ("submit", "--address", NOBODY)):
        assert "no command is given; write it after --" in fails_with(capsys, *words)
    assert "which does not exist" in fails_with(capsys, "submit", "--working-dir", str(tmp_path / "x"), "--", "doctor")


@pytest.mark.parametrize("address", [NOBODY, "127.0.0.1:1"])
@pytest.mark.parametrize("words", [["submit", "--", "train", "pendulum"], ["doctor"]])
def test_where_nothing_answers_one_line_says_so(monkeypatch, capsys, address, words):
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
    assert f"at {NOBODY}" in fails_with(capsys, "submit", "--", "train", "pendulum")
    monkeypatch.setenv(JOB, "{}")
    assert NOBODY not in fails_with(capsys, "submit", "--", "train", "pendulum")


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


REQUIREMENTS = [Requirement(line) for line in ("ray[tune]==2.60.0", "numpy<2.5,>=2.0")]


@pytest.mark.parametrize(
    ("finding", "status", "words"),
    [
        (doctor.python("3.12.1", ">=3.11,<3.13"), "ok", "3.12.1"),
        (doctor.python("3.13.0", ">=3.11,<3.13"), "problem", "3.13.0 needs make setup"),
        (doctor.packages(REQUIREMENTS, {"ray": "2.60.0", "numpy": "2.4.6"}.get), "ok", "numpy 2.4.6"),
        (
            doctor.packages(REQUIREMENTS, {"ray": "2.59.0", "numpy": "2.4.6"}.get),
            "problem",
            "ray 2.59.0 ==2.60.0 make setup",
        ),
        (doctor.packages(REQUIREMENTS, {"ray": "2.60.0"}.get), "problem", "numpy missing"),
        (doctor.threads(1), "ok", "1"),
        (doctor.threads(8), "warning", "8 OMP_NUM_THREADS"),
        (doctor.cpus("CPUs", 2), "ok", "2"),
        (doctor.cpus("CPUs", 1), "warning", "1"),
        (doctor.memory(16 * 10**9), "ok", "16.0 GB"),
        (doctor.memory(10**9), "warning", "1.0 GB ppo.num_envs"),
        (doctor.memory(None), "ok", "unknown"),
        (doctor.disk(Path("/runs"), 50 * 10**9, writable=True), "ok", "/runs 50.0 GB"),
        (doctor.disk(Path("/runs"), 10**9, writable=True), "warning", "1.0 GB --run-dir"),
        (doctor.disk(Path("/runs"), 50 * 10**9, writable=False), "problem", "/runs not writable --run-dir"),
        (doctor.token("token", 2), "ok", "token"),
        (doctor.token("disabled", 1), "warning", "RAY_AUTH_MODE=token"),
        (doctor.token("disabled", 2), "problem", "get-auth-token"),
    ],
)
def test_a_check_says_what_is_wrong_and_what_to_do(finding: Finding, status: str, words: str) -> None:
    assert finding.status == status, finding
    assert bool(finding.remedy) == (status != "ok")
    for word in words.split():
        assert word in f"{finding.seen} {finding.remedy}"


def test_a_token_that_others_can_read(tmp_path: Path) -> None:
    path = tmp_path / "auth_token"
    assert doctor.token_file(path).status == "ok"
    path.touch(mode=0o600)
    assert doctor.token_file(path).status == "ok"
    path.chmod(0o644)
    finding = doctor.token_file(path)
    assert finding.status == "warning"
    assert f"chmod 600 {path}" in finding.remedy


def test_this_machine_is_fit_to_run_these_tests() -> None:
    findings = {finding.check: finding for finding in doctor.examine_machine()}
    assert {"Python", "packages", "torch threads", "CPUs", "memory", "disk for runs", "token file"} == findings.keys()
    assert not [finding for finding in findings.values() if finding.status == "problem"]
    assert "ray 2.60.0" in findings["packages"].seen


def test_a_ray_that_does_not_start_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cpus: int) -> None:
        raise RuntimeError("no room")

    monkeypatch.setattr(doctor, "start_ray", fail)
    (finding,) = doctor.examine_ray()
    assert finding.status == "problem"
    assert "no room" in finding.seen


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_ray_that_runs_is_examined() -> None:
    findings = doctor.examine_ray()
    assert [finding.check for finding in findings] == ["Ray", "token", "CPUs in Ray"]
    assert [finding.status for finding in findings] == ["ok", "warning", "ok"]  # the tests' Ray asks for no token


def project(folder: Path) -> Path:
    for name, size in {
        "env.py": 10,
        "runs/a/weights": 3000,
        "runs/b": 2000,
        "data.bin": 1500,
        ".git/objects": 9000,
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(bytes(size))
    return folder


def test_a_folder_above_the_limit_is_refused_with_its_largest_parts(tmp_path: Path) -> None:
    with pytest.raises(SettingError) as error:
        check_upload(project(tmp_path), limit=4000)
    said = str(error.value)
    assert "\n" not in said
    for part in ("6 KiB", "less than 4 KiB", "runs/ 5 KiB, data.bin 1 KiB", ".gitignore", ".rayignore"):
        assert part in said
    assert ".git/" not in said  # Ray leaves it out


@pytest.mark.parametrize("ignores", [".gitignore", ".rayignore"])
def test_what_is_ignored_does_not_count(tmp_path: Path, ignores: str) -> None:
    (project(tmp_path) / ignores).write_text("runs/\n")
    assert check_upload(tmp_path, limit=4000) == []


def test_folders_of_runs_and_sweeps_stay_behind(tmp_path: Path) -> None:
    """Those that `rlhf-ray` made, wherever they lie; another program's run.json makes no run."""
    folder = project(tmp_path)
    (folder / "runs" / "a" / "run.json").write_text(json.dumps({"format": FORMAT}))
    (folder / "runs" / "s" / "trial").mkdir(parents=True)
    (folder / "runs" / "s" / "sweep.json").write_text(json.dumps({"format": SWEEP}))
    (folder / "runs" / "s" / "trial" / "weights").write_bytes(bytes(9000))
    (folder / "mine").mkdir()
    (folder / "mine" / "run.json").write_text("{}")
    excluded = check_upload(folder, limit=4000)
    assert excluded == ["/runs/a", "/runs/s"]
    left_out = packaging._get_excludes(folder, [*excluded, ".git"])
    kept: list[Path] = []
    packaging._dir_travel(folder, [left_out], kept.append, include_gitignore=True)
    names = sorted(str(path.relative_to(folder)) for path in kept if path.is_file())
    assert names == ["data.bin", "env.py", "mine/run.json", "runs/b"]


def test_pipes_sockets_and_links_to_nothing_stay_behind_and_nothing_hangs(tmp_path: Path) -> None:
    folder = project(tmp_path)
    (folder / "runs" / "a b[1]").mkdir()
    os.mkfifo(folder / "runs" / "a b[1]" / "pipe!")
    (folder / "gone").symlink_to(folder / "nothing")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "s"))
        excluded = check_upload(folder)
        assert len(excluded) == 3
        # Ray reads every other file to name the package.
        uri = packaging.get_uri_for_directory(str(folder), include_gitignore=True, excludes=[*excluded, ".git"])
    assert uri.startswith("gcs://_ray_pkg_")
