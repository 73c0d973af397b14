"""Evaluation counts a number of episodes that is fixed beforehand, from the same beginnings for every policy."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import SyncVectorEnv

from rlhf_ray.agents import true_return as evaluation
from rlhf_ray.agents.true_return import evaluate, play
from rlhf_ray.data.arrays import Array
from tests.envs.worlds import Gives


class Countdown(Gives):
    """Episodes of the length it is given, each step worth 1."""

    def __init__(self, length: int):
        space = gym.spaces.Box(-np.inf, np.inf, (1,))
        super().__init__(space, lambda step: np.array([length - step], np.float32), last=length)
        self.length = length


def test_each_copy_gives_its_quota_of_whole_episodes_however_long_they_are() -> None:
    env = SyncVectorEnv([lambda length=length: Countdown(length) for length in (3, 7, 20)])
    returns, lengths, succeeded = play(env, None, np.array([2, 2, 1]), seed=0)
    assert sorted(returns.tolist()) == [3.0, 3.0, 7.0, 7.0, 20.0]
    assert lengths.tolist() == returns.tolist()  # it pays 1 in each step
    assert succeeded is None  # it does not say


def test_episodes_that_failed_before_the_first_word_about_success_count() -> None:
    class Last(Countdown):  # says so at the end of the long episodes only
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            step = super().step(action)
            return *step[:4], {"success": True} if step[2] and self.length == 20 else {}  # type: ignore[return-value]

    env = SyncVectorEnv([lambda length=length: Last(length) for length in (3, 20)])
    _, _, succeeded = play(env, None, np.array([3, 1]), seed=0)
    assert succeeded.tolist() == [False, False, False, True]


def test_an_episode_succeeds_with_any_of_its_steps() -> None:
    class Passing(Countdown):  # is at the goal in its second step, if it is long enough, and not at its end
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            return *super().step(action)[:4], {"success": self.t == 2 and self.length > 3}  # type: ignore[return-value]

    env = SyncVectorEnv([lambda length=length: Passing(length) for length in (3, 7)])
    _, _, succeeded = play(env, None, np.array([2, 2]), seed=0)
    assert sorted(succeeded.tolist()) == [False, False, True, True]


def test_the_same_seed_gives_the_same_return_and_any_number_of_episodes_is_met() -> None:
    def still(observations: Any, first: Any) -> Any:
        return np.zeros((len(observations), 1), dtype=np.float32)

    first = evaluate("Pendulum-v1", still, episodes=23, seed=1)
    assert first == evaluate("Pendulum-v1", still, episodes=23, seed=1)
    assert first.episodes == 23
    assert first != evaluate("Pendulum-v1", still, episodes=23, seed=2)
    assert evaluate("Pendulum-v1", None, episodes=3, seed=1) == evaluate("Pendulum-v1", None, episodes=3, seed=1)


class Endless(Countdown):
    """Episodes that never end."""

    def __init__(self) -> None:
        super().__init__(10**9)


def test_episodes_that_never_end_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    gym.register("Endless-v0", entry_point=Endless)
    monkeypatch.setattr(evaluation, "LONGEST", 30)
    try:
        found = evaluate("Endless-v0", None, episodes=3, seed=0)
        assert (found.true_return_mean, found.cut) == (30.0, 3)
        assert evaluation.episodes_of(found) == "3 (3 cut at 30 steps)"
        assert evaluate("MountainCarContinuous-v0", None, episodes=1, seed=0).cut == 0  # it has a limit of its own
    finally:
        del gym.registry["Endless-v0"]


def test_the_learned_reward_is_that_of_the_steps_that_count() -> None:
    def true_reward(observations: Array, actions: Array, after: Array, terminated: Array) -> Array:
        assert observations.shape == after.shape == (len(actions), 3)
        assert not terminated.any()
        angle = np.arctan2(observations[:, 1], observations[:, 0])
        force = np.clip(actions[:, 0], -2, 2)
        reward: Array = -(angle**2 + 0.1 * observations[:, 2] ** 2 + 0.001 * force**2)
        return reward

    found = evaluate("Pendulum-v1", None, episodes=7, seed=3, reward=true_reward)
    assert found.learned_reward == pytest.approx(found.true_return_mean / 200, rel=1e-5)
    assert evaluate("Pendulum-v1", None, episodes=7, seed=3).learned_reward is None
