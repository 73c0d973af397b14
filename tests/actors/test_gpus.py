"""A learner and the reward trainer on the GPU of another node. Ray believes in GPUs that it is told of, torch does not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.own_cluster import run_in_own_cluster

BEGIN = """
import os, sys

import ray
from ray.cluster_utils import Cluster
from ray.util.placement_group import placement_group

from rlhf_ray.actors.placement import of_ring, ring_bundles

head = {"include_dashboard": False, "num_cpus": 4, "object_store_memory": 100 << 20}
cluster = Cluster(initialize_head=True, head_node_args=head)
cluster.add_node(num_cpus=2, num_gpus=1, object_store_memory=100 << 20)
ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)
cluster.wait_for_nodes()
head = ray.get_runtime_context().get_node_id()
"""

SHARED = """
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


from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
group = placement_group([{"CPU": 1.0}, *ring_bundles(1.0)], strategy="PACK")
inside = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
indices = ray.get(Trial.options(scheduling_strategy=inside).remote().ring.remote(), timeout=60)
assert [group.bundle_specs[index].get("GPU", 0) for index in indices] == [1.0, 0], indices
print("shared and split")
"""

REFUSED = """
from pathlib import Path

from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from tests.actors.rings import ring_in

preferences = PreferenceSettings(mode="asynchronous", comparisons=20, initial_comparisons=6, rounds=4)
with ring_in(
    Path(sys.argv[1]), preferences, executor=RayExecutor("ring"), reward_model=RewardModelSettings(gpus=0.5)
) as ring:
    try:
        ring.begin(200)
    except Exception as error:
        print(error)
"""

END = """
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.soak
@pytest.mark.cluster
def test_learner_and_reward_trainer_share_a_gpu_or_have_one_each() -> None:
    assert "shared and split" in run_in_own_cluster(BEGIN + SHARED + END)


@pytest.mark.soak
@pytest.mark.cluster
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_reward_trainer_whose_torch_sees_no_gpu_says_so(tmp_path: Path) -> None:
    printed = run_in_own_cluster(BEGIN + REFUSED + END, tmp_path / "store")
    assert "reward_model.gpus is 0.5" in printed
    assert "sees no GPU" in printed
