import math

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray

from rlhf_ray.envs import make_env
from rlhf_ray.envs.moving_dot import MovingDot

NAME = "rlhf_ray/MovingDot-v0"


def _corner(frame: NDArray[np.uint8]) -> tuple[int, int]:
    """The dot's upper left pixel; checks on the way that the frame is one dot and nothing else."""
    rows, columns, _ = np.nonzero(frame)
    top, left = int(rows.min()), int(columns.min())
    expected = np.zeros((64, 64, 3), np.uint8)
    expected[top : top + 4, left : left + 4] = 255
    assert np.array_equal(frame, expected)
    return top, left


def test_env_checker() -> None:
    check_env(make_env(NAME).unwrapped)
    check_env(make_env(NAME, render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize(("action", "move"), [(0, (0, 0)), (1, (-2, 0)), (2, (0, 2)), (3, (2, 0)), (4, (0, -2))])
def test_actions_move_the_dot_and_edges_stop_it(action: int, move: tuple[int, int]) -> None:
    env = make_env(NAME)
    frame, _ = env.reset(seed=1)
    row, column = _corner(frame)
    for step in range(1, 101):
        frame, reward, terminated, truncated, _ = env.step(action)
        row, column = (min(max(a + b, 0), 60) for a, b in zip((row, column), move, strict=True))
        assert _corner(frame) == (row, column)
        assert reward == pytest.approx(-math.hypot(row + 2 - 32, column + 2 - 32) / 32)
        assert not terminated
        assert truncated == (step == 100)


def test_the_middle_can_be_reached_from_everywhere() -> None:
    env = make_env(NAME)
    for seed in range(10):
        row, column = _corner(env.reset(seed=seed)[0])
        reward = -1.0
        for _ in range(60):
            action = 3 if row < 30 else 1 if row > 30 else 2 if column < 30 else 4 if column > 30 else 0
            frame, reward, *_ = env.step(action)
            row, column = _corner(frame)
        assert reward == 0.0


def test_starts_are_uniform_and_seeded() -> None:
    env = make_env(NAME).unwrapped
    first = _corner(env.reset(seed=3)[0])
    starts = np.array([_corner(env.reset()[0]) for _ in range(2000)])
    assert _corner(env.reset(seed=3)[0]) == first
    assert starts.min() == 0
    assert starts.max() == 60
    # Standard deviation of a uniform start is 17.9 pixels: 5 standard errors of the mean of 2000 are 2.
    assert np.abs(starts.mean(axis=0) - 30).max() < 2.0


def test_render_is_the_observation() -> None:
    env = make_env(NAME, render_mode="rgb_array")
    observation, _ = env.reset(seed=0)
    assert np.array_equal(env.render(), observation)
    observation, *_ = env.step(2)
    assert np.array_equal(env.render(), observation)


def test_wrong_settings() -> None:
    with pytest.raises(ValueError, match="human"):
        MovingDot(render_mode="human")
    env = make_env(NAME).unwrapped
    env.reset(seed=0)
    with pytest.raises(ValueError, match="MovingDot is 5"):
        env.step(5)
