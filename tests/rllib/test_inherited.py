"""What `PreferencePPOConfig` inherits from RLlib and Tune is honoured, or refused with a line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import ray
import torch
from ray import tune
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.distribution.torch.torch_distribution import TorchSquashedGaussian
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.policy import ActorCritic, CollectorPolicy
from rlhf_ray.rllib.starting import policy_weights
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    SettingError,
)
from tests.whole_runs import running


class Mine(RLlibCallback):  # type: ignore[misc]
    """Counts the ends of rollouts, in the metrics of the env runner."""

    def on_sample_end(self, *, metrics_logger: Any, **info: Any) -> None:
        metrics_logger.log_value(type(self).__name__, 1, reduce="sum")


class Another(Mine):
    pass


class Squashed(ActorCritic):
    """A network of somebody's own, with a distribution of its own."""

    def setup(self) -> None:
        super().setup()
        self.action_dist_cls = TorchSquashedGaussian.get_partial_dist_cls(low=-1.0, high=1.0)


def network(config: PreferencePPOConfig) -> Any:
    """The policy network that the learner would get."""
    checked = config.check_environment()
    spaces = (checked.observation_space, checked.action_space)
    spec = config.for_one_algorithm(checked, "ring").get_multi_rl_module_spec(spaces={DEFAULT_MODULE_ID: spaces})
    return spec.rl_module_specs[DEFAULT_MODULE_ID].build()


def widths(module: Any) -> set[int]:
    return {layer.out_features for layer in module.modules() if isinstance(layer, torch.nn.Linear)}


def test_a_network_set_rllibs_way_is_the_one_that_is_trained() -> None:
    mine = DefaultModelConfig(fcnet_hiddens=[24], head_fcnet_hiddens=[])
    spec = RLModuleSpec(model_config=mine)
    for config in (
        tiny().rl_module(model_config=mine),
        tiny().rl_module(model_config={"fcnet_hiddens": [24], "head_fcnet_hiddens": []}),
        tiny().rl_module(rl_module_spec=spec),
        tiny().rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs={DEFAULT_MODULE_ID: spec})),
    ):
        module = network(config)
        assert type(module) is DefaultPPOTorchRLModule
        assert widths(module) == {24, 2, 1}  # Pendulum's action: mean and log standard deviation; the value
    assert type(network(tiny())) is ActorCritic
    assert widths(network(tiny())) == {8, 1}


def test_a_network_class_of_somebodys_own_gets_its_own_settings_and_acts_by_its_own_distribution() -> None:
    values = {"network": "mlp", "hidden": [5], "initial_log_std": 0.0}
    config = tiny().rl_module(rl_module_spec=RLModuleSpec(module_class=Squashed, model_config=values))
    module = network(config)
    assert type(module) is Squashed
    assert widths(module) == {5, 1}
    observation = np.zeros(3, np.float32)
    first, second, again = (CollectorPolicy(module).act(observation, np.random.default_rng(i)) for i in (0, 1, 0))
    assert first == again != second
    assert -2.0 <= first <= 2.0
    # By the shared settings too, over which those of the spec win.
    config = tiny().rl_module(model_config=values, rl_module_spec=RLModuleSpec(module_class=Squashed))
    assert widths(network(config)) == {5, 1}


def multi(**names: Any) -> MultiRLModuleSpec:
    return MultiRLModuleSpec(rl_module_specs=names or {DEFAULT_MODULE_ID: RLModuleSpec()})


Change = Callable[[PreferencePPOConfig], Any]

