"""Environments that change the action they are given, or hand out the same arrays again: what is kept stays as it was."""

from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rlhf_ray.data.rollout import rollout
from rlhf_ray.data.vector_rollout import VectorRollout
from rlhf_ray.envs import make_env, make_vector_env
from rlhf_ray.labelling.camera import Camera
from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.rllib.array_env_runner import ArrayEnvRunner
from rlhf_ray.rllib.env_runner import EnvRunner
from rlhf_ray.rllib.reference import ReferencePPOConfig
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
