"""A node whose network is cut while it samples, and that comes back: two hosts of this machine's own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.hosts import Host, connected, wait

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


@pytest.mark.soak
@pytest.mark.cluster
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
