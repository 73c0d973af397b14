"""``fixed/ID`` and seals: episodes that all have one length."""

import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleEnv
from gymnasium.wrappers import TimeLimit

from rlhf_ray.envs import check_spaces, make_env, make_vector_env
from rlhf_ray.envs.fixed_horizon import FixedHorizon
from tests.envs.worlds import Gives


def test_after_its_end_an_episode_stands_still_until_the_time_limit() -> None:
    env, plain = make_env("fixed/CartPole-v1"), make_env("CartPole-v1")
    for seed in (0, 1):
        observation, _ = env.reset(seed=seed)
        plain.reset(seed=seed)
        over, total, steps = False, 0.0, 0
        while True:
            seen, reward, terminated, truncated, _ = env.step(1)
            steps, total = steps + 1, total + reward
            assert not terminated
            if over:
                assert (reward, (seen == observation).all()) == (0.0, True)
            else:
                observation, same, over, _, _ = plain.step(1)
                assert (reward, (seen == observation).all()) == (same, True)
            if truncated:
                break
        assert (steps, over) == (500, True)
        assert total < 15
    assert env.spec.max_episode_steps == 500


BOX, THREE = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(3, start=1)


@pytest.mark.parametrize(
    "space",
    [
        gym.spaces.Dict(a=BOX, b=gym.spaces.Tuple((THREE, gym.spaces.Dict(c=BOX)))),
        gym.spaces.Tuple((BOX, THREE)),
        THREE,
        gym.spaces.MultiBinary(4),
        gym.spaces.MultiDiscrete([2, 5]),
        gym.spaces.Text(3),
        BOX,
    ],
    ids=str,
)
def test_the_last_observation_of_any_space_is_repeated_as_it_was(space: gym.Space[Any]) -> None:
    def sampled(step: int) -> Any:
        if not step:
            space.seed(0)
        return space.sample()

    env = TimeLimit(FixedHorizon(Gives(space, sampled, last=3)), 8)
    env.reset()
    steps = [env.step(0) for _ in range(8)]
    last = repr(steps[2][0])
    assert repr(steps[1][0]) != last
    for seen, *_ in steps[3:]:
        assert repr(seen) == last
        assert space.contains(seen)
        if isinstance(seen, np.ndarray):
            seen[:] = 0  # what a user does to one leaves the others as they are


def test_a_reward_in_an_array_of_one_is_a_number_as_without_the_prefix() -> None:
    class Pays(CartPoleEnv):
        def step(self, action: Any) -> Any:
            observation, reward, *others = super().step(action)
            return observation, np.array([reward]), *others

    pays: Any = Pays
    gym.register("tests/Pays-v0", pays, max_episode_steps=5)
    for name in ("tests/Pays-v0", "fixed/tests/Pays-v0"):
        env = make_env(name)
        env.reset(seed=0)
        reward = env.step(0)[1]
        assert (type(reward), reward) == (float, 1.0)


def test_several_copies_begin_anew_together() -> None:
    env = make_vector_env("fixed/CartPole-v1", 2)
    env.reset(seed=0)
    for _ in range(499):
        *_, truncated, _ = env.step(np.array([1, 0]))
        assert not truncated.any()
    assert env.step(np.array([1, 0]))[3].all()


def test_what_has_no_time_limit_and_what_is_of_a_module_is_refused() -> None:
    with pytest.raises(ValueError, match="without a module"):
        make_env("fixed/some_module:CartPole-v1")
    with pytest.raises(ValueError, match="no environment 'CartPol-v1'"):
        make_env("fixed/CartPol-v1")


def test_imitations_absorbing_wrapper_does_the_same_with_the_last_observation() -> None:
    util = pytest.importorskip("seals.util")
    theirs, ours = util.AbsorbAfterDoneWrapper(make_env("CartPole-v1")), make_env("fixed/CartPole-v1")
    same, seen = theirs.reset(seed=3)[0], ours.reset(seed=3)[0]
    for _ in range(100):
        assert np.array_equal(seen, same)
        same, their_reward, *_ = theirs.step(1)
        seen, reward, *_ = ours.step(1)
        assert reward == their_reward


ROBOTS = [
    "Hopper",
    "Swimmer",
    *(pytest.param(name, marks=pytest.mark.soak) for name in ("Ant", "HalfCheetah", "Humanoid", "Walker2d")),
]


@pytest.mark.parametrize(("name", "steps"), [("seals/CartPole-v0", 500), ("seals/MountainCar-v0", 200)])
def test_seals_classic_control_has_episodes_of_one_length(name: str, steps: int) -> None:
    pytest.importorskip("seals")
    env = make_env(name)
    check_spaces(env.observation_space, env.action_space, name)
    env.reset(seed=0)
    ends = [env.step(0)[2:4] for _ in range(steps)]
    assert ends == [(False, False)] * (steps - 1) + [(False, True)]


@pytest.mark.parametrize("robot", ROBOTS)
def test_seals_robots_are_made_by_their_ids(robot: str) -> None:
    pytest.importorskip("seals")
    pytest.importorskip("mujoco")
    env = make_env(f"seals/{robot}-v1")
    check_spaces(env.observation_space, env.action_space, robot)
    assert env.spec.max_episode_steps == 1000
    seen, _ = env.reset(seed=0)
    assert np.array_equal(seen[: env.unwrapped.model.nq], env.unwrapped.data.qpos)  # type: ignore[attr-defined]
    ends = [env.step(env.action_space.high)[2] for _ in range(100)]  # type: ignore[attr-defined]
    assert not any(ends)  # not even after a fall


def test_without_seals_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seals", None)
    with pytest.raises(ImportError, match=r"^seals/CartPole-v0 needs seals: pip install seals"):
        make_env("seals/CartPole-v0")
