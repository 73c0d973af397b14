"""Behavioural cloning: policies that learn from demonstrations, without Ray."""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.rllib import starting
from rlhf_ray.rllib.policy import CollectorPolicy, policy_spec
from rlhf_ray.rllib.starting import LEAST_LOG_STD, clone
from rlhf_ray.settings import PPOSettings

SEEN = gym.spaces.Box(-1.0, 1.0, (3,), np.float32)
BOUNDED = gym.spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 10.0], np.float32))


def policy(action_space: gym.Space[Any], observation_space: gym.spaces.Box = SEEN, **settings: Any) -> Any:
    spec = policy_spec(PPOSettings(**({"hidden": (32,)} | settings)))
    spec.observation_space, spec.action_space = observation_space, action_space
    torch.manual_seed(0)
    return spec.build()


def seen(n: int) -> Any:
    return np.random.default_rng(0).uniform(-1, 1, (n, 3)).astype(np.float32)


def test_a_policy_of_continuous_actions_does_what_was_shown_and_keeps_something_to_try_out() -> None:
    module, observations = policy(BOUNDED, initial_log_std=-1.2), seen(512)
    actions = np.stack([1.5 * observations[:, 0], 5 + 4 * observations[:, 1]], 1)
    before = {name: value.copy() for name, value in module.get_state().items()}
    report = clone(
        module, Demonstrations(observations, actions), epochs=60, minibatch_size=64, learning_rate=3e-3, seed=1
    )
    assert (report.steps, report.gradient_steps) == (512, 60 * 8)
    assert report.after > report.before + 1
    error = np.abs(CollectorPolicy(module).best(observations) - actions) / [4.0, 10.0]  # shares of the range
    assert error.mean() < 0.03
    np.testing.assert_allclose(module.network.log_std.detach().numpy(), LEAST_LOG_STD, atol=1e-5)
    for name, value in module.get_state().items():
        assert np.array_equal(value, before[name]) == name.startswith("critic"), name


def test_a_policy_of_discrete_actions_too_and_the_same_seed_gives_the_same() -> None:
    observations = seen(300)
    demonstrations = Demonstrations(observations, (observations[:, 0] > 0) + 0)
    states = []
    for _ in range(2):
        module = policy(gym.spaces.Discrete(3))
        report = clone(module, demonstrations, epochs=40, minibatch_size=50, learning_rate=1e-2, seed=1)
        states.append(module.get_state())
    assert report.before == pytest.approx(math.log(1 / 3), abs=0.1)
    assert np.mean(CollectorPolicy(module).best(observations) == demonstrations.actions) > 0.97
    for name, value in states[0].items():
        np.testing.assert_array_equal(value, states[1][name])


def test_unless_told_otherwise_it_takes_enough_gradient_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    assert (starting.EPOCHS, starting.LEAST_STEPS) == (50, 1500)
    monkeypatch.setattr(starting, "EPOCHS", 5)  # a tenth of each
    monkeypatch.setattr(starting, "LEAST_STEPS", 150)
    few, module = Demonstrations(seen(60), np.zeros(60, np.int64)), policy(gym.spaces.Discrete(3))
    assert clone(module, few, minibatch_size=20).gradient_steps == 150
    many = Demonstrations(seen(800), np.zeros(800, np.int64))
    assert clone(module, many, minibatch_size=20).gradient_steps == 5 * 40


def test_a_policy_that_normalises_knows_the_demonstrations_before_it_learns_from_them() -> None:
    module, shown = policy(gym.spaces.Discrete(3), normalize_observations=True), 0.1 * seen(60) + 0.5
    clone(module, Demonstrations(shown, np.zeros(60, np.int64)), epochs=1)
    assert int(module.network.statistics.count) == 60
    np.testing.assert_allclose(module.network.statistics.mean, shown.mean(0), atol=1e-4)


@pytest.mark.parametrize("memory", ["gru", "lstm"])
def test_a_policy_with_memory_is_refused(memory: Any) -> None:
    module = policy(gym.spaces.Discrete(2), memory=memory, memory_units=8)
    shown = Demonstrations(seen(20), np.zeros(20, np.int64))
    with pytest.raises(SettingError, match=r"set ppo\.memory to none"):
        clone(module, shown)
