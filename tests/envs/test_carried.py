"""What wrappers carry from one episode to the next, and what they don't, is told apart."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.wrappers import (
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TimeAwareObservation,
    TimeLimit,
)

from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.envs import carried_state, make_env

ID = "test_carried/Line-v0"


class Line(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-20, 20, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.drawn()
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 0.1 * float(action[0])
        return self.seen(), -abs(self.at), False, False, {}

    def drawn(self) -> float:
        return float(self.np_random.uniform(-1, 1))

    def seen(self) -> Any:
        return np.array([self.at, 10 + self.at], np.float32)


class OwnSeed(Line):
    """Draws from a generator that reset() does not seed: other episodes, but of the same environment."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def drawn(self) -> float:
        return float(self.rng.uniform(-1, 1))


class Centred(gym.ObservationWrapper[Any, Any, Any]):
    """Subtracts a running mean of its own."""

    def __init__(self, env: Any):
        super().__init__(env)
        self.total, self.steps = np.zeros(2), 0

    def observation(self, observation: Any) -> Any:
        self.steps += 1
        self.total += observation
        return (observation - self.total / self.steps).astype(np.float32)


class Harder(gym.RewardWrapper[Any, Any]):
    """Pays less with each episode."""

    episodes = 0

    def reset(self, **options: Any) -> Any:
        self.episodes += 1
        return super().reset(**options)

    def reward(self, reward: Any) -> Any:
        return float(reward) / self.episodes


def noisy(env: Any) -> Any:
    return gym.wrappers.TransformReward(env, lambda reward: float(reward) + np.random.default_rng().normal())


def frozen(env: Any) -> Any:
    made = NormalizeObservation(env)
    made.update_running_mean = False
    return made


def registered(*wrappers: Any, base: Any = Line) -> None:
    def make() -> Any:
        env = base()
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    gym.registry.pop(ID, None)
    gym.register(ID, entry_point=make, max_episode_steps=5)


@pytest.mark.parametrize(
    ("wrappers", "said"),
    [
        (
            [NormalizeObservation],
            r"running statistics \(NormalizeObservation\).* set ppo.normalize_observations or sac",
        ),
        ([NormalizeReward, RecordEpisodeStatistics], r"running statistics \(NormalizeReward\)"),
        ([Centred], r"wrappers \(Centred\) carry something"),
        ([Harder, TimeAwareObservation], r"wrappers \(TimeAwareObservation, Harder\) carry something"),
    ],
)
def test_what_is_carried_is_said_also_by_evaluations(
    wrappers: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    registered(lambda env: TimeLimit(env, 5), *wrappers)
    found = carried_state(lambda: make_env(ID))
    evaluate(ID, lambda seen, first: np.zeros((len(seen), 1), np.float32), episodes=1, seed=0)
    assert found is not None
    assert f"Environment {ID}: {found}." in caplog.text
    assert re.search(said, found)


@pytest.mark.parametrize("base", [Line, OwnSeed])
@pytest.mark.parametrize(
    "wrapper",
    [
        lambda env: env,
        RecordEpisodeStatistics,
        TimeAwareObservation,
        lambda env: FrameStackObservation(env, 3),
        noisy,
        frozen,
    ],
)
def test_nothing_is_said_of_what_begins_anew_or_is_random(wrapper: Any, base: Any) -> None:
    registered(lambda env: TimeLimit(env, 5), wrapper, base=base)
    assert carried_state(lambda: make_env(ID)) is None
