"""Checked environments: what is wrong with one is said in its name; and what wrappers carry across episodes."""

import copy
import re
import sys
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium.wrappers import (
    FrameStackObservation,
    NormalizeObservation,
    NormalizeReward,
    RecordEpisodeStatistics,
    TimeAwareObservation,
    TimeLimit,
)

from rlhf_ray import envs
from rlhf_ray.agents.true_return import evaluate
from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.data.failures import explain
from rlhf_ray.envs import carried_state, make_env
from rlhf_ray.envs.checked import CheckedEnv, try_out
from tests.envs.worlds import Gives


class Env(Gives):
    """Gives in its third step what it is told to: an observation, a reward, or something to do instead."""

    def __init__(self, observation: Any = (0.0, 0.0), reward: Any = 1.0, end: Any = False, instead: Any = None):
        super().__init__(gym.spaces.Box(-np.inf, np.inf, (2,), np.float32), lambda step: np.zeros(2, np.float32))
        self.given, self.reward, self.end, self.instead = observation, reward, end, instead

    def step(self, action: Any) -> Any:
        seen, *_ = super().step(action)
        if self.t < 3:
            return seen, 0.0, False, False, {}
        if self.instead is not None:
            self.instead()
        return self.given, self.reward, self.end, False, {}


def third_step(**given: Any) -> Any:
    env = CheckedEnv(Env(**given), "mine:Env-v0")
    env.reset(seed=0)
    env.step(0), env.step(0)
    return env.step(0)


def divide() -> float:
    return 1 / 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"reward": float("nan")}, "the reward is nan"),
        ({"reward": float("-inf")}, "the reward is -inf"),
        ({"reward": None}, "the reward is None, which is not a number"),
        ({"reward": -1e300}, r"the reward is -1e\+300, which is not a finite float32"),
        ({"reward": "-0.28"}, "the reward is '-0.28', which is not a number"),
        ({"reward": np.array(["1"])}, r"the reward is array\(\['1'\].*, which is not a number"),
        ({"reward": 10**400}, "the reward is 1000.*, which is not a number"),
        ({"end": "False"}, "terminated='False'; it must be True or False"),
        ({"end": float("nan")}, "terminated=nan; it must be True or False"),
        ({"end": None}, "terminated=None; it must be True or False"),
        ({"end": [True, False]}, r"terminated=\[True, False\]; it must be True or False"),
        ({"observation": np.array([0.0, np.nan], np.float32)}, "an observation that is nan at 1"),
        ({"observation": np.zeros(3, np.float32)}, r"of shape \(3,\); its observation space has shape \(2,\)"),
        ({"observation": [[1.0], 2.0]}, r"not an array: \[\[1.0\], 2.0\]"),
        ({"observation": "up"}, "not an array of numbers: 'up'"),
        ({"instead": divide}, r"step\(\) raised ZeroDivisionError: division by zero \(test_checked.py, line \d+\)"),
        ({"instead": lambda: sys.exit("bye")}, r"step\(\) raised SystemExit: bye"),
    ],
)
def test_what_is_wrong_is_said_with_environment_and_step(given: dict[str, Any], said: str) -> None:
    with pytest.raises(
        FaultyEnvironmentError, match=rf"^Environment mine:Env-v0, step 3 of episode 1: .*{said}"
    ) as error:
        third_step(**given)
    assert str(copy.copy(error.value)) == str(error.value)  # as between Ray's processes
    assert "\n" not in str(error.value)


def test_a_fault_that_passes_through_two_layers_is_told_once() -> None:
    class Undrawn(gym.Env[Any, Any]):
        observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

        def render(self) -> Any:
            raise FaultyEnvironmentError("It can't be drawn.")

    with pytest.raises(FaultyEnvironmentError) as raised:
        CheckedEnv(CheckedEnv(Undrawn(), "inner"), "outer").render()
    assert explain(raised.value) == "It can't be drawn."  # and ends: an error that is its own cause has no end


def test_a_policy_that_acts_with_no_numbers_is_to_blame_and_not_the_environment() -> None:
    env = CheckedEnv(Env(reward=float("nan")), "mine:Env-v0")
    env.reset(seed=0)
    env.step(0), env.step(0)
    with pytest.raises(FaultyEnvironmentError, match=r"acts with array\(\[nan\]\), because its weights are not finite"):
        env.step(np.array([np.nan]))


@pytest.mark.parametrize(
    "end", [True, 1, np.True_, np.array([1.0]), torch.tensor(True), torch.ones(1, requires_grad=True)]
)
def test_an_end_is_true_or_false_in_any_type(end: Any) -> None:
    assert third_step(end=end)[2:4] == (True, False)


def test_tensors_become_arrays_whatever_their_gradients() -> None:
    parameter = torch.ones(2, requires_grad=True)
    observation, reward, *_ = third_step(observation=2.0 * parameter, reward=parameter.sum())
    assert observation.tolist() == [2.0, 2.0]
    assert reward == 2.0


@pytest.mark.parametrize("observation", [[1, 2], np.array([1.0, 2.0]), (np.int64(1), 2.0)])
def test_what_loses_nothing_becomes_what_the_space_says(observation: Any) -> None:
    given, reward, *_ = third_step(observation=observation, reward=np.array([3]))
    assert given.dtype == np.float32
    assert given.tolist() == [1.0, 2.0]
    assert type(reward) is float


