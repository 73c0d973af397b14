"""The arrays' steps are gymnasium's."""

from typing import Any

import numpy as np
import pytest
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.envs import is_natively_vectorised, make_env, make_vector_env, steps_together

NAMES = ["Pendulum-v1", "rlhf_ray/CartPoleFixed-v0"]
COPIES = 5


def loop(name: str, **options: Any) -> SyncVectorEnv:
    """Return gymnasium's loop over copies, which is what the arrays have to repeat."""
    return SyncVectorEnv([lambda: make_env(name, **options)] * COPIES, autoreset_mode=AutoresetMode.NEXT_STEP)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [7, [3, 1, 4, 1, 5]])
def test_steps_are_those_of_a_loop_over_gymnasium_s_environments(name: str, seed: Any) -> None:
    ours, theirs = make_vector_env(name, COPIES, max_episode_steps=70), loop(name, max_episode_steps=70)
    assert is_natively_vectorised(name)
    assert steps_together(name)
    assert (ours.single_observation_space, ours.single_action_space) == (
        theirs.single_observation_space,
        theirs.single_action_space,
    )
    ours.action_space.seed(0)
    seen, expected = ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0]
    assert seen.dtype == expected.dtype
    np.testing.assert_array_equal(seen, expected)
    for _ in range(200):
        actions = ours.action_space.sample()
        mine, other = ours.step(actions), theirs.step(actions)
        # Not all processors compute sines of many numbers and of one alike, to the last bit.
        np.testing.assert_allclose(mine[0], other[0], atol=1e-5)
        np.testing.assert_allclose(mine[1], other[1], atol=1e-5)
        assert mine[0].dtype == other[0].dtype
        assert mine[1].dtype == other[1].dtype
        np.testing.assert_array_equal(mine[2], other[2])
        np.testing.assert_array_equal(mine[3], other[3])


def test_torques_beyond_the_largest_count_as_the_largest() -> None:
    envs = make_vector_env("Pendulum-v1", 2)
    ends = []
    for torque in (2.0, 50.0):
        envs.reset(seed=0)
        ends.append(envs.step(np.full((2, 1), torque, np.float32)))
    np.testing.assert_array_equal(ends[0][0], ends[1][0])
    np.testing.assert_array_equal(ends[0][1], ends[1][1])


@pytest.mark.parametrize("name", NAMES)
def test_images_are_those_of_a_loop(name: str) -> None:
    ours, theirs = make_vector_env(name, COPIES, render_mode="rgb_array"), loop(name, render_mode="rgb_array")
    ours.action_space.seed(1)
    for envs in (ours, theirs):
        envs.reset(seed=2)
    for step in range(4):
        for mine, other in zip(ours.render() or (), theirs.render() or (), strict=True):
            assert np.abs(mine.astype(int) - other).mean() < 0.1, step
        actions = ours.action_space.sample()
        ours.step(actions), theirs.step(actions)
    assert make_vector_env(name, 1).render() is None


def test_actions_that_are_no_numbers_are_the_policy_s_fault() -> None:
    envs = make_vector_env("Pendulum-v1", 3)
    envs.reset(seed=0)
    with pytest.raises(FaultyEnvironmentError, match=r"the policy acts with .*nan.* Lower the learning rate"):
        envs.step(np.array([[0.0], [np.nan], [1.0]], np.float32))


def test_steps_need_a_reset_first() -> None:
    envs: Any = make_vector_env("Pendulum-v1", 2)
    with pytest.raises(ResetNeeded):
        envs.unwrapped.step(np.zeros((2, 1), np.float32))
