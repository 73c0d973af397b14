"""PreferencePPO under Ray Tune: a trial ends with its budget, or with whatever else Tune is told to stop at."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray
from ray import tune
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig

from rlhf_ray.rllib import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.starting import policy_weights
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
)
from tests.whole_runs import running


class Mine(RLlibCallback):  # type: ignore[misc]
    """Counts the ends of rollouts, in the metrics of the env runner."""

    def on_sample_end(self, *, metrics_logger: Any, **info: Any) -> None:
        metrics_logger.log_value(type(self).__name__, 1, reduce="sum")


def mean_length(algorithm: Any, runners: Any) -> tuple[dict[str, Any], int, int]:
    """An evaluation function of somebody's own."""
    runner = runners.local_env_runner
    (episode,) = runner.sample(num_episodes=1)
    runner.metrics.log_value("my_length", len(episode), window=1)
    algorithm.metrics.aggregate([runner.get_metrics()], key=("evaluation", "env_runners"))  # where RLlib looks
    return {}, len(episode), len(episode)


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
    config.rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[24]))
    config.evaluation(evaluation_interval=2, custom_evaluation_function=mean_length)
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
        # And somebody's own callbacks, network and evaluation are there, beside the ring's.
        assert result.metrics["env_runners"]["Mine"] == 1
        assert result.metrics["env_runners"]["fragments_failed"] == 0
        assert -2000 < result.metrics["env_runners"]["episode_return_mean"] < 0
        assert result.metrics["evaluation"]["env_runners"]["my_length"] == 200
        assert result.metrics["preferences"]["fragments_policy_version"] > 0
        weights = policy_weights(result.checkpoint.path)
        assert 24 in {length for weight in weights.values() for length in weight.shape}
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
