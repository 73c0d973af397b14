"""Whole trainings: one that learns from comparisons alone, other spaces, several nodes, and the presets."""

import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from ray import tune
from ray.rllib.core import DEFAULT_MODULE_ID

from rlhf_ray import tune_configs
from rlhf_ray.policies.actions import best, entropy, log_probability, sample
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.rllib.policy import CollectorPolicy, policy_spec
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings
from tests.made_up import Walk
from tests.own_cluster import run_in_own_cluster
from tests.whole_runs import running, stored_by

ITERATIONS = 8


@pytest.mark.slow
@pytest.mark.learning
@pytest.mark.usefixtures("ring_in_process")
def test_an_agent_learns_to_stay_near_0_from_comparisons(tmp_path: Path) -> None:
    tune.register_env("walk", lambda context: Walk((20,), numbered=False))
    experiment = Experiment(
        environment="walk",
        total_env_steps=800 + ITERATIONS * 800,
        seed=1,
        fragments=FragmentSettings(length=5, initial_env_steps=800, pool=200),
        preferences=PreferenceSettings(comparisons=100, initial_comparisons=60, rounds=4),
        reward_model=RewardModelSettings(hidden=(32, 32), learning_rate=2e-3, initial_updates=150, updates=30),
        ppo=PPOSettings(
            num_envs=8, rollout_length=100, minibatch_size=100, epochs=8, hidden=(32,), learning_rate=3e-3, gamma=0.9
        ),
    )
    with running(
        PreferencePPOConfig.from_experiment(experiment).preferences(store=tmp_path / "store").build_algo()
    ) as algorithm:
        returns = [algorithm.train()["env_runners"]["episode_return_mean"] for _ in range(ITERATIONS)]
    # Without a push, the position is normal, with variance 1 + 0.01 t after t steps: its mean size is sqrt(2 / pi) deviations.
    still = -np.sqrt(2 / np.pi * (1 + 0.01 * np.arange(1, 21))).sum()
    assert returns[0] < still < returns[-1]  # -17; trained, -7 to -8 over seeds


SWITCHES = spaces.MultiDiscrete([2, 3])


class Anything(gym.Env[Any, Any]):
    """Random observations; the reward is the first number of the action."""

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any]):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action: Any) -> Any:
        assert self.action_space.contains(action), action
        return self.observation_space.sample(), float(np.ravel(action)[0]), False, False, {}


KINDS: dict[str, tuple[gym.Space[Any], gym.Space[Any]]] = {
    "NamedVectors": (spaces.Dict({"arm": spaces.Box(-1, 1, (3,)), "mode": spaces.Discrete(2)}), SWITCHES),
    "StackedCameras": (spaces.Box(0.0, 1.0, (2, 3, 24, 24)), spaces.MultiBinary(2)),
    "CameraAndSpeed": (
        spaces.Dict({"camera": spaces.Box(0, 255, (24, 24, 3), np.uint8), "speed": spaces.Box(0, 9, (1,))}),
        spaces.Discrete(2, start=1),
    ),
}
for name, (observations, actions) in KINDS.items():
    gym.register(
        f"tests/{name}-v0",
        Anything,
        max_episode_steps=40,
        kwargs={"observation_space": observations, "action_space": actions},
    )


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
@pytest.mark.parametrize("kind", KINDS)
def test_an_iteration_of_each_kind(kind: str) -> None:
    experiment = Experiment(
        environment=f"tests/{kind}-v0",
        total_env_steps=120 + 2 * 80,
        fragments=FragmentSettings(length=5, initial_env_steps=120, pool=20, exploration_env_steps=20),
        preferences=PreferenceSettings(comparisons=10, initial_comparisons=6, rounds=1),
        reward_model=RewardModelSettings(hidden=(8,), initial_updates=3, updates=2),
        ppo=PPOSettings(
            num_envs=2,
            rollout_length=40,
            minibatch_size=40,
            epochs=1,
            hidden=(8,),
            network="auto" if kind == "NamedVectors" else "small",
        ),
    )
    with running(PreferencePPOConfig.from_experiment(experiment).build_algo()) as algorithm:
        result = algorithm.train()
        assert np.isfinite(result["learners"][DEFAULT_MODULE_ID]["total_loss"])
        assert result["learners"][DEFAULT_MODULE_ID]["learned_reward_std"] > 0
        pairs = stored_by(algorithm).pairs
        assert len(pairs) == 10 or len(pairs) == 6
        assert pairs.left.observations.dtype == (np.float32 if kind == "NamedVectors" else np.uint8)
        assert pairs.left.actions.dtype == np.int64
        first = pairs.left.actions.reshape(*pairs.left.rewards.shape, -1)[..., 0]
        assert np.array_equal(pairs.left.rewards, first + (kind == "CameraAndSpeed"))


