"""What travels between nodes, in bytes as Ray's object managers count them. In a process of its own, with its own cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.own_cluster import run_in_own_cluster

PROGRAM = """
import re, socket, sys, time, urllib.request
from pathlib import Path

import gymnasium as gym
import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from tests.actors.rings import at, ring_in

SIDE, LENGTH, CLIPS, LABELS = 64, 10, 80, 20


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


ports = {"head": free_port(), "other": free_port()}
cluster = Cluster(
    initialize_head=True,
    head_node_args={
        "num_cpus": 1,
        "include_dashboard": False,
        "object_store_memory": 200 << 20,
        "metrics_export_port": ports["head"],
        "_system_config": {"metrics_report_interval_ms": 500},
    },
)
cluster.add_node(num_cpus=4, resources={"other": 1}, object_store_memory=200 << 20, metrics_export_port=ports["other"])
ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
cluster.wait_for_nodes()
home = ray.get_runtime_context().get_node_id()


def received(node):
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[node]}/metrics", timeout=10) as page:
        found = re.findall(r'ray_object_manager_bytes{[^}]*Type="Received"[^}]*} (\\S+)', page.read().decode())
    return float(found[0]) if found else 0.0


@ray.remote(num_cpus=0.55, scheduling_strategy=NodeAffinitySchedulingStrategy(home, soft=False))
class Occupant:
    def here(self):
        return True


occupant = Occupant.remote()  # leaves room for the collector and the gatherer, not for the reward trainer
ray.get(occupant.here.remote())


@ray.remote(num_cpus=1, resources={"other": 1})
class Runner:
    def roll(self, version):
        rng = np.random.default_rng(version)
        fragments = Fragments(
            rng.integers(0, 256, (CLIPS, LENGTH + 1, SIDE, SIDE, 3), np.uint8),
            rng.integers(0, 3, (CLIPS, LENGTH)),
            rng.standard_normal((CLIPS, LENGTH)),
            np.zeros(CLIPS, bool),
            np.zeros(CLIPS, np.int64),
            np.full(CLIPS, version),
        )
        ray.get(ray.get_actor("ring/pool").add.remote(CutFragments(1, version, fragments, 0, (20,))))
        return fragments.nbytes


class Seen(gym.Env):
    observation_space = gym.spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)
    action_space = gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.steps += 1
        return self.observation_space.sample(), float(action), False, self.steps == 20, {}


def node_of(role):
    actor = ray.get_actor(f"ring/{role}")
    return ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))


def received_at_last():
    time.sleep(5)
    return received("head"), received("other")


with ring_in(
    Path(sys.argv[1]),
    PreferenceSettings(mode="asynchronous", comparisons=LABELS, initial_comparisons=10, rounds=2),
    executor=RayExecutor("ring"),
    fragments=FragmentSettings(length=LENGTH, pool=CLIPS, initial_env_steps=200),
    reward_model=RewardModelSettings(ensemble_size=1, batch_size=4, initial_updates=2, updates=1),
    make_env=Seen,
) as ring:
    assert node_of("reward_trainer") != home
    assert {node_of(role) for role in ("store", "pool", "gatherer", "collector")} == {home}
    clips = ray.get(Runner.remote().roll.remote(1))
    ring.begin(200)
    deadline = time.monotonic() + 200
    while ring.answered < LABELS or ring.version < 2:
        assert time.monotonic() < deadline, ring.metrics()
        ring.advance(at(float(ring.version > 0), 1000))  # the second half of the labels falls due with the first version
        time.sleep(0.2)
    labels = ray.get(ring.actors.store.call(PreferenceStore.load))
    labelled = labels.pairs.left.nbytes + labels.pairs.right.nbytes
    reward = sum(value.nbytes for value in ring.newest_reward().values())
    at_home, elsewhere = received_at_last()
    print("clips", clips, "labelled", labelled, "reward", reward, "versions", ring.version)
    print("received at home", at_home, "elsewhere", elsewhere)
    # Home: the runner's clips once; of each version the trainer's state, which holds the weights and Adam's two moments.
    assert clips < at_home < 1.1 * (clips + 3 * reward * ring.version)
    # Elsewhere, where the trainer is: the clips that were labelled, once.
    assert labelled < elsewhere < 1.1 * labelled
    print("each once")
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.soak
@pytest.mark.cluster
def test_clips_labels_and_versions_cross_to_another_node_once(tmp_path: Path) -> None:
    assert "each once" in run_in_own_cluster(PROGRAM, tmp_path / "store")
