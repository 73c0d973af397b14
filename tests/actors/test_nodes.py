"""Rings on several nodes, each in a process and cluster of its own: a node that leaves, GPUs, bytes between nodes."""

from pathlib import Path

import pytest
import torch

from tests.own_cluster import run_in_own_cluster

pytestmark = [pytest.mark.cluster, pytest.mark.soak]

BEGIN = """
import re, socket, sys, time, urllib.request
from pathlib import Path

import gymnasium as gym
import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlhf_ray.actors.placement import of_ring, ring_bundles
from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from tests.actors.rings import at, ring_in


def begin(head, **node):  # the cluster of a head and another node, that node, and the head's id
    memory = {"object_store_memory": 200 << 20}
    cluster = Cluster(initialize_head=True, head_node_args={"include_dashboard": False, **memory, **head})
    other = cluster.add_node(**memory, **node)
    ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
    cluster.wait_for_nodes()
    return cluster, other, ray.get_runtime_context().get_node_id()


def occupied(node, cpus):  # something that takes so many CPUs of a node
    @ray.remote(num_cpus=cpus, scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False))
    class Occupant:
        def here(self):
            return True

    occupant = Occupant.remote()
    ray.get(occupant.here.remote())
    return occupant


def node_of(role):
    actor = ray.get_actor(f"ring/{role}")
    return ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))


ASKING = PreferenceSettings(mode="asynchronous", comparisons=20, initial_comparisons=6, rounds=4)
"""

LEAVES = """
cluster, leaving, head = begin({"num_cpus": 1}, num_cpus=4)
occupant = occupied(head, 1)  # leaves no room on the head, so that the ring starts on the other node
with ring_in(Path(sys.argv[1]), ASKING, executor=RayExecutor("ring")) as ring:
    assert {node_of(role) for role in ("store", "pool")} == {head}, "those that write are on the node of the folder"
    assert head not in {node_of(role) for role in ("collector", "gatherer", "reward_trainer")}
    ring.begin(200)
    ring.advance(at(0.25, 400))
    time.sleep(0.1)
    ray.kill(occupant)
    cluster.remove_node(leaving)
    ring.advance(at(0.5, 600))
    deadline = time.monotonic() + 200
    while ring.answered < 20 or ring.metrics()["stages"]["fitting_queue"] or ring.source.waiting():
        assert time.monotonic() < deadline, ring.metrics()
        ring.advance(at(1.0, 1000))
        time.sleep(0.2)
    assert ring.env_steps > 200, "the collector makes clips again"
    print("answered", ring.answered, "in version", ring.version)
"""

SHARED = """
cluster, _, head = begin({"num_cpus": 4}, num_cpus=2, num_gpus=1)


@ray.remote(num_cpus=0.5)
class Somebody:
    def where(self):
        return ray.get_runtime_context().get_node_id(), ray.get_gpu_ids()


def where(actor):
    return ray.get(actor.where.remote(), timeout=60)


trainer = Somebody.options(num_gpus=0.5, scheduling_strategy=of_ring("reward_trainer", 0.5)).remote()
learner = Somebody.options(num_gpus=0.5, num_cpus=0).remote()
assert where(trainer) == where(learner), "they share a GPU"
assert where(trainer)[0] != head
assert where(Somebody.options(scheduling_strategy=of_ring("gatherer")).remote())[0] == head, "the others stay"
for actor in (trainer, learner):
    ray.kill(actor)


@ray.remote(num_cpus=1)
class Trial:
    def ring(self):
        strategies = [of_ring("reward_trainer", 1.0), of_ring("gatherer")]
        return [strategy.placement_group_bundle_index for strategy in strategies]


group = placement_group([{"CPU": 1.0}, *ring_bundles(1.0)], strategy="PACK")
inside = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
indices = ray.get(Trial.options(scheduling_strategy=inside).remote().ring.remote(), timeout=60)
assert [group.bundle_specs[index].get("GPU", 0) for index in indices] == [1.0, 0], indices
print("shared and split")
"""

REFUSED = """
cluster, _, _ = begin({"num_cpus": 4}, num_cpus=2, num_gpus=1)
share = RewardModelSettings(gpus=0.5)
with ring_in(Path(sys.argv[1]), ASKING, executor=RayExecutor("ring"), reward_model=share) as ring:
    try:
        ring.begin(200)
    except Exception as error:
        print(error)
"""

COUNTS_BYTES = """
SIDE, LENGTH, CLIPS, LABELS = 64, 10, 80, 20


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


ports = {"head": free_port(), "other": free_port()}
reports = {"metrics_export_port": ports["head"], "_system_config": {"metrics_report_interval_ms": 500}}
other = {"resources": {"other": 1}, "metrics_export_port": ports["other"]}
cluster, _, home = begin({"num_cpus": 1, **reports}, num_cpus=4, **other)


def received(node):
    with urllib.request.urlopen(f"http://127.0.0.1:{ports[node]}/metrics", timeout=10) as page:
        found = re.findall(r'ray_object_manager_bytes{[^}]*Type="Received"[^}]*} (\\S+)', page.read().decode())
    return float(found[0]) if found else 0.0


occupant = occupied(home, 0.55)  # leaves room for the collector and the gatherer, not for the reward trainer


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
        ray.get(ray.get_actor("ring/pool").add.remote(CutFragments(1, version, fragments, (20,))))
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
"""

END = """
ray.shutdown()
cluster.shutdown()
"""


def told(program: str, *words: object) -> str:
    return run_in_own_cluster(BEGIN + program + END, *words)


def test_a_node_that_leaves_with_the_rings_actors_costs_no_stored_label_and_the_run_goes_on(tmp_path: Path) -> None:
    assert "answered 20 in version" in told(LEAVES, tmp_path / "store")


def test_learner_and_reward_trainer_share_a_gpu_or_have_one_each() -> None:
    assert "shared and split" in told(SHARED)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_reward_trainer_whose_torch_sees_no_gpu_says_so(tmp_path: Path) -> None:
    printed = told(REFUSED, tmp_path / "store")
    assert "reward_model.gpus is 0.5" in printed
    assert "sees no GPU" in printed


def test_clips_labels_and_versions_cross_to_another_node_once(tmp_path: Path) -> None:
    assert "each once" in told(COUNTS_BYTES, tmp_path / "store")