def test_the_policy_of_several_components_is_rllibs_and_ours() -> None:
    spec = policy_spec(PPOSettings(hidden=(8,)))
    spec.observation_space, spec.action_space = spaces.Box(-1, 1, (4,)), SWITCHES
    torch.manual_seed(0)
    module = spec.build()
    logits = torch.randn(50, 5)
    distribution = module.get_train_action_dist_cls().from_logits(logits)
    drawn = sample(logits, SWITCHES, torch.Generator().manual_seed(0))
    assert drawn.shape == (50, 2)
    torch.testing.assert_close(log_probability(logits, drawn, SWITCHES), distribution.logp(drawn))
    torch.testing.assert_close(entropy(logits, SWITCHES), distribution.entropy())
    expected = torch.stack([logits[:, :2].argmax(1), logits[:, 2:].argmax(1)], 1)
    assert torch.equal(best(logits, SWITCHES), expected)
    policy = CollectorPolicy(module)
    seen = np.random.default_rng(0).normal(size=(7, 4)).astype(np.float32)
    wanted = best(module.forward_inference({"obs": torch.as_tensor(seen)})["action_dist_inputs"], SWITCHES)
    assert np.array_equal(policy.best(seen), wanted.numpy())
    acted = np.stack([policy.act(seen[0], np.random.default_rng(i)) for i in range(200)])
    probabilities = module.forward_inference({"obs": torch.as_tensor(seen[:1])})["action_dist_inputs"][0, 2:].softmax(0)
    assert np.abs(np.bincount(acted[:, 1], minlength=3) / 200 - probabilities.detach().numpy()).max() < 0.12


NEEDS = {
    "ant": "mujoco",
    "half_cheetah": "mujoco",
    "hopper": "mujoco",
    "hopper_sac": "mujoco",
    "humanoid": "mujoco",
    "reacher": "mujoco",
    "reacher_sac": "mujoco",
    "swimmer": "mujoco",
    "walker2d": "mujoco",
    "enduro": "ale_py",
    "pong": "ale_py",
    "coinrun": "procgen",
    **dict.fromkeys(("bpref_button_press", "bpref_quadruped_walk", "bpref_sweep_into", "bpref_walker_walk"), "envpool"),
}
"""What a preset needs besides the core; those of procgen begin with its name."""


def _fast(name: str) -> Experiment:
    if need := "procgen" if name.startswith("procgen") else NEEDS.get(name):
        pytest.importorskip(need)
    return tune_configs.fast(tune_configs.load(name).experiment)


@pytest.mark.slow
@pytest.mark.parametrize("name", tune_configs.names())
def test_each_preset_fits_its_environment_and_has_a_fast_variant(name: str) -> None:
    experiment = _fast(name)
    checked = preference_config(experiment).check_environment()
    assert checked.fragments.length <= getattr(experiment, experiment.agent).rollout_length
    assert experiment.total_env_steps <= 1_200
    whole = tune_configs.load(name).experiment
    assert (experiment.environment, experiment.ppo.network) == (whole.environment, whole.ppo.network)
    whole.resolved_fragments(checked.horizon)


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
@pytest.mark.parametrize(
    "name", ["acrobot", *(pytest.param(n, marks=pytest.mark.soak) for n in ("mountain_car", "pendulum_people", *NEEDS))]
)
def test_a_fast_variant_runs_to_its_end(name: str, tmp_path: Path) -> None:
    experiment = _fast(name)
    with running(preference_config(experiment).preferences(store=tmp_path / "store").build_algo()) as algorithm:
        while not algorithm.finished:
            result = algorithm.train()
        # Where an episode ends, an environment copy is reset, which is no step.
        left = experiment.total_env_steps - algorithm.env_steps
        assert 0 <= left < experiment.agent_settings.iteration_env_steps
        asynchronous = experiment.preferences.mode == "asynchronous"
        assert result["preferences"]["comparisons"] in ((4, 8) if asynchronous else (8,))
        # A fit for each round. An asynchronous run may end before its second round is answered; one whose first answers are ties
        # gathers more first clips and has no steps left for its second round.
        assert result["preferences"]["reward_version"] in (1, 2)
        assert math.isfinite(result["learners"]["default_policy"]["learned_reward_mean"])


@pytest.mark.parametrize("name", tune_configs.names())
def test_each_preset_says_what_to_prefer_and_why(name: str) -> None:
    instructions = tune_configs.load(name).experiment.labelling.instructions
    assert instructions.startswith("Prefer the ")
    assert "Goal: " in instructions
    assert len(instructions) <= 140  # four lines on a phone


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
