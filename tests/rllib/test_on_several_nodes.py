"""Training on a cluster of several nodes; that one may leave and come back, tests/cluster/test_partition.py shows."""

from pathlib import Path

import pytest

from tests.own_cluster import run_in_own_cluster

PROGRAM = """
import os, sys, threading, time

import numpy as np
import ray
from ray.cluster_utils import Cluster
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_ray.actors.ray_internals import started_for_a_run
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings

MEMORY = 100 << 20
head = {"include_dashboard": False, "num_cpus": 2, "object_store_memory": MEMORY}
with started_for_a_run(workers=1):
    cluster = Cluster(initialize_head=True, head_node_args=head)
os.environ["RAY_ADDRESS"] = cluster.address
ray.init(address=cluster.address, log_to_driver=False, configure_logging=False)


def add_node(cpus):
    with started_for_a_run(workers=1):
        return cluster.add_node(num_cpus=cpus, object_store_memory=MEMORY)


def build(iterations, **ppo):
    ppo = dict(num_envs=2, rollout_length=100, minibatch_size=200, epochs=2, hidden=(16,)) | ppo
    ppo = PPOSettings(**ppo)
    experiment = Experiment(
        total_env_steps=500 + iterations * ppo.iteration_env_steps,
        fragments=FragmentSettings(length=10, initial_env_steps=500, pool=60),
        preferences=PreferenceSettings(mode="asynchronous", comparisons=20, initial_comparisons=6, rounds=4),
        reward_model=RewardModelSettings(hidden=(8,), batch_size=4, initial_updates=10, updates=5),
        ppo=ppo,
    )
    return PreferencePPOConfig.from_experiment(experiment).preferences(store=sys.argv[1]).build_algo()


built = []  # 2 CPUs, and 5 are needed: 2 env runners, 2 learners, the ring
thread = threading.Thread(target=lambda: built.append(build(4, num_env_runners=2, num_learners=2, minibatch_size=100)))
thread.start()
time.sleep(1)
assert not built
joined = time.monotonic()
add_node(3)
thread.join(120)
assert built, "the node that joined was not used"
print("seconds", round(time.monotonic() - joined), "to be set up on the node that joined")
(algorithm,), versions = built, []
while not algorithm.finished:
    result = algorithm.train()
    versions.append(result["learners"][DEFAULT_MODULE_ID]["reward_version"])
    assert versions[-1] <= algorithm.ring.version
assert versions == sorted(versions) and versions[0] == 1 < versions[-1], versions
states = algorithm.learner_group.foreach_learner(lambda learner: learner.module.get_state())
states = [state.get() for state in states]
assert len(states) == 2
for module in (DEFAULT_MODULE_ID, REWARD_MODULE_ID):
    for name, value in states[0][module].items():
        assert np.array_equal(value, states[1][module][name]), (module, name)
print("answered", algorithm.ring.answered)
algorithm.stop()
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.soak
@pytest.mark.cluster
def test_training_waits_for_a_node_that_joins_and_uses_it_with_two_learners(tmp_path: Path) -> None:
    assert "answered 20" in run_in_own_cluster(PROGRAM, tmp_path / "store")
