"""`ray up deploy/machines.yaml`, for real: two hosts of this machine's own, reached by SSH from a third one."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.cluster.hosts import ROOT, Host, connected, wait

SMALL = [
    *("--total-env-steps", "2400", "--fragments.initial-env-steps", "400", "--preferences.comparisons", "20"),
    *("--preferences.initial-comparisons", "10", "--preferences.rounds", "1", "--ppo.num-env-runners", "1"),
    *("--ppo.num-envs", "2", "--ppo.epochs", "1", "--evaluation-episodes", "1", "--run-dir", "runs/far-away"),
]


def rays(host: Host) -> list[str]:
    return [name for name in host.names() if name.startswith(("raylet", "gcs_server", "ray::"))]


@pytest.mark.soak
@pytest.mark.cluster
@pytest.mark.timeout(900)
def test_a_cluster_of_machines_is_brought_up_trains_a_job_and_is_taken_down(tmp_path: Path) -> None:
    with connected(tmp_path, "desk", "head", "worker") as (desk, head, worker):
        (desk.home / ".ssh").mkdir(mode=0o700)
        shutil.copy(tmp_path / "key", desk.home / ".ssh" / "id_ed25519")
        bring_up_train_and_take_down(desk, head, worker)


def bring_up_train_and_take_down(desk: Host, head: Host, worker: Host) -> None:
    # `ray stop`, which is part of all this, must see nothing but the hosts' own processes.
    assert sorted(head.names()) == sorted(worker.names()) == ["ps", "sshd"]

    # The file as it is, but for the addresses, the user, and the installation, which these hosts share with this machine.
    file = yaml.safe_load((ROOT / "deploy" / "machines.yaml").read_text())
    file["provider"] |= {"head_ip": "10.77.0.2", "worker_ips": ["10.77.0.3"]}
    file["auth"]["ssh_user"] = "root"
    (install,) = [command for command in file["setup_commands"] if "./setup.sh" in command]
    there = file["setup_commands"].index(install)
    file["setup_commands"][there] = f"cd ~/rlhf_ray && ls setup.sh && ln -sfn {shlex.quote(sys.prefix)} .venv"
    (desk.home / "machines.yaml").write_text(yaml.safe_dump(file))
    (desk.home / "build").mkdir()
    archive = subprocess.run(
        ["git", "archive", "--prefix=cluster/", "HEAD"], cwd=ROOT, capture_output=True, check=True
    ).stdout
    subprocess.run(["tar", "-xf", "-", "-C", str(desk.home / "build")], input=archive, check=True)
    assert desk.run("ray", "get-auth-token", "--generate").returncode == 0

    up = desk.run("ray", "up", "-y", "machines.yaml", within=400)
    assert up.returncode == 0, up.stdout + up.stderr
    assert (head.home / "rlhf_ray" / "constraints.txt").read_text() == (ROOT / "constraints.txt").read_text()
    wait(lambda: "raylet" in worker.names(), 200)  # the head brings it up
    tunnel = desk.start("ray", "dashboard", "machines.yaml", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait(lambda: answers(desk, "http://127.0.0.1:8265") == "401", 60)
        assert answers(desk, "http://10.77.0.2:8265") == "nobody"  # from anywhere but the head itself
        trained = desk.run("rlhf-ray", "submit", "--", "train", "pendulum", *SMALL, within=400)
        assert trained.returncode == 0, trained.stdout + trained.stderr
        assert "report: /mnt/home/runs/far-away/report.html" in trained.stdout
        fetched = desk.run("ray", "rsync-down", "machines.yaml", "~/runs/", "runs/")
        assert fetched.returncode == 0, fetched.stdout + fetched.stderr
        result = json.loads((desk.home / "runs" / "far-away" / "result.json").read_text())
        assert (result["env_steps"], result["comparisons"]) == (2400, 20)
        examined = desk.run("rlhf-ray", "submit", "--", "doctor")
        for line in ("runs, with 2 nodes", "Ray requires a token"):
            assert line in examined.stdout, examined.stdout + examined.stderr
    finally:
        tunnel.kill()
        tunnel.wait()
    down = desk.run("ray", "down", "-y", "machines.yaml")
    assert down.returncode == 0, down.stdout + down.stderr
    assert not rays(head)  # the worker gives the head up by itself, within a minute or so


def answers(host: Host, url: str) -> str:
    """What an HTTP address answers to somebody on the host who shows no token."""
    program = (
        "import sys, requests\n"
        "try: print(requests.get(sys.argv[1] + '/api/jobs/', timeout=5).status_code)\n"
        "except requests.ConnectionError: print('nobody')"
    )
    return host.run(sys.executable, "-c", program, url).stdout.strip()
