"""A node whose network is cut while it samples, and that comes back: two hosts of this machine's own."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import hosts
from tests.cluster.hosts import Host, connect

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


@pytest.fixture
def head_and_worker(tmp_path: Path) -> Iterator[tuple[Host, Host]]:
    lacks = hosts.missing()
    if lacks is not None:
        pytest.skip(lacks)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / "key")], check=True)
    made: list[Host] = []
    try:
        for name in ("head", "worker"):
            made.append(Host(tmp_path / name, (tmp_path / "key.pub").read_text()))
        connect(*made)
        yield made[0], made[1]
    finally:
        for host in made:
            host.close()


@pytest.mark.soak
@pytest.mark.cluster
def test_training_goes_on_without_a_node_that_is_cut_off_and_uses_it_again_when_it_is_back(
    head_and_worker: tuple[Host, Host], tmp_path: Path
) -> None:
    head, worker = head_and_worker

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

    def told() -> list[dict[str, object]]:
        lines = said.read_text().splitlines(keepends=True)
        return [
            json.loads(line) for line in lines if line.startswith("{") and line.endswith("\n")
        ]  # Ray says things, too

    def wait(what: Callable[[dict[str, object]], bool], within: float) -> dict[str, object]:
        deadline, since = time.monotonic() + within, len(told())
        while True:
            for line in told()[since:]:
                if what(line):
                    return line
            assert training.poll() is None, (tmp_path / "errors").read_text()
            assert time.monotonic() < deadline, told()[-3:]
            time.sleep(0.5)

    wait(lambda line: line["runners"] == ["10.77.0.1", "10.77.0.2"], 200)
    worker.net("link", "set", "eth0", "down")
    without = wait(lambda line: line["nodes"] == 1, 200)
    later = wait(lambda line: int(str(line["env_steps"])) > int(str(without["env_steps"])) + 2_000, 120)
    assert int(str(later["answered"])) > int(str(without["answered"]))
    worker.net("link", "set", "eth0", "up")
    # A node that was given up ends itself when it hears of it; whoever looks after it (systemd, the autoscaler) starts it again.
    deadline = time.monotonic() + 60
    while "raylet" in worker.names():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    join()
    wait(lambda line: "10.77.0.2" in str(line["runners"]), 240)  # a minute on an idle machine
    (head.home / "stop").touch()
    wait(lambda line: "stopped" in line, 120)
    assert training.wait(60) == 0
    count = "from rlhf_ray.store import PreferenceStore; s = PreferenceStore('store'); e = s.events()['event_id'].to_pylist()"
    stored = head.run(sys.executable, "-c", f"{count}; print(len(s), len(e), len(set(e)))")
    comparisons, events, different = map(int, stored.stdout.split())
    assert comparisons >= int(str(later["answered"]))
    assert events == different
