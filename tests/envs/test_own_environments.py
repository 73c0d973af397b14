"""CartPoleFixed, AcrobotFixed, MovingDot, Pendulum: physics, rewards and pictures. What holds for all: test_conformance.py."""

import math
import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from numpy.typing import NDArray

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.envs import make_env, make_vector_env
from rlhf_ray.envs.moving_dot import MovingDot

CARTPOLE, ACROBOT, DOT = (f"rlhf_ray/{name}-v0" for name in ("CartPoleFixed", "AcrobotFixed", "MovingDot"))


@pytest.mark.parametrize("policy", ["random", "left"])
def test_same_as_cartpole_until_the_first_fall(policy: str) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = make_env(CARTPOLE), gymnasium.make("CartPole-v1")
    for seed in range(20):
        our_observation, _ = ours.reset(seed=seed)
        their_observation, _ = theirs.reset(seed=seed)
        terminated = False
        while not terminated:
            assert np.array_equal(our_observation, their_observation)
            action = int(rng.integers(2)) if policy == "random" else 0
            our_observation, our_reward, our_terminated, _, _ = ours.step(action)
            their_observation, _, terminated, truncated, _ = theirs.step(action)
            assert (truncated, our_terminated) == (False, False)
            assert our_reward == (0.0 if terminated else 1.0)
        assert np.array_equal(our_observation, their_observation)


def test_cartpole_goes_on_after_a_fall_without_a_warning() -> None:
    env = make_env(CARTPOLE)
    env.reset(seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(500):
            observation, reward, *_ = env.step(0)
            assert reward == float(abs(observation[0]) <= 2.4 and abs(observation[2]) <= np.deg2rad(12))
    env.unwrapped.metadata["mark"] = 1
    assert "mark" not in gymnasium.make("CartPole-v1").metadata


def test_the_cart_never_leaves_the_picture() -> None:
    pytest.importorskip("pygame")
    env = make_env(CARTPOLE, render_mode="rgb_array")
    env.reset(seed=0)
    inner = env.unwrapped
    for x, off_track in ((0.0, 0.0), (-1.4, 0.0), (2.6, 0.25), (-3.8, 0.5), (5.0, 0.75), (300.5, 1.0)):
        for angle in (np.pi / 2, -np.pi / 2):  # the pole points to either side
            before = inner.state = np.array([x, 0.0, angle, 0.0])
            frame = env.render()
            assert inner.state is before
            black = (frame[311:314] == 0).all(axis=(0, 2))  # the cart, under pole and track
            assert black.sum() == pytest.approx(50, abs=2), x
            brown = (frame[..., 0] > frame[..., 2] + 40).any(axis=0)
            assert brown.sum() >= 110, x  # the whole pole, but for what the axle hides
            grey = (frame[5, :, 0] < 255).mean()
            assert grey == pytest.approx(off_track, abs=0.01), x
    env.close()


def test_acrobots_physics_for_five_hundred_steps_and_the_height_of_its_tip() -> None:
    ours, theirs = make_env(ACROBOT), gymnasium.make("Acrobot-v1").unwrapped
    goals = 0
    our_observation, _ = ours.reset(seed=0)
    their_observation, _ = theirs.reset(seed=0)
    for _ in range(500):
        assert np.array_equal(our_observation, their_observation)
        action = 2 if our_observation[5] >= 0 else 0  # the torque always adds energy
        our_observation, reward, *_ = ours.step(action)
        their_observation, _, at_goal, _, _ = theirs.step(action)
        upper, lower = theirs.state[:2]  # type: ignore[attr-defined]
        assert reward == pytest.approx(-math.cos(upper) - math.cos(upper + lower), abs=1e-5)
        assert (reward > 1) == at_goal
        goals += at_goal
    assert goals  # the episodes continued
    truth = ours.unwrapped.ground_truth()  # type: ignore[attr-defined]
    down, up, folded = [1, 0, 1, 0, 0, 0], [-1, 0, 1, 0, 0, 0], [-1, 0, -1, 0, 0, 0]
    after = np.array([down, up, folded], np.float32)
    assert truth.members(after[::-1], np.zeros(3), after, np.zeros(3))[0].tolist() == [-2, 2, 0]


def _corner(frame: NDArray[np.uint8]) -> tuple[int, int]:
    """The dot's upper left pixel; checks on the way that the frame is one dot and nothing else."""
    rows, columns, _ = np.nonzero(frame)
    top, left = int(rows.min()), int(columns.min())
    expected = np.zeros((64, 64, 3), np.uint8)
    expected[top : top + 4, left : left + 4] = 255
    assert np.array_equal(frame, expected)
    return top, left


@pytest.mark.parametrize(("action", "move"), [(0, (0, 0)), (1, (-2, 0)), (2, (0, 2)), (3, (2, 0)), (4, (0, -2))])
def test_actions_move_the_dot_and_edges_stop_it(action: int, move: tuple[int, int]) -> None:
    env = make_env(DOT, render_mode="rgb_array")
    row, column = _corner(env.reset(seed=1)[0])
    for _ in range(60):
        frame, reward, *_ = env.step(action)
        row, column = (min(max(a + b, 0), 60) for a, b in zip((row, column), move, strict=True))
        assert _corner(frame) == (row, column)
        assert np.array_equal(env.render(), frame)
        assert reward == pytest.approx(-math.hypot(row + 2 - 32, column + 2 - 32) / 32)


def test_the_dot_starts_anywhere_and_can_reach_the_middle() -> None:
    env = make_env(DOT).unwrapped
    starts = np.array([_corner(env.reset()[0]) for _ in range(2000)])
    assert (starts.min(), starts.max()) == (0, 60)
    # Standard deviation of a uniform start is 17.9 pixels: 5 standard errors of the mean of 2000 are 2.
    assert np.abs(starts.mean(axis=0) - 30).max() < 2.0
    row, column = _corner(env.reset(seed=2)[0])
    for _ in range(60):
        action = 3 if row < 30 else 1 if row > 30 else 2 if column < 30 else 4 if column > 30 else 0
        frame, reward, *_ = env.step(action)
        row, column = _corner(frame)
    assert reward == 0.0
    with pytest.raises(ValueError, match="human"):
        MovingDot(render_mode="human")


def test_torques_beyond_the_largest_count_as_the_largest() -> None:
    envs = make_vector_env("Pendulum-v1", 2)
    ends = []
    for torque in (2.0, 50.0):
        envs.reset(seed=0)
        ends.append(envs.step(np.full((2, 1), torque, np.float32)))
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    np.testing.assert_array_equal(ends[0][1], ends[1][1])


def test_actions_that_are_no_numbers_are_the_policy_s_fault() -> None:
    envs = make_vector_env("Pendulum-v1", 3)
    envs.reset(seed=0)
    with pytest.raises(FaultyEnvironmentError, match=r"the policy acts with .*nan.* Lower the learning rate"):
        envs.step(np.array([[0.0], [np.nan], [1.0]], np.float32))


def test_steps_need_a_reset_first() -> None:
    envs: Any = make_vector_env("Pendulum-v1", 2)
    with pytest.raises(ResetNeeded):
        envs.unwrapped.step(np.zeros((2, 1), np.float32))
