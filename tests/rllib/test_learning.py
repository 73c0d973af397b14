"""An agent that learns from comparisons alone, and env runners that are not equally fast."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.rllib.callbacks.callbacks import RLlibCallback

from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.rllib_internals import env_runner_calls
from rlhf_ray.rllib.rollouts import TAG
from rlhf_ray.settings import Experiment, FragmentSettings, PPOSettings, PreferenceSettings, RewardModelSettings
from tests.made_up import Walk
from tests.whole_runs import running

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


QUICK: dict[str, Any] = {
    "fragments": FragmentSettings(length=5, initial_env_steps=200, pool=60),
    "preferences": PreferenceSettings(mode="asynchronous", comparisons=20, initial_comparisons=10, rounds=2),
    "reward_model": RewardModelSettings(hidden=(8,), initial_updates=5, updates=2),
}


class Uneven(Walk):
    """Takes its time in the second env runner."""

    def __init__(self, context: Any):
        super().__init__((20,), numbered=False)
        self.pause = 0.01 if context.worker_index == 2 else 0.0

    def step(self, action: Any) -> Any:
        time.sleep(self.pause)
        return super().step(action)


class Whose(RLlibCallback):  # type: ignore[misc]
    """Counts the rollouts of each env runner."""

    def on_sample_end(self, *, env_runner: Any, metrics_logger: Any, **info: Any) -> None:
        metrics_logger.log_value(f"of_{env_runner.worker_index}", 1, reduce="sum")


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session")
def test_nobody_waits_for_a_slow_env_runner_and_the_budget_is_met(tmp_path: Path) -> None:
    tune.register_env("uneven", Uneven)
    experiment = Experiment(
        environment="uneven",
        total_env_steps=200 + 4 * 800,
        **QUICK,
        ppo=PPOSettings(num_envs=1, num_env_runners=2, rollout_length=400, minibatch_size=200, epochs=1, hidden=(8,)),
    )
    config = PreferencePPOConfig.from_experiment(experiment).preferences(store=tmp_path / "store").callbacks(Whose)
    with running(config.build_algo()) as algorithm:
        rollouts = {"of_1": 0.0, "of_2": 0.0}
        while not algorithm.finished:
            result = algorithm.train()["env_runners"]
            # RLlib says NaN in an iteration that none of an env runner's rollouts came in.
            rollouts = {name: count + np.nan_to_num(result.get(name, 0.0)) for name, count in rollouts.items()}
            assert set(env_runner_calls(algorithm.env_runner_group, TAG).values()) <= {1, 2}
        assert algorithm.env_steps == experiment.total_env_steps
        assert sum(rollouts.values()) == 8
        assert rollouts["of_1"] > rollouts["of_2"] > 0
