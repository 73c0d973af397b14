"""Environments that go wrong on the way, and those that change what belongs to the whole process."""

import os
import random
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from ray import tune
from ray.exceptions import RayActorError

from rlhf_ray.data import defaults
from rlhf_ray.data.errors import FaultyEnvironmentError, LostFragmentsError, SettingError
from rlhf_ray.data.failures import cause
from rlhf_ray.envs.checked import CheckedEnv
from rlhf_ray.rllib import PreferencePPOConfig
from rlhf_ray.rllib.choice import preference_config
from rlhf_ray.settings import (
    Experiment,
    FragmentSettings,
    PPOSettings,
    PreferenceSettings,
    RewardModelSettings,
    SACSettings,
    to_json,
)
from rlhf_ray.sweeps.trial import ENV_STEPS, REFUSAL, TRIAL, TRIALS, final
from tests.whole_runs import running, small


def make_late(context: Any) -> Any:
    """An environment that calls `sys.exit` in its 150th step, which the first clips do not reach."""

    class Late(gym.Env[Any, Any]):
        observation_space = gym.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gym.spaces.Discrete(2)
        spec = None
        taken = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            self.t = 0
            return self.np_random.uniform(-1, 1, 2).astype(np.float32), {}

        def step(self, action: Any) -> Any:
            self.t, self.taken = self.t + 1, self.taken + 1
            if self.taken == context.get("last", 150):
                raise SystemExit("the simulator is gone")
            return self.np_random.uniform(-1, 1, 2).astype(np.float32), float(action), False, self.t == 20, {}

    return CheckedEnv(Late(), "late")


def config(**env_config: Any) -> PreferencePPOConfig:
    tune.register_env("late", lambda context: make_late(context))
    made = PreferencePPOConfig().environment("late", env_config=env_config).fragments(length=10, initial_env_steps=100)
    made.preferences(
        comparisons=12, rounds=2, total_env_steps=2_100
    )  # whole iterations, so that the first clips take 100
    made.reward_model(ensemble_size=1, initial_updates=2, updates=1, hidden=(8,))
    made.training(train_batch_size_per_learner=200, minibatch_size=100, num_epochs=1)
    return made


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.parametrize(
    ("runners", "ring"), [(0, "ring_in_process"), pytest.param(1, "ray_session", marks=pytest.mark.soak)]
)
def test_a_fault_on_the_way_ends_the_run_at_once(runners: int, ring: str, request: pytest.FixtureRequest) -> None:
    request.getfixturevalue(ring)
    made = config().env_runners(num_env_runners=runners, num_envs_per_env_runner=2)
    with running(made.build_algo()) as algorithm:
        algorithm.train()
        began = time.monotonic()
        with pytest.raises(RuntimeError) as error:
            algorithm.train()
    fault = cause(error.value)
    assert isinstance(fault, FaultyEnvironmentError)
    assert str(fault).startswith(
        "Environment late, step 10 of episode 8: step() raised SystemExit: the simulator is gone ("
    )
    assert time.monotonic() - began < 30  # RLlib waits a minute, and then begins anew


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_fault_among_the_first_clips_ends_the_run_at_once() -> None:
    alone = config(last=50).env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    with running(alone.build_algo()) as algorithm, pytest.raises(RuntimeError) as error:
        algorithm.train()
    assert "late, step 10 of episode 3: step() raised SystemExit" in str(cause(error.value))


@pytest.mark.slow
@pytest.mark.usefixtures("ring_in_process")
def test_a_trial_of_a_sweep_ends_with_the_environments_fault_and_is_not_restarted(tmp_path: Path) -> None:
    gym.register("Late-v0", entry_point=lambda: make_late({"last": 550}).env, max_episode_steps=20)
    try:
        experiment = to_json(replace(small(), environment="Late-v0"))
        trial = TRIALS["ppo"]({TRIAL: {"experiment": experiment, "metric": "return", "episodes": 1, "seed": 0}})
        try:
            while REFUSAL not in (result := trial.train()):
                assert not result["done"]
            trial.save(str(tmp_path))
        finally:
            trial.stop()
    finally:
        del gym.registry["Late-v0"]
    assert result["done"]
    assert "step() raised SystemExit: the simulator is gone" in result[REFUSAL]
    assert result[ENV_STEPS] > 0


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (SettingError("episodes differ in length"), "episodes differ in length"),
        (FaultyEnvironmentError("step() raised"), "step() raised"),
        (OSError(28, "No space left on device"), None),
        (LostFragmentsError("a rollout is lost"), None),
        (RayActorError(), None),
        (RuntimeError("RLlib's own"), None),
    ],
)
def test_only_errors_that_would_come_again_end_a_trial(error: Exception, said: str | None) -> None:
    wrapped = RuntimeError("RLlib wraps it")
    wrapped.__cause__ = error
    found = final(wrapped)
    assert found == said


