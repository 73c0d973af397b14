import warnings

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from rlhf_ray.envs import make_env

NAME = "rlhf_ray/CartPoleFixed-v0"


def test_env_checker() -> None:
    check_env(make_env(NAME).unwrapped, skip_render_check=True)


@pytest.mark.parametrize("policy", ["random", "left"])
def test_same_as_cartpole_until_the_first_fall(policy: str) -> None:
    rng = np.random.default_rng(0)
    ours, theirs = make_env(NAME), gymnasium.make("CartPole-v1")
    for seed in range(20):
        our_observation, _ = ours.reset(seed=seed)
        their_observation, _ = theirs.reset(seed=seed)
        terminated = False
        while not terminated:
            assert np.array_equal(our_observation, their_observation)
            action = int(rng.integers(2)) if policy == "random" else 0
            our_observation, our_reward, our_terminated, _, _ = ours.step(action)
            their_observation, _, terminated, truncated, _ = theirs.step(action)
            assert not truncated
            assert not our_terminated
            assert our_reward == (0.0 if terminated else 1.0)
        assert np.array_equal(our_observation, their_observation)


def test_five_hundred_steps_whatever_happens() -> None:
    env = make_env(NAME)
    rng = np.random.default_rng(0)
    for seed in range(3):
        observation, _ = env.reset(seed=seed)
        for step in range(1, 501):
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                observation, reward, terminated, truncated, _ = env.step(int(rng.integers(2)) if seed else 0)
            upright = abs(observation[0]) <= 2.4 and abs(observation[2]) <= np.deg2rad(12)
            assert reward == float(upright)
            assert not terminated
            assert truncated == (step == 500)
            assert env.observation_space.contains(observation)


def test_does_not_touch_cartpole() -> None:
    make_env(NAME).unwrapped.metadata["mark"] = 1
    cartpole = gymnasium.make("CartPole-v1")
    assert "mark" not in cartpole.metadata
    assert np.isfinite(cartpole.observation_space.high[0])


def test_renders_frames() -> None:
    pytest.importorskip("pygame")
    env = make_env(NAME, render_mode="rgb_array")
    env.reset(seed=0)
    frame = env.render()
    assert frame.shape == (400, 600, 3)
    env.close()


def test_the_cart_never_leaves_the_picture() -> None:
    pytest.importorskip("pygame")
    env = make_env(NAME, render_mode="rgb_array")
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
