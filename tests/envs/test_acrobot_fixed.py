"""``rlhf_ray/AcrobotFixed-v0``: Acrobot's physics, episodes of one length, and the tip's height as reward."""

import math

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlhf_ray.envs import make_env

NAME = "rlhf_ray/AcrobotFixed-v0"


def test_env_checker() -> None:
    check_env(make_env(NAME).unwrapped, skip_render_check=True)


def test_acrobots_physics_for_five_hundred_steps_and_the_height_of_its_tip() -> None:
    ours, theirs = make_env(NAME), gymnasium.make("Acrobot-v1").unwrapped
    goals = 0
    our_observation, _ = ours.reset(seed=0)
    their_observation, _ = theirs.reset(seed=0)
    for step in range(1, 501):
        assert np.array_equal(our_observation, their_observation)
        action = 2 if our_observation[5] >= 0 else 0  # the torque always adds energy
        our_observation, reward, terminated, truncated, _ = ours.step(action)
        their_observation, _, at_goal, _, _ = theirs.step(action)
        upper, lower = theirs.state[:2]  # type: ignore[attr-defined]
        assert reward == pytest.approx(-math.cos(upper) - math.cos(upper + lower), abs=1e-5)
        assert (reward > 1) == at_goal
        goals += at_goal
        assert (terminated, truncated) == (False, step == 500)
    assert goals  # the episodes continued


def test_hanging_down_is_minus_two_and_upright_two() -> None:
    truth = make_env(NAME).unwrapped.ground_truth()  # type: ignore[attr-defined]
    down, up, folded = [1, 0, 1, 0, 0, 0], [-1, 0, 1, 0, 0, 0], [-1, 0, -1, 0, 0, 0]
    after = np.array([down, up, folded], np.float32)
    assert truth.members(after[::-1], np.zeros(3), after, np.zeros(3))[0].tolist() == [-2, 2, 0]