REFUSALS: list[tuple[Change, str]] = [
    (lambda c: c.api_stack(enable_rl_module_and_learner=False), r"api_stack\(enable_rl_module_and_learner\) is False"),
    (lambda c: c.framework("tf2"), "framework is 'tf2'.*torch"),
    (lambda c: c.env_runners(observation_filter="MeanStdFilter"), r"observation_filter\) is 'MeanStdFilter'"),
    (
        lambda c: c.env_runners(env_to_module_connector=lambda *_: []),
        r"env_to_module_connector\).*wrap the environment",
    ),
    (
        lambda c: c.env_runners(module_to_env_connector=lambda *_: []),
        r"module_to_env_connector\).*wrap the environment",
    ),
    (lambda c: c.learners(learner_connector=lambda *_: []), r"learner_connector\).*wrap the environment"),
    (lambda c: c.environment(normalize_actions=False), r"normalize_actions\) is False"),
    (lambda c: c.environment(clip_rewards=True), r"clip_rewards\) is True"),
    (lambda c: c.training(model={"fcnet_hiddens": [9]}), r"training\(model\).*rl_module\(model_config"),
    (lambda c: c.resources(num_gpus=1), r"num_gpus\) is 1.*num_gpus_per_learner"),
    (lambda c: c.offline_data(input_="/tmp/x"), r"offline_data\(input_\)"),
    (lambda c: c.reporting(min_sample_timesteps_per_iteration=9), r"min_sample_timesteps_per_iteration\) is 9"),
    (lambda c: c.reporting(min_time_s_per_iteration=9), r"min_time_s_per_iteration\) is 9"),
    (lambda c: c.multi_agent(policies={"a", "b"}, policy_mapping_fn=lambda *_: "a"), r"multi_agent\(\).*'a', 'b'"),
    (lambda c: c.multi_agent(policies_to_train=[]), r"policies_to_train=\[\]"),
    (lambda c: c.env_runners(rollout_fragment_length=100), r"rollout_fragment_length\) is 100.*has 200 for each of 2"),
    (lambda c: c.rl_module(rl_module_spec=multi(a=RLModuleSpec(), b=RLModuleSpec())), r"has the modules \['a', 'b'\]"),
    (lambda c: c.rl_module(rl_module_spec=RLModuleSpec(load_state_path="/tmp/x")), r"start_from\(policy=…\)"),
    (lambda c: c.rl_module(model_config={"hidden": [9]}), "has no setting hidden; it has .*fcnet_hiddens"),
    (
        lambda c: c.rl_module(model_config=DefaultModelConfig(use_lstm=True, max_seq_len=300)),
        r"max_seq_len=300.*minibatch size of 200 steps",
    ),
    (
        lambda c: c.environment("rlhf_ray/MovingDot-v0").rl_module(model_config=DefaultModelConfig()),
        r"\(DefaultPPOTorchRLModule\) doesn.t accept the observations Box\(0, 255, \(64, 64, 3\), uint8\)",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSALS)
def test_what_cannot_be_honoured_is_refused_in_one_line(change: Change, message: str) -> None:
    config = change(tiny())
    with pytest.raises(SettingError, match=message) as error:  # noqa: PT012
        config.validate()
        config.check_environment()
    assert "\n" not in str(error.value)


def test_an_iterations_steps_may_be_set_by_either_name() -> None:
    assert tiny().training(train_batch_size=600).iteration_env_steps == 600
    assert tiny().training(train_batch_size_per_learner=600).iteration_env_steps == 600
    assert tiny().iteration_env_steps == 400


def test_somebodys_own_environment_is_told_by_the_ring_what_rllib_tells() -> None:
    class Named(gym.Wrapper[Any, Any, Any, Any]):
        def __init__(self, config: Any):
            assert (config["size"], config.worker_index) == (3, 0)
            super().__init__(gym.make("Pendulum-v1"))

    tiny().environment(Named, env_config={"size": 3}).check_environment()


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_callbacks_networks_evaluation_and_schedules_go_with_the_ring(tmp_path: Path) -> None:
    seen: list[int] = []
    fragments = FragmentSettings(length=10, initial_env_steps=200, pool=20, exploration_env_steps=20)
    config = tiny(fragments=fragments, total_env_steps=200 + 20 + 2 * 400).preferences(store=tmp_path / "store")
    config.callbacks([Mine, Another], on_train_result=lambda result, **_: seen.append(result["training_iteration"]))
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[8]))
    config.training(lr=[[0, 1e-3], [1000, 1e-5]], grad_clip=0.25, lambda_=0.5)
    config.evaluation(evaluation_interval=2, evaluation_duration=1)
    with running(config.build_algo()) as algorithm:
        first, second = algorithm.train(), algorithm.train()
        assert seen == [1, 2]
        for result in (first, second):
            assert (result["env_runners"]["Mine"], result["env_runners"]["Another"]) == (1, 1)
        assert first["preferences"]["fragments_policy_version"] < second["preferences"]["fragments_policy_version"]
        assert second["preferences"]["env_steps"] == 1020  # the evaluation's do not count
        assert -2000 < second["evaluation"]["env_runners"]["episode_return_mean"] < 0
        rates = [r["learners"][DEFAULT_MODULE_ID]["default_optimizer_learning_rate"] for r in (first, second)]
        assert rates[0] > rates[1] > 0
        policy = algorithm._policy()()
        assert type(policy.module) is DefaultPPOTorchRLModule
        algorithm.save_to_path(str(tmp_path / "checkpoint"))
    with running(PreferencePPO.from_checkpoint(str(tmp_path / "checkpoint"))) as restored:
        result = restored.train()
        assert (result["env_runners"]["Mine"], result["env_runners"]["Another"]) == (1, 1)
        assert result["env_runners"]["fragments_failed"] == 0


