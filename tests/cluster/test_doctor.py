"""Each check of the doctor, on facts that deserve each status, and all of them on this machine."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from rlhf_ray.cluster import doctor
from rlhf_ray.cluster.doctor import Finding

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
