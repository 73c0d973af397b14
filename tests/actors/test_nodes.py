"""A node that leaves, with the ring's actors on it. In a process of its own: a process can be in one cluster at a time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.own_cluster import run_in_own_cluster

PROGRAM = """
import sys, time
from pathlib import Path

import ray
from ray.cluster_utils import Cluster
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.settings import PreferenceSettings
from tests.actors.rings import at, ring_in

head = {"include_dashboard": False, "num_cpus": 1, "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args=head)
leaving = cluster.add_node(num_cpus=4, object_store_memory=100 << 20)
ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
cluster.wait_for_nodes()
head = ray.get_runtime_context().get_node_id()


@ray.remote(num_cpus=1, scheduling_strategy=NodeAffinitySchedulingStrategy(head, soft=False))
class Occupant:
    def here(self):
        return True


def node_of(role):
    actor = ray.get_actor(f"ring/{role}")
    return ray.get(actor.__ray_call__.remote(lambda self: ray.get_runtime_context().get_node_id()))


occupant = Occupant.remote()  # leaves no room on the head, so that the ring starts on the other node
ray.get(occupant.here.remote())
preferences = PreferenceSettings(mode="asynchronous", comparisons=20, initial_comparisons=6, rounds=4)
with ring_in(Path(sys.argv[1]), preferences, executor=RayExecutor("ring")) as ring:
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
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.soak
@pytest.mark.cluster
def test_a_node_that_leaves_with_the_rings_actors_costs_no_stored_label_and_the_run_goes_on(tmp_path: Path) -> None:
    assert "answered 20 in version" in run_in_own_cluster(PROGRAM, tmp_path / "store")
