"""Reward along trajectories: change points, events, and planted lags that are found exactly."""

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.interpret.reward.steps import by_time as section
from rlhf_ray.interpret.reward.steps.by_time import events
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward
from tests.interpret.contexts import run_step, steps_of, why_not

SPACE = gym.spaces.Box(-10, 10, (1,), np.float32)


def episodes(rng, count=6, length=60, rewards=None, **columns):
    n = count * length
    ends = np.arange(n) % length == length - 1
    seen = rng.normal(size=(n, 1)).astype(np.float32)
    return steps_of(seen, rewards=rewards, ends=ends, length=length, columns=columns)


def test_events():
    rng = np.random.default_rng(0)
    rewards = np.zeros(360)
    rewards[::50] = 1.0
    level = np.repeat(np.arange(36.0), 10)
    data = episodes(
        rng, rewards=rewards, **{"state.level": level, "state.noise": rng.normal(size=360), "policy": level}
    )
    found = events(data)
    assert set(found) == {"terminated", "true reward", "state.level"}
    assert np.flatnonzero(found["state.level"])[:2].tolist() == [9, 19]  # the transitions to 10 and 20
    assert not found["state.level"][59]  # no next state is recorded of an episode's last step


def test_a_late_reward_correlates_at_its_lag_and_is_drawn_the_same_twice():
    data = episodes(np.random.default_rng(0))
    true = np.roll(data.next_observations[:, 0], -2).astype(np.float64)  # what a step shows was paid two steps before
    data = data.with_(rewards=true)
    reward = CallableReward(lambda o, a, n, d: n[:, 0], SPACE, gym.spaces.Discrete(2))
    found = run_step(section, Subject(reward, data))
    lags = found.values["lags"]
    assert lags["+2"]["mean"] == pytest.approx(1.0)
    assert max(abs(lags[f"{lag:+d}"]["mean"]) for lag in range(-5, 6) if lag != 2) < 0.25
    assert found.pictures[0].image == run_step(section, Subject(reward, data)).pictures[0].image


def test_the_reward_at_an_event_is_its_difference_in_deviations():
    data = episodes(np.random.default_rng(0), rewards=np.zeros(360))
    reward = CallableReward(lambda o, a, n, d: 3.0 * d, SPACE, gym.spaces.Discrete(2))
    steps, estimate = run_step(section, Subject(reward, data)).values["events"]["terminated"]
    assert steps == 6
    assert estimate["mean"] == pytest.approx(1 / np.sqrt(1 / 60 * 59 / 60))


def test_a_constant_reward_and_single_steps():
    reward = CallableReward(lambda o, a, n, d: np.zeros(len(o)), SPACE, gym.spaces.Discrete(2))
    subject = Subject(reward, episodes(np.random.default_rng(0)))
    assert run_step(section, subject).skipped == "The reward is the same at every step."
    single = Subject(reward, episodes(np.random.default_rng(0), 20, 1))
    assert why_not(section, single) == "The data are single steps, not episodes."
