"""Observations beside their spaces, and environments that change their action or hand out the same arrays again."""

import itertools
import logging
import pickle
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.data.rollout import rollout
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.envs import make_env, make_vector_env
from rlhf_ray.envs.checked import CheckedVectorEnv
from rlhf_ray.envs.observations import Say, UnfitError, fitting
from rlhf_ray.labelling.camera import Camera
from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.rllib.env_runner import ArrayEnvRunner, EnvRunner
from rlhf_ray.rllib.reference import ReferencePPOConfig
from tests.envs.worlds import Gives
from tests.rllib.test_ppo_learner import configured

ACTIONS: dict[str, gym.Space[Any]] = {
    "Box": spaces.Box(-1.0, 1.0, (3,), np.float32),
    "Table": spaces.Box(-1.0, 1.0, (3, 1), np.float32),
    "Unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "MultiDiscrete": spaces.MultiDiscrete([4, 4, 4]),
    "MultiBinary": spaces.MultiBinary(3),
}
"""Kinds of action spaces with three numbers each."""

SHOWN = {
    "Box": lambda box: box,
    "Dict": lambda box: spaces.Dict({"given": box}),
    "Tuple": lambda box: spaces.Tuple((box,)),
}
"""Kinds of observation spaces, with the actions in them."""


class Scribbles(gym.Env[Any, Any]):
    """Shows the number of the step and the action that it was given, always in the same array, and overwrites that action."""

    metadata: ClassVar = {"render_modes": ["rgb_array"], "render_fps": 15}

    def __init__(self, actions: str = "Box", shown: str = "Box", render_mode: str | None = None):
        self.action_space, self.shown, self.render_mode = ACTIONS[actions], shown, render_mode
        self.observation_space = SHOWN[shown](spaces.Box(-100.0, 100.0, (4,), np.float32))
        self.seen, self.frame = np.zeros(4, np.float32), np.zeros((64, 64, 3), np.uint8)
        self.observation = {"Box": self.seen, "Dict": {"given": self.seen}, "Tuple": (self.seen,)}[shown]

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.seen[:] = 0
        return self.observation, {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.seen[0] += 1
        self.seen[1:] = np.clip(np.ravel(action), -50, 50)
        action[...] = 0
        self.frame += 1
        return self.observation, 0.0, False, False, {}

    def render(self) -> Any:
        return self.frame


class ScribblesTogether(gym.vector.VectorEnv[Any, Any, Any]):
    """Copies of it that are stepped together."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(self, num_envs: int, actions: str = "Box", **_: Any):
        self.num_envs, self.single_action_space = num_envs, ACTIONS[actions]
        self.single_observation_space = spaces.Box(-100.0, 100.0, (4,), np.float32)
        self.action_space = gym.vector.utils.batch_space(self.single_action_space, num_envs)
        self.observation_space = gym.vector.utils.batch_space(self.single_observation_space, num_envs)
        self.seen, self.rewards = np.zeros((num_envs, 4), np.float32), np.zeros(num_envs)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        self.seen[:] = 0
        return self.seen, {}

    def step(self, actions: Any) -> Any:
        self.seen[:, 0] += 1
        self.seen[:, 1:] = np.clip(actions.reshape(len(actions), -1), -50, 50)
        actions[...] = 0
        no = np.zeros(self.num_envs, bool)
        return self.seen, self.rewards, no, no.copy(), {}


for kind in ACTIONS:
    for of in SHOWN:
        gym.register(f"Scribbles{kind}{of}-v0", Scribbles, kwargs={"actions": kind, "shown": of}, max_episode_steps=9)
    gym.register(
        f"Together{kind}-v0", Scribbles, ScribblesTogether, kwargs={"actions": kind}, max_episode_steps=9
    )  # fmt: skip


def check(observations: Any, actions: Any, steps: int) -> None:
    """Check that each observation is of its own step and shows the action before it."""
    np.testing.assert_array_equal(np.asarray(observations)[:, 0], np.arange(steps + 1))
    np.testing.assert_allclose(
        np.asarray(observations)[1:, 1:], np.clip(np.reshape(actions, (steps, 3)), -50, 50), rtol=1e-6, atol=1e-6
    )
    assert np.any(actions)


@pytest.mark.parametrize("shown", list(SHOWN))
@pytest.mark.parametrize("kind", list(ACTIONS))
def test_what_a_rollout_keeps(kind: str, shown: str) -> None:
    env = make_env(f"Scribbles{kind}{shown}-v0")
    env.action_space.seed(0)
    held = env.action_space.sample()
    rolled = rollout(env, lambda observation: held, seed=0)  # the same action again and again, as in first clips
    check(rolled.trajectory.observations, rolled.trajectory.actions, 9)
    raw: Any = Scribbles(kind) if shown == "Box" and kind not in ("Table", "MultiBinary") else None
    if raw is not None:  # an environment that nobody has checked
        check(
            *(getattr(rollout(raw, lambda seen: held, steps=4).trajectory, of) for of in ("observations", "actions")), 4
        )


@pytest.mark.parametrize("name", ["ScribblesBoxBox-v0", "fixed/ScribblesBoxBox-v0", "ScribblesMultiDiscreteDict-v0"])
def test_what_copies_hand_out(name: str) -> None:
    env = make_vector_env(name, 3)
    observations, actions = [env.reset(seed=0)[0]], []
    env.action_space.seed(0)
    for _ in range(4):
        given = env.action_space.sample()
        actions.append(given.copy())
        observations.append(env.step(given)[0])
        np.testing.assert_array_equal(given, actions[-1])
    for copy in range(3):
        check(np.stack(observations)[:, copy], np.stack(actions)[:, copy], 4)


@pytest.mark.parametrize("kind", [ArrayEnvRunner, EnvRunner])
@pytest.mark.parametrize("name", ["Scribbles{}Box-v0", "Together{}-v0"])
@pytest.mark.parametrize("actions", ["Box", "Unbounded", "MultiDiscrete"])
def test_what_env_runners_keep(kind: Any, name: str, actions: str) -> None:
    config = configured(ReferencePPOConfig, name.format(actions), num_envs=2)
    runner = kind(config=config, worker_index=0, num_workers=0)
    space = runner.env.single_action_space
    for episode in runner.sample(num_timesteps=12, explore=True):
        if isinstance(episode, VectorRollout):
            for each in episode.trajectories(to_env_actions(episode.actions, space)):
                check(each.observations, each.actions, len(each))
        else:
            check(episode.get_observations(), to_env_actions(episode.get_actions(), space), len(episode))


def test_frames_of_an_environment_that_draws_into_one_image() -> None:
    env = make_env("ScribblesBoxBox-v0", render_mode="rgb_array")
    for camera in (Camera(env), Camera(Scribbles(render_mode="rgb_array"))):
        observation, _ = camera.env.reset()
        frames = []
        for _ in range(3):
            observation, *_ = camera.env.step(camera.env.action_space.sample())
            frames.append(camera.frame(observation)[0, 0, 0])
        assert frames == [1, 2, 3]


VECTOR = spaces.Box(-1.0, np.array([1.0, np.inf], np.float32), (2,), np.float32)
COUNTS = spaces.Box(0, 10, (2,), np.int32)
IMAGE = spaces.Box(0, 255, (20, 20, 3), np.uint8)
INNER: list[tuple[gym.Space[Any], Any, Any, str]] = [
    # a space, what fits, what doesn't, what is said of that
    (VECTOR, np.array([0.5, 9.0], np.float32), np.zeros(3, np.float32), r"of shape \(3,\)"),
    (VECTOR, np.array([0.5, 9.0], np.float32), np.array([0, np.inf], np.float32), "that is inf at 1"),
    (
        VECTOR,
        np.array([0.5, 9.0], np.float32),
        np.array([0, 1e39]),
        r"of float64, and its value 1e\+39 is not a float32",
    ),
    (VECTOR, np.array([0.5, 9.0], np.float32), ["a", "b"], "not an array of numbers"),
    (COUNTS, np.array([0, 3], np.int32), np.array([0.5, 3.0]), "its value 0.5 is not a int32"),
    (COUNTS, np.array([0, 3], np.int32), np.array([0, 2**40]), "its value 1099511627776 is not a int32"),
    (IMAGE, np.full((20, 20, 3), 7, np.uint8), np.full((20, 20, 3), -1), "its value -1 is not a uint8"),
    (
        spaces.Discrete(3, start=2),
        np.int64(4),
        np.int64(1),
        r"with the value 1, which Discrete\(3, start=2\) does not have",
    ),
    (spaces.Discrete(3), np.int64(2), -1, "with the value -1"),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([2, 0]), "with the value 2"),
    (spaces.MultiDiscrete([2, 3]), np.array([1, 2]), np.array([1]), r"of shape \(1,\)"),
    (spaces.MultiBinary(3), np.array([1, 0, 1], np.int8), np.array([1, 0, 3], np.int8), "with the value 3"),
]
WAYS: list[tuple[str, Any, Any]] = [
    ("", lambda space: space, lambda value: value),
    ("['a']", lambda space: spaces.Dict({"a": space}), lambda value: {"a": value}),
    ("[1]", lambda space: spaces.Tuple((COUNTS, space)), lambda value: (np.zeros(2, np.int32), value)),
    (
        "['a'][0]",
        lambda space: spaces.Dict({"a": spaces.Tuple((space,)), "b": VECTOR}),
        lambda value: {"a": (value,), "b": np.zeros(2, np.float32)},
    ),
]

NUMBERS = itertools.count()


def said(caplog: pytest.LogCaptureFixture, space: gym.Space[Any], *observations: Any) -> tuple[list[Any], list[str]]:
    """What observations become, and what is logged."""
    caplog.clear()
    check = fitting(space, Say(f"Env{next(NUMBERS)}-v0"))
    with caplog.at_level(logging.WARNING):
        return [check(observation) for observation in observations], [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(("part", "around", "inside"), WAYS)
@pytest.mark.parametrize(("space", "right", "wrong", "why"), INNER)
def test_every_part_is_checked(part, around, inside, space, right, wrong, why, caplog):
    whole = around(space)
    (found,), lines = said(caplog, whole, inside(right))
    assert not lines
    assert whole.contains(found)
    with pytest.raises(UnfitError, match=why) as error:
        fitting(whole, Say("Wrong-v0"))(inside(wrong))
    assert not part or f"part {part}" in str(error.value)


@pytest.mark.parametrize(("part", "around", "inside"), WAYS)
def test_another_dtype_is_converted_and_said_once(part, around, inside, caplog):
    given = np.array([0.1, 2.0])
    found, lines = said(caplog, around(VECTOR), *[inside(given)] * 3)
    assert all(around(VECTOR).contains(each) for each in found)
    assert len(lines) == 1
    assert "float64, but their space says float32" in lines[0]
    assert part in lines[0]


@pytest.mark.parametrize(("part", "around", "inside"), WAYS)
@pytest.mark.parametrize(
    ("space", "value", "numbers"),
    [
        (VECTOR, np.array([-5.0, 0.0], np.float32), "is -5 at 0, outside the bounds of its space there, -1 to 1"),
        (VECTOR, np.array([0.0, -1.5], np.float32), "is -1.5 at 1, outside the bounds of its space there, -1 to inf"),
        (COUNTS, np.array([3, 11], np.int32), "is 11 at 1, outside the bounds of its space there, 0 to 10"),
    ],
)
def test_a_value_outside_its_bounds_is_said_once_with_its_numbers(part, around, inside, space, value, numbers, caplog):
    found, lines = said(caplog, around(space), *[inside(value)] * 3)
    assert len(lines) == 1
    assert numbers in lines[0]
    assert part in lines[0]
    assert len(found) == 3


def test_rounding_at_the_bounds_and_bounds_that_are_the_dtype_s_are_not_said(caplog: pytest.LogCaptureFixture) -> None:
    tight = spaces.Box(np.array([-0.4, 0.0], np.float32), np.array([0.4, np.inf], np.float32), dtype=np.float32)
    edge = np.array([np.nextafter(np.float32(0.4), np.float32(1)), -1e-9], np.float32)
    assert said(caplog, tight, edge)[1] == []
    assert said(caplog, IMAGE, np.full((20, 20, 3), 255, np.uint8))[1] == []
    assert "float64, but their space says int64. They are converted" in said(caplog, spaces.Discrete(3), 2.0)[1][0]


@pytest.mark.parametrize(("part", "around", "inside"), WAYS)
def test_a_number_of_float64_that_networks_can_t_read_is_refused(part: str, around: Any, inside: Any) -> None:
    check = fitting(around(gym.spaces.Box(-np.inf, np.inf, (2,), np.float64)), Say("Wide-v0"))
    check(inside(np.array([0.0, 3e38])))
    with pytest.raises(UnfitError, match=r"its value 1e\+39 is not a float32, which networks compute with"):
        check(inside(np.array([0.0, 1e39])))


def test_what_has_other_parts_is_refused() -> None:
    both = fitting(spaces.Dict({"a": VECTOR, "b": COUNTS}), Say("Parts-v0"))
    with pytest.raises(UnfitError, match="that has or lacks 'b'; its space has 'a', 'b'"):
        both({"a": np.zeros(2, np.float32)})
    with pytest.raises(UnfitError, match="that has or lacks 'c'"):
        both({"a": np.zeros(2, np.float32), "b": np.zeros(2, np.int32), "c": 0})
    with pytest.raises(UnfitError, match="no mapping"):
        both(np.zeros(4))
    with pytest.raises(UnfitError, match="no tuple of 2"):
        fitting(spaces.Tuple((VECTOR, COUNTS)), Say("Parts-v0"))((np.zeros(2),))
    assert pickle.loads(pickle.dumps(both))({"a": np.zeros(2), "b": np.zeros(2)})["a"].dtype == np.float32  # noqa: S301


def test_environments_of_a_name_are_checked_in_every_part() -> None:
    space = spaces.Dict({"x": VECTOR, "mode": spaces.Discrete(3)})
    odd: Any = lambda: Gives(space, lambda step: {"x": np.zeros(2, np.float32), "mode": 2 + step})  # noqa: E731
    gym.register("Odd-v0", odd, max_episode_steps=9)
    env = make_env("Odd-v0")
    assert env.reset(seed=0)[0].tolist() == [0.0, 0.0, 1.0] or len(env.reset(seed=0)[0]) == 5
    with pytest.raises(
        FaultyEnvironmentError, match=r"Odd-v0, step 1 of episode \d: .*part \['mode'\], with the value 3"
    ):
        env.step(0)


def test_a_vector_environment_is_checked_too(caplog: pytest.LogCaptureFixture) -> None:
    vectors = ScribblesTogether(2)
    env = CheckedVectorEnv(vectors, f"Together{next(NUMBERS)}-v0")
    env.reset(seed=0)
    vectors.seen[:, 0] = 500.0
    env.step(np.zeros((2, 3), np.float32))
    assert "is 501 at (0, 0), outside the bounds of its space there, -100 to 100" in caplog.text
    vectors.seen = vectors.seen.astype(np.float64)
    assert env.step(np.zeros((2, 3)))[0].dtype == np.float32
    vectors.seen[1, 2] = np.nan
    vectors.step = lambda actions: (vectors.seen, vectors.rewards, *[np.zeros(2, bool)] * 2, {})  # type: ignore[method-assign]
    with pytest.raises(FaultyEnvironmentError, match=r"nan at \(1, 2\), in a batch of 2 copies"):
        env.step(np.zeros((2, 3)))
    vectors.seen[:], vectors.rewards = 0, np.array([0.0, np.nan])
    with pytest.raises(FaultyEnvironmentError, match="rewards"):
        env.step(np.zeros((2, 3)))
