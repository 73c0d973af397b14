"""Hosts of this machine's own: a node whose network is cut while it samples, and `ray up deploy/machines.yaml`."""

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cluster.hosts import ROOT, Host, connected, wait

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

TRAINING = """
import json, sys, time
from pathlib import Path

import ray

from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings

ray.init(address="10.77.0.1:6379", log_to_driver=False, configure_logging=False)
experiment = Experiment(
    total_env_steps=1_000_000,
    fragments=FragmentSettings(length=10, initial_env_steps=500, pool=60),
    preferences=PreferenceSettings(mode="asynchronous", comparisons=2000, initial_comparisons=20, rounds=1000),
    reward_model=RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5),
    ppo=PPOSettings(num_envs=2, num_env_runners=2, rollout_length=100, minibatch_size=200, epochs=1, hidden=(16,)),
)
algorithm = PreferencePPOConfig.from_experiment(experiment).preferences(store=sys.argv[1]).build_algo()
stop = Path(sys.argv[2])


def where(runner):
    return ray.util.get_node_ip_address()


while not stop.exists():
    result = algorithm.train()
    told = {
        "runners": sorted(algorithm.env_runner_group.foreach_env_runner(where, local_env_runner=False, timeout_seconds=5)),
        "nodes": sum(node["Alive"] for node in ray.nodes()),
        "env_steps": algorithm.env_steps,
        "answered": algorithm.ring.answered,
        "lost": algorithm.ring.metrics()["stages"]["questions_lost"],
    }
    print(json.dumps(told), flush=True)
algorithm.stop()
print(json.dumps({"stopped": True}), flush=True)
"""
# A node that does not answer for 5 seconds is given up, instead of for a minute.
IMPATIENT = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "1000",
    "RAY_health_check_failure_threshold": "5",
}


def test_training_goes_on_without_a_node_that_is_cut_off_and_uses_it_again_when_it_is_back(tmp_path: Path) -> None:
    with connected(tmp_path, "head", "worker") as (head, worker):
        train_through_a_cut(head, worker, tmp_path)


def train_through_a_cut(head: Host, worker: Host, tmp_path: Path) -> None:
    def ray_start(host: Host, *words: str) -> None:
        started = host.run("ray", "start", "--disable-usage-stats", *words, **IMPATIENT)
        assert started.returncode == 0, started.stdout + started.stderr

    def join() -> None:
        ray_start(worker, "--address=10.77.0.1:6379", "--node-ip-address=10.77.0.2", "--num-cpus=1")

    ray_start(head, "--head", "--port=6379", "--node-ip-address=10.77.0.1", "--num-cpus=2", "--include-dashboard=false")
    join()
    said = tmp_path / "said"
    with said.open("w") as out, (tmp_path / "errors").open("w") as errors:
        program = [sys.executable, "-c", TRAINING, "/mnt/home/store", "/mnt/home/stop"]
        command, variables = head.command(*program, **IMPATIENT)
        training = subprocess.Popen(command, env=variables, stdout=out, stderr=errors)

    def told() -> list[dict[str, Any]]:
        lines = said.read_text().splitlines(keepends=True)  # Ray says things, too
        return [json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")]

    def next_line(that: Callable[[dict[str, Any]], bool], within: float) -> dict[str, Any]:
        since = len(told())

        def found() -> dict[str, Any] | None:
            over = training.poll() is not None
            line = next(filter(that, told()[since:]), None)
            assert line or not over, (tmp_path / "errors").read_text()
            return line

        return wait(found, within)

    next_line(lambda line: line["runners"] == ["10.77.0.1", "10.77.0.2"], 200)
    worker.net("link", "set", "eth0", "down")
    without = next_line(lambda line: line["nodes"] == 1, 200)
    later = next_line(lambda line: line["env_steps"] > without["env_steps"] + 2_000, 120)
    assert later["answered"] > without["answered"]
    worker.net("link", "set", "eth0", "up")
    # A node that was given up ends itself when it hears of it; whoever looks after it (systemd, the autoscaler) starts it again.
    wait(lambda: "raylet" not in worker.names())
    join()
    next_line(lambda line: "10.77.0.2" in line["runners"], 240)  # a minute on an idle machine
    (head.home / "stop").touch()
    next_line(lambda line: "stopped" in line, 120)
    assert training.wait(60) == 0
    count = "from rlhf_ray.store import PreferenceStore; s = PreferenceStore('store'); e = s.events()['event_id'].to_pylist()"
    stored = head.run(sys.executable, "-c", f"{count}; print(len(s), len(e), len(set(e)))")
    comparisons, events, different = map(int, stored.stdout.split())
    assert comparisons >= later["answered"]
    assert events == different


SMALL = [
    *("--total-env-steps", "2400", "--fragments.initial-env-steps", "400", "--preferences.comparisons", "20"),
    *("--preferences.initial-comparisons", "10", "--preferences.rounds", "1", "--ppo.num-env-runners", "1"),
    *("--ppo.num-envs", "2", "--ppo.epochs", "1", "--evaluation-episodes", "1", "--run-dir", "runs/far-away"),
]


def rays(host: Host) -> list[str]:
    return [name for name in host.names() if name.startswith(("raylet", "gcs_server", "ray::"))]


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