def test_floats_are_no_pixels() -> None:
    env = Env(observation=np.full((2,), 0.5))
    env.observation_space = gym.spaces.Box(0, 255, (2,), np.uint8)
    checked = CheckedEnv(env, "mine:Env-v0")
    env.t = 3
    with pytest.raises(FaultyEnvironmentError, match=r"of float64, and its value 0.5 is not a uint8"):
        checked.step(0)
    env.given = [0, 255]
    assert checked.step(0)[0].dtype == np.uint8
    env.given = [0, 256]
    with pytest.raises(FaultyEnvironmentError, match="and its value 256 is not a uint8"):
        checked.step(0)


def test_every_environment_that_is_made_by_name_is_checked_and_tried_out() -> None:
    gym.register("BornFaulty-v0", entry_point=lambda: {}["asset.png"])
    gym.register("Faulty-v0", entry_point=lambda: Env(reward="good"), max_episode_steps=9)
    with pytest.raises(FaultyEnvironmentError, match=r"Making environment BornFaulty-v0 raised KeyError: 'asset.png'"):
        envs.make_env("BornFaulty-v0")
    env = envs.make_env("Faulty-v0")
    assert env.spec.max_episode_steps == 9
    with pytest.raises(FaultyEnvironmentError, match="Faulty-v0, step 3 of episode 1: the reward is 'good'"):
        try_out(env)
    several = envs.make_vector_env("Faulty-v0", 2)
    several.reset(seed=0)
    several.step(np.zeros(2, np.int64))
    several.step(np.zeros(2, np.int64))
    with pytest.raises(FaultyEnvironmentError, match="the reward is 'good'"):
        several.step(np.zeros(2, np.int64))


ID = "test_carried/Line-v0"


class Line(gym.Env[Any, Any]):
    observation_space = gym.spaces.Box(-20, 20, (2,), np.float32)
    action_space = gym.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = self.drawn()
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 0.1 * float(action[0])
        return self.seen(), -abs(self.at), False, False, {}

    def drawn(self) -> float:
        return float(self.np_random.uniform(-1, 1))

    def seen(self) -> Any:
        return np.array([self.at, 10 + self.at], np.float32)


class OwnSeed(Line):
    """Draws from a generator that reset() does not seed: other episodes, but of the same environment."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def drawn(self) -> float:
        return float(self.rng.uniform(-1, 1))


class Centred(gym.ObservationWrapper[Any, Any, Any]):
    """Subtracts a running mean of its own."""

    def __init__(self, env: Any):
        super().__init__(env)
        self.total, self.steps = np.zeros(2), 0

    def observation(self, observation: Any) -> Any:
        self.steps += 1
        self.total += observation
        return (observation - self.total / self.steps).astype(np.float32)


class Harder(gym.RewardWrapper[Any, Any]):
    """Pays less with each episode."""

    episodes = 0

    def reset(self, **options: Any) -> Any:
        self.episodes += 1
        return super().reset(**options)

    def reward(self, reward: Any) -> Any:
        return float(reward) / self.episodes


def noisy(env: Any) -> Any:
    return gym.wrappers.TransformReward(env, lambda reward: float(reward) + np.random.default_rng().normal())


def frozen(env: Any) -> Any:
    made = NormalizeObservation(env)
    made.update_running_mean = False
    return made


def registered(*wrappers: Any, base: Any = Line) -> None:
    def make() -> Any:
        env = base()
        for wrapper in wrappers:
            env = wrapper(env)
        return env

    gym.registry.pop(ID, None)
    gym.register(ID, entry_point=make, max_episode_steps=5)


@pytest.mark.parametrize(
    ("wrappers", "said"),
    [
        (
            [NormalizeObservation],
            r"running statistics \(NormalizeObservation\).* set ppo.normalize_observations or sac",
        ),
        ([NormalizeReward, RecordEpisodeStatistics], r"running statistics \(NormalizeReward\)"),
        ([Centred], r"wrappers \(Centred\) carry something"),
        ([Harder, TimeAwareObservation], r"wrappers \(TimeAwareObservation, Harder\) carry something"),
    ],
)
def test_what_is_carried_is_said_also_by_evaluations(wrappers, said, caplog):
    registered(lambda env: TimeLimit(env, 5), *wrappers)
    found = carried_state(lambda: make_env(ID))
    evaluate(ID, lambda seen, first: np.zeros((len(seen), 1), np.float32), episodes=1, seed=0)
    assert found is not None
    assert f"Environment {ID}: {found}." in caplog.text
    assert re.search(said, found)


@pytest.mark.parametrize("base", [Line, OwnSeed])
@pytest.mark.parametrize(
    "wrapper",
    [
        lambda env: env,
        RecordEpisodeStatistics,
        TimeAwareObservation,
        lambda env: FrameStackObservation(env, 3),
        noisy,
        frozen,
    ],
)
def test_nothing_is_said_of_what_begins_anew_or_is_random(wrapper: Any, base: Any) -> None:
    registered(lambda env: TimeLimit(env, 5), wrapper, base=base)
    assert carried_state(lambda: make_env(ID)) is None
