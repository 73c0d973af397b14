"""Environments of seals."""

import sys

import numpy as np
import pytest

from rlhf_ray.envs import check_spaces, make_env

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
    assert env.spec is not None
    assert env.spec.max_episode_steps == 1000
    seen, _ = env.reset(seed=0)
    assert np.array_equal(seen[: env.unwrapped.model.nq], env.unwrapped.data.qpos)  # type: ignore[attr-defined]
    ends = [env.step(env.action_space.high)[2] for _ in range(100)]  # type: ignore[attr-defined]
    assert not any(ends)  # not even after a fall


def test_without_seals_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "seals", None)
    with pytest.raises(ImportError, match=r"^seals/CartPole-v0 needs seals: pip install seals"):
        make_env("seals/CartPole-v0")
