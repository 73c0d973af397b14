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