def seed_everything(env: gym.Env[Any, Any]) -> None:
    """Seed every generator in reach."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    env.action_space.seed(0)


def set_defaults(env: gym.Env[Any, Any]) -> None:
    """Set the process's defaults, and rely on them."""
    if not hasattr(env, "weights"):
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        np.seterr(all="raise")
        torch.set_num_threads(2)
        os.chdir("/")
        env.weights = torch.nn.Linear(1, 1)  # type: ignore[attr-defined]
    assert env.weights(torch.zeros(1)).dtype == torch.float64  # type: ignore[attr-defined]
    assert not torch.is_grad_enabled()
    assert np.geterr()["under"] == "raise"
    assert os.getcwd() == "/"


MEDDLING: dict[str, Callable[[gym.Env[Any, Any]], Any]] = {
    "Not": lambda env: None,
    "Seeds": seed_everything,
    "Defaults": set_defaults,
}


class Meddler(gym.Env[Any, Any]):
    """A point to be moved, which meddles in its constructor, in each reset and in each step."""

    def __init__(self, how: str = "Not", render_mode: str | None = None):
        self.observation_space = gym.spaces.Box(-2.0, 2.0, (2,), np.float32)
        self.action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)
        self.meddle = MEDDLING[how]
        self.meddle(self)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.meddle(self)
        self.at = self.np_random.uniform(-1.0, 1.0, 2).astype(np.float32)
        return self.at, {}

    def step(self, action: Any) -> Any:
        self.meddle(self)
        self.at = np.clip(self.at + 0.1 * action, -2.0, 2.0).astype(np.float32)
        return self.at, -float(abs(self.at).sum()), False, False, {}


meddler: Any = Meddler
for how in MEDDLING:
    gym.register(f"tests/Meddles{how}-v0", meddler, max_episode_steps=20, kwargs={"how": how})

AGENTS: dict[str, dict[str, Any]] = {
    "arrays": {"ppo": PPOSettings(num_envs=2, rollout_length=40, minibatch_size=40, epochs=2, hidden=(8,))},
    "episodes": {
        "ppo": PPOSettings(
            num_envs=2, rollout_length=20, minibatch_size=20, epochs=2, hidden=(8,), memory="gru", memory_units=4
        )
    },
    "sac": {
        "agent": "sac",
        "sac": SACSettings(num_envs=2, rollout_length=20, learning_starts=40, batch_size=16, hidden=(8,)),
    },
}
"""PPO as fast as it gets, PPO with RLlib's own env runner and gradient steps, and SAC."""


def short(agent: str, environment: str) -> Any:
    """The configuration of a short training."""
    experiment = Experiment(
        environment=environment,
        total_env_steps=400,
        fragments=FragmentSettings(length=5, initial_env_steps=80, pool=40),
        preferences=PreferenceSettings(comparisons=20, initial_comparisons=10, rounds=2),
        reward_model=RewardModelSettings(hidden=(8,), ensemble_size=2, dropout=0.2, initial_updates=3, updates=2),
        **AGENTS[agent],
    )
    return preference_config(experiment)


def trained(agent: str, how: str) -> dict[str, Any]:
    """The weights of agent and reward model after a short training."""
    with running(short(agent, f"tests/Meddles{how}-v0").build_algo()) as algorithm:
        while not algorithm.finished:
            algorithm.train()
        weights = algorithm.learner_group.get_weights()
        return {f"{module}.{name}": value for module in weights for name, value in weights[module].items()}


@pytest.mark.slow
@pytest.mark.parametrize("agent", AGENTS)
def test_training_does_not_depend_on_what_an_environment_does_to_the_process(
    agent: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(defaults, "_theirs", None)  # and so again for the tests after this one
    expected = trained(agent, "Not")
    for how in MEDDLING:
        found = trained(agent, how)
        assert all(np.array_equal(found[name], value) for name, value in expected.items()), how
