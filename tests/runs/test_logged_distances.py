"""Distances of the learned to the true reward in a run's metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.fragments import Fragments, Trajectory
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.envs.ground_truth import ground_truth
from rlhf_ray.reward.functions import CallableReward, RewardFunction
from rlhf_ray.reward.sampled_distances import dard, epic
from rlhf_ray.runs.distances import logged_distances
from tests.made_up import played_at_random, some_fragments


@pytest.fixture(scope="module")
def swings() -> Fragments:
    """Fragments of Pendulum under random actions."""
    whole = played_at_random("Pendulum-v1", range(8), 200)
    return Fragments.concatenate([each.window(start, 25, 0) for each in whole for start in range(0, 200, 25)])


def _reward(of: Callable[..., Any], truth: RewardFunction) -> RewardFunction:
    return CallableReward(of, truth.observation_space, truth.action_space)


def test_steps_of_fragments_are_theirs_in_order() -> None:
    clips = some_fragments(5, 4)
    steps = Transitions.of_fragments(clips)
    parts = [
        Trajectory(
            clips.observations[i], clips.actions[i], clips.rewards[i], bool(clips.terminated[i]), int(clips.starts[i])
        )
        for i in range(5)
    ]
    for name, value in vars(Transitions.of_trajectories(parts)).items():
        np.testing.assert_array_equal(getattr(steps, name), value)


def test_the_true_reward_shaped_and_scaled_is_near_0_and_its_opposite_near_1(swings: Fragments) -> None:
    truth, steps = ground_truth("Pendulum-v1"), Transitions.of_fragments(swings)

    def shaped(o: Any, a: Any, s: Any, d: Any) -> Any:
        return 3 * truth(o, a, s, d) + 0.95 * 5 * s[:, 0] - 5 * o[:, 0]

    same = logged_distances(_reward(shaped, truth), truth, steps, 0.95)
    opposite = logged_distances(_reward(lambda *of: -shaped(*of), truth), truth, steps, 0.95)
    noise = logged_distances(_reward(lambda o, a, s, d: np.sin(50 * o[:, 2]), truth), truth, steps, 0.95)
    assert list(same) == list(opposite) == ["epic_distance", "dard_distance"]
    assert max(same.values()) < 0.05
    assert min(opposite.values()) > 0.95
    assert all(0.6 < value < 0.8 for value in noise.values())
    assert logged_distances(_reward(shaped, truth), truth, steps, 0.95) == same


def test_they_are_near_those_of_many_more_draws(swings: Fragments) -> None:
    truth, steps = ground_truth("Pendulum-v1"), Transitions.of_fragments(swings)
    other = _reward(lambda o, a, s, d: truth(o, a, s, d) + 2 * np.sin(5 * o[:, 0] + o[:, 2]) + 2 * o[:, 1], truth)
    found = logged_distances(other, truth, steps, 0.95)
    for name, measure in (("epic", epic), ("dard", dard)):
        many = measure(other, truth, steps, 0.95, np.random.default_rng(9), pairs=400)
        assert found[f"{name}_distance"] == pytest.approx(many.value, abs=0.1)
