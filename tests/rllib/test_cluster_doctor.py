"""The doctor on a real Ray."""

import json
import socket

import pytest
import ray

from rlhf_ray import cli
from rlhf_ray.cluster import examination as doctor


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_every_check_is_made_and_the_command_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["doctor", "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert not [finding for finding in findings if finding["status"] == "problem"]
    checks = [finding["check"].partition(" on ")[0] for finding in findings]
    assert checks[checks.index("ports") :] == [
        *("ports", "Ray", "token", "dashboard", "CPUs in Ray"),
        *("actor", "versions", "Ray's folder", "object store", "GPUs"),
    ]
    (token,) = [finding for finding in findings if finding["check"] == "token"]
    assert token["status"] == "warning"  # the tests' Ray asks for none


def test_the_command_ends_with_1_when_there_is_a_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)  # a command has a process of its own
    monkeypatch.setenv("RAY_ADDRESS", "")  # is put back afterwards
    with pytest.raises(SystemExit) as error:
        cli.main(["doctor", "--address", "127.0.0.1:1"])
    assert error.value.code == 1
    printed = capsys.readouterr().out
    assert "ok       Python" in printed
    assert "problem  Ray " in printed
    assert "→ Forward the cluster's port" in printed


def test_an_address_where_nobody_listens_is_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    (finding,) = doctor.examine_cluster()
    assert finding.status == "problem"
    assert "Nothing answers at 127.0.0.1:1" in finding.seen
    assert "--address" in finding.remedy


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
