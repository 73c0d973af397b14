"""What is known of an environment by its name: its identity, and the return from which it counts as learned."""

from pathlib import Path

import gymnasium as gym
import pytest

from rlhf_ray.envs.registry import THRESHOLDS, identity_of, register, reward_threshold


def an_env(pays: float, file: Path) -> type[gym.Env]:
    class World(gym.Env):
        observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

        def __init__(self, goal: int = 0) -> None:
            self.goal, self.level = goal, file.read_text()

        def reset(self, *, seed=None, options=None):
            return self.observation_space.sample(), {}

        def step(self, action):
            return self.observation_space.sample(), pays * (action == self.goal), True, False, {}

    return World


@pytest.fixture
def found(tmp_path, monkeypatch):
    (tmp_path / "level").write_text("wall")

    def register(pays=1.0, **options):
        monkeypatch.delitem(gym.registry, "Own-v0", raising=False)
        gym.register("Own-v0", an_env(pays, tmp_path / "level"), kwargs=options)
        return identity_of("Own-v0")

    return register


def test_an_environment_is_its_code_its_options_and_its_files(found, tmp_path):
    first = found()
    assert found() == first
    others = [found(pays=7.0), found(goal=1)]
    (tmp_path / "level").write_text("door")
    others.append(found())
    assert len({first, *others}) == 4


def test_installed_environments_are_their_names():
    assert identity_of("CartPole-v1") == identity_of("CartPole-v1") != identity_of("Pendulum-v1")
    assert identity_of("NoSuch-v0") == "NoSuch-v0"
    assert identity_of(None) == ""


def test_a_threshold_is_the_one_that_the_environment_is_registered_with() -> None:
    assert reward_threshold("CartPole-v1") == gym.spec("CartPole-v1").reward_threshold == 475.0
    assert reward_threshold("any_module:CartPole-v1") == 475.0
    assert reward_threshold("Pendulum-v1") == -250.0
    assert reward_threshold("rlhf_ray/CartPoleFixed-v0") == 475.0
    for none in ("fixed/CartPole-v1", "rlhf_ray/MovingDot-v0", "procgen/coinrun-easy", "Nothing-v0", "module:"):
        assert reward_threshold(none) is None


@pytest.mark.parametrize("name", THRESHOLDS)
def test_only_environments_without_one_are_listed(name: str) -> None:
    register()
    assert gym.spec(name).reward_threshold is None
