"""A node that leaves, with the ring's actors on it. In a process of its own: a process can be in one cluster at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.own_cluster import run_in_own_cluster

PROGRAM = """
import sys, time
from functools import partial
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from actors.asynchronous import AsynchronousPipeline
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from tests.made_up import AlwaysUp, Walk

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "object_store_memory": 100 << 20})
leaving = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
cluster.wait_for_nodes()
head = ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=1, scheduling_strategy=NodeAffinitySchedulingStrategy(head, soft=False))
class Occupant:
    def here(self):
        return True


occupant = Occupant.remote()  # leaves no room on the head, so that the ring starts on the other node
ray.get(occupant.here.remote())
ring = AsynchronousPipeline(
    name="ring",
    fragments=FragmentSettings(length=5, pool=30, initial_env_steps=200),
    preferences=PreferenceSettings(mode="asynchronous", comparisons=20, initial_comparisons=6, rounds=4),
    reward_model=RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5),
    observation_space=Walk.observation_space,
    action_space=Walk().action_space,
    make_env=partial(Walk, (20,), numbered=False),
    store=Path(sys.argv[1]),
    seed=0,
    rollouts=4,
    spread=100,
)
where = {
    role: ray.get(getattr(ring, role).__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))
    for role in ("collector", "fragmenter", "gatherer", "store", "trainer")
}
assert where.pop("store") == head, "the store is on the node of its folder"
assert head not in where.values(), where
ring.begin(200)
ring.advance(0.25, 400)
time.sleep(0.1)
ray.kill(occupant)
cluster.remove_node(leaving)
ring.advance(0.5, 600)
ray.get(ring._collect(100, 5, 5, partial(AlwaysUp, 0.2)))
deadline = time.monotonic() + 200
while ring.answered < 20 or ring.report()["fitting_queue"]:
    assert time.monotonic() < deadline, ring.report()
    ring.advance(1.0, 1000)
    time.sleep(0.2)
print("answered", ring.answered, "fitted to", ring.news().fit.comparisons)
ring.close()
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.cluster
def test_a_node_that_leaves_with_the_rings_actors_costs_no_stored_label_and_the_run_goes_on(tmp_path: Path) -> None:
    assert "answered 20 fitted to 20" in run_in_own_cluster(PROGRAM, tmp_path / "store")