def tiny(**changes: Any) -> PreferencePPOConfig:
    """Pendulum for two iterations, with labels before each."""
    values: dict[str, Any] = {
        "total_env_steps": 200 + 2 * 400,
        "seed": 3,
        "fragments": FragmentSettings(length=10, initial_env_steps=200, pool=20),
        "preferences": PreferenceSettings(comparisons=8, initial_comparisons=4, rounds=1, held_out_share=0.2),
        "reward_model": RewardModelSettings(hidden=(8,), initial_updates=2, updates=2),
        "ppo": PPOSettings(num_envs=2, rollout_length=200, minibatch_size=200, epochs=1, hidden=(8,)),
    }
    return PreferencePPOConfig.from_experiment(Experiment(**(values | changes)))


@pytest.mark.slow
@pytest.mark.usefixtures("ray_session")
def test_a_tuner_ends_each_trial_with_its_budget(tmp_path: Path) -> None:
    config = tiny().reward_model(learning_rate=tune.grid_search([3e-3])).callbacks(Mine)
    assert PreferencePPO.default_resource_request(tiny()).bundles == [{"CPU": 1.0}]
    results = tune.Tuner(
        PreferencePPO,
        param_space=config,
        run_config=tune.RunConfig(
            name="one",
            storage_path=str(tmp_path),
            stop={"training_iteration": 5},  # three more than the budget has
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True),
            verbose=0,
        ),
    ).fit()
    assert len(results) == 1
    assert not results.errors
    for result in results:
        assert (result.metrics["training_iteration"], result.metrics["done"]) == (2, True)
        assert result.metrics["preferences"]["env_steps"] == 1000
        assert result.metrics["preferences"]["comparisons"] == 8
        # And somebody's own callbacks are there, beside the ring's.
        assert result.metrics["env_runners"]["Mine"] == 1
        assert result.metrics["env_runners"]["fragments_failed"] == 0
        assert -2000 < result.metrics["env_runners"]["episode_return_mean"] < 0
        assert result.metrics["preferences"]["fragments_policy_version"] > 0
        assert policy_weights(result.checkpoint.path)
    assert not [name for name in ray.util.list_named_actors() if name.startswith("ring-")]


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_train_goes_on_beyond_the_budget_for_whoever_calls_it(tmp_path: Path) -> None:
    asynchronous = PreferenceSettings(mode="asynchronous", comparisons=8, initial_comparisons=4, rounds=1)
    config = tiny(preferences=asynchronous).preferences(store=tmp_path / "store")
    with running(config.build_algo()) as algorithm:
        done = [algorithm.train()["done"] for _ in range(3)]
        assert done == [False, True, True]
        assert algorithm.env_steps == 1400
