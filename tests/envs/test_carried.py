"""Running statistics of wrappers are named, also by evaluations; what begins anew with each episode is not."""

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

ID = "test_carried/Pendulum-v0"


def frozen(env: Any) -> Any:
    made = NormalizeObservation(env)
    made.update_running_mean = False
    return made


@pytest.mark.parametrize(
    ("wrappers", "said"),
    [
        (
            [NormalizeObservation],
            r"running statistics \(NormalizeObservation\).* set ppo.normalize_observations or sac",
        ),
        ([NormalizeReward, RecordEpisodeStatistics], r"running statistics \(NormalizeReward\)"),
        ([RecordEpisodeStatistics, TimeAwareObservation], None),
        ([lambda env: FrameStackObservation(env, 3)], None),
        ([frozen], None),
        ([], None),
    ],
)
def test_running_statistics_are_said_also_by_evaluations(
    wrappers: list[Any], said: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    def make() -> Any:
        env = TimeLimit(gym.make("Pendulum-v1"), 5)
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    gym.register(ID, entry_point=make, max_episode_steps=5)
    try:
        found = carried_state(lambda: make_env(ID))
        if said is not None:
            evaluate(ID, lambda seen, first: np.zeros((len(seen), 1), np.float32), episodes=1, seed=0)
    finally:
        del gym.registry[ID]
    assert (found is None) == (said is None)
    if found is not None and said is not None:
        assert re.search(said, found)
        assert f"Environment {ID}: {found}." in caplog.text
