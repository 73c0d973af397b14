"""What holds for every environment of ours and of examples/worlds, whatever its task."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from examples.worlds import IMAGES, WORLDS
from rlhf_ray.envs import check_spaces, is_natively_vectorised, make_env, make_vector_env, steps_together
from rlhf_ray.envs.ground_truth import ground_truth
from tests.envs.worlds import GRIDS, MAZES

CONTROL = ("CartPoleFixed", "AcrobotFixed", "MovingDot", "MountainCar")
NAMES = [f"rlhf_ray/{name}-v0" for name in (*CONTROL, *GRIDS, *MAZES, *WORLDS, *IMAGES)]
ENDLESS = [f"rlhf_ray/{name}-v0" for name in (*CONTROL, *MAZES, *IMAGES)]
"""Whose episodes end at the time limit alone."""
KNOWN = ["Pendulum-v1", *(f"rlhf_ray/{name}-v0" for name in (*CONTROL, *GRIDS, *MAZES, *IMAGES))]
"""With a model of the true reward."""
NATIVE = ["Pendulum-v1", "rlhf_ray/CartPoleFixed-v0"]
TOGETHER = [*NATIVE, *(f"rlhf_ray/{name}-v0" for name in WORLDS)]
COPIES = 3


@pytest.mark.parametrize("name", NAMES)
def test_it_is_a_gymnasium_environment_and_a_seed_is_an_episode(name: str) -> None:
    env, again = make_env(name), make_env(name)
    check_env(env.unwrapped, skip_render_check=True)
    if any(maze in name for maze in MAZES):  # tables, which no network is trained on
        with pytest.raises(ValueError, match="FlattenObservation"):
            check_spaces(env.unwrapped.observation_space, env.action_space, name)
    else:
        check_spaces(env.observation_space, env.action_space, name)
    env.action_space.seed(3)
    np.testing.assert_equal(env.reset(seed=3), again.reset(seed=3))
    limit, length = env.spec.max_episode_steps, 0
    ended = False
    while not ended:
        action = env.action_space.sample()
        seen, reward, terminated, truncated, info = env.step(action)
        np.testing.assert_equal((seen, reward, terminated, truncated, info), again.step(action))
        assert env.observation_space.contains(seen)
        length, ended = length + 1, terminated or truncated
        assert not (terminated and name in ENDLESS)
    assert length == limit if name in ENDLESS else length <= limit
    if hasattr(env.unwrapped, "expert"):
        env.reset(seed=4)
        assert env.action_space.contains(np.int64(env.unwrapped.expert(np.random.default_rng(0))))
    if hasattr(env.unwrapped, "describe"):
        assert all(np.asarray(fact).dtype.kind in "biuf" for fact in env.unwrapped.describe().values())


@pytest.mark.parametrize("name", [name for name in NAMES if "Maze" not in name and "MountainCar" not in name])
def test_people_see_pictures_of_one_size(name: str) -> None:
    if "Fixed-v0" in name:
        pytest.importorskip("pygame")
    env = make_env(name, render_mode="rgb_array")
    env.reset(seed=0)
    shapes = set()
    for _ in range(3):
        picture: Any = env.render()
        assert picture.dtype == np.uint8
        shapes.add(picture.shape)
        env.step(env.action_space.sample())
    assert len(shapes) == 1
    assert len(shapes.pop()) == 3
    assert make_env(name).unwrapped.render_mode is None
    env.close()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", KNOWN)
def test_each_step_pays_what_the_model_of_the_true_reward_says(name: str) -> None:
    env: Any = make_env(name).unwrapped if "Maze" in name else make_env(name)
    env.action_space.seed(0)
    model, rows = ground_truth(name), []
    seen, _ = env.reset(seed=0)
    for step in range(100):
        action = env.action_space.sample()
        following, reward, terminated, truncated, _ = env.step(action)
        rows.append((seen, action, following, terminated, reward))
        seen = env.reset(seed=step)[0] if terminated or truncated else following
    before, actions, after, ends, rewards = (np.stack(column) for column in zip(*rows, strict=True))
    np.testing.assert_allclose(model(before, actions, after, ends), rewards, atol=1e-4)


@pytest.mark.parametrize(("name", "seed"), [*((name, 7) for name in TOGETHER), *((name, [3, 1, 4]) for name in NATIVE)])
def test_copies_that_step_together_are_single_ones_step_by_step(name: str, seed: Any) -> None:
    native = is_natively_vectorised(name)
    assert (steps_together(name), native) == (True, name in NATIVE)
    options: dict[str, Any] = {"max_episode_steps": 20} | ({"render_mode": "rgb_array"} if native else {})
    ours = make_vector_env(name, COPIES, **options)
    theirs = SyncVectorEnv([lambda: make_env(name, **options)] * COPIES, autoreset_mode=AutoresetMode.NEXT_STEP)
    assert ours.metadata["autoreset_mode"] is AutoresetMode.NEXT_STEP
    assert (ours.single_observation_space, ours.single_action_space) == (
        theirs.single_observation_space,
        theirs.single_action_space,
    )
    ours.action_space.seed(0)
    np.testing.assert_array_equal(ours.reset(seed=seed)[0], theirs.reset(seed=seed)[0])
    live = np.ones(COPIES, bool)
    for step in range(50):
        if native and step < 3:
            for one, two in zip(ours.render() or (), theirs.render() or (), strict=True):
                assert np.abs(one.astype(int) - two).mean() < 0.1
        actions = ours.action_space.sample()
        mine, other = ours.step(actions), theirs.step(actions)
        np.testing.assert_array_equal((mine[2] | mine[3])[live], (other[2] | other[3])[live])
        for one, two in zip(mine[:3], other[:3], strict=True):
            # Not all processors compute sines of many numbers and of one alike, to the last bit.
            np.testing.assert_allclose(one[live].astype(np.float64), two[live], atol=1e-5)
        assert mine[0].dtype == other[0].dtype
        if not native:  # the worlds draw later levels from the copies' own streams
            live &= ~(mine[2] | mine[3])
    ours.close()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("name", [name for name in NAMES if "Fixed-v0" not in name])
def test_what_is_no_action_is_refused(name: str) -> None:
    env: Any = gymnasium.make(name).unwrapped
    env.reset(seed=0)
    if "DotsAndDistances" not in name:  # whose actions have no effect
        with pytest.raises(ValueError, match=r"0 to|in 0\.\."):
            env.step(99)
