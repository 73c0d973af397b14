"""The doctor on a real Ray."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_ray.rllib import doctor


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_every_check_of_a_cluster_is_made() -> None:
    findings = doctor.examine_cluster()
    assert [finding.check.partition(" on ")[0] for finding in findings] == [
        *("Ray", "token", "dashboard", "CPUs in Ray"),
        *("actor", "versions", "Ray's folder", "object store", "GPUs"),
    ]
    assert findings[1].status == "warning"  # the tests' Ray asks for no token
    assert not [finding for finding in findings if finding.status == "problem"]


def test_an_address_where_nobody_listens_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    (finding,) = doctor.examine_cluster()
    assert finding.status == "problem"
    assert "nothing answers at 127.0.0.1:1" in finding.seen
    assert "RAY_ADDRESS" in finding.remedy


def test_a_ray_that_does_not_start_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(cpus: int) -> None:
        raise RuntimeError("no room")

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(doctor, "start_ray", fail)
    (finding,) = doctor.examine_cluster()
    assert finding.status == "problem"
    assert "no room" in finding.seen


def test_a_port_that_is_taken_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        monkeypatch.setattr(doctor, "HEAD_PORTS", (port,))
        assert str(port) in doctor.examine_ports().seen
    assert doctor.examine_ports().status == "ok"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_command_ends_with_1_when_there_is_a_problem(tmp_path: Path) -> None:
    program = str(Path(sys.executable).with_name("rlhf-ray"))
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}

    def run(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [program, "doctor", *options], capture_output=True, text=True, env=environment, cwd=tmp_path, timeout=280
        )

    healthy = run("--json")
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    assert {"check": "Ray", "status": "ok", "seen": "runs, with 1 node", "remedy": ""} in json.loads(healthy.stdout)
    nowhere = run("--address", "127.0.0.1:1")
    assert nowhere.returncode == 1
    assert "problem  Ray" in nowhere.stdout
