"""HumanPreferencesEnv: an environment with a reward learned from preferences, for any reinforcement-learning library."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.seeds import generator
from rlhf_ray.labelling.films import Camera
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.wrappers.recorder import Recorder
from rlhf_ray.wrappers.taught import Taught, Transform, seen_space, transform_for
from rlhf_ray.wrappers.teaching import Teaching, Wait, check_wait


class HumanPreferencesEnv(Taught, gym.Wrapper[Any, Any, Any, Any]):
    """Replaces the reward of ``env`` with one learned from comparisons, while your agent trains in it.

    Cuts fragments from the agent's rollouts, asks a teacher which of two is better (by default a scripted teacher that knows the
    true reward), and fits a reward model to the answers. All of this runs in Ray actors in parallel to training, which never
    waits for it (except with ``wait``). With Stable-Baselines3::

        import gymnasium as gym
        from stable_baselines3 import PPO
        from stable_baselines3.common.vec_env import DummyVecEnv
        from rlhf_ray.settings import FragmentSettings, PreferenceSettings
        from rlhf_ray.wrappers import HumanPreferencesEnv

        env = HumanPreferencesEnv(
            gym.make("Pendulum-v1"),
            total_env_steps=100_000,
            fragments=FragmentSettings(length=10),
            preferences=PreferenceSettings(comparisons=200, initial_comparisons=50),
            wait=True,
        )
        with env:
            agent = PPO("MlpPolicy", DummyVecEnv([lambda: env]))
            agent.learn(98_000)  # the first 2,000 steps are random: fragments.initial_env_steps
            env.save("taught")

    Several environments, here four, share the actors, the reward and the budget: ``DummyVecEnv([lambda: env] + [lambda:
    env.share(gym.make("Pendulum-v1")) for _ in range(3)])``. They must be in one process: `SubprocVecEnv` raises an error that
    says so. For environments in processes of their own, and all of `gymnasium.vector`, use `HumanPreferencesVectorEnv`.

    **Rewards and infos.** `step` returns the newest version of the learned reward, normalised to mean 0 and standard deviation 1
    over the compared fragments, and 0.0 before the first version. ``info["true_reward"]`` is always the environment's own reward;
    ``info["reward_is_learned"]`` is True if the returned reward is learned. At the end of an episode, ``info["episode"]`` has
    its true return ``r``, length ``l`` and duration ``t`` in seconds, like `gymnasium.wrappers.RecordEpisodeStatistics` (an
    existing entry of the wrapped environment is kept). ``env.true_returns`` has the last 100. A Monitor *around* this wrapper
    overwrites ``info["episode"]`` with learned returns, and Stable-Baselines3 adds one if it gets the environment itself: pass a
    ``DummyVecEnv`` as above, or put your own Monitor inside.

    **Off-policy agents** (SAC, DQN …) store rewards in a replay buffer, where they become stale: 0.0 from before the first
    version, or rewards of older versions. Therefore create the environment with ``wait=True``, and relabel the buffer when
    ``status()["reward_version"]`` changes: with Stable-Baselines3, call ``rlhf_ray.wrappers.relabel_replay_buffer(agent, env)``
    (examples/sb3_sac.py); otherwise use `relabel`. ``status()["unlearned_steps"]`` counts the steps with reward 0.0.

    **Failures.** A failed actor restarts without losing data. `step` raises errors that can't be repaired, and settings that
    turn out not to match the environment.

    **Other uses.** Only collect preferences: ``fit=False, folder="labels"``. Only fit to existing ones: ``ask=False,
    folder="labels"`` (or `load`), then `wait_for_reward`. Use a fixed reward: ``reward_model="taught"``, which needs no Ray.
    Evaluate: `use_true_reward` with `pause`, or a plain environment.

    Args:
        env: the environment. All episodes must have the same length (but see `PreferenceSettings.allow_variable_horizon`).
            Observations: vectors, images, stacks and Dicts of them as in `rlhf_ray.envs.view_of`; others need
            ``observation_transform``. Actions: Discrete, MultiDiscrete or Box.
        total_env_steps: steps the agent will take, over all environments that share the reward. Labels and fits are spread over
            them. Further steps use the last learned reward.
        fragments: settings of the fragments. ``initial_env_steps`` is the number of steps before the first question;
            ``exploration_env_steps`` must be 0: see `explore`.
        preferences: how many comparisons to ask for, when, and who answers. ``mode`` is ignored: ``wait`` says what waits.
        reward_model: settings of the reward model; or a folder with a saved reward model or written by `save`. With a folder, that
            reward stays fixed, nothing is asked or fitted, and all other settings are ignored.
        folder: stores the preferences in ``FOLDER/preferences``, each durably once it is given. Preferences already there count
            and are used in fits; their pairs are not asked about again. None: a temporary folder, deleted by `close`; `save` keeps
            a copy.
        observation_transform: maps an observation to the part that the teacher and the reward model get, such as ``lambda
            observation: observation["pov"]``. The agent gets the full observation.
        ask: whether to ask for comparisons.
        fit: whether to fit the reward model.
        wait: whether the first ``reset`` takes ``fragments.initial_env_steps`` random actions for the first fragments and waits
            for the first version of the reward, so that the agent only sees learned rewards. Otherwise the agent's own first
            steps provide the fragments. "always": moreover, each step whose labels are due waits until they are answered and the
            reward model is fitted to them. With a scripted teacher, runs with the same seed and the same actions then have the
            same labels and rewards.
        labelling: with ``preferences.teacher="human"``, the settings of the labelling page; `links` has its links. The page shows
            image observations as they are. Other environments are rendered for parts of the agent's episodes, so create ``env``
            with ``render_mode="rgb_array"``.
        seed: random seed for random actions, the choice of comparisons, and the reward networks. Runs with the same seed still
            differ, because labels arrive at different times, except with ``wait="always"``.

    Raises:
        SettingError: a setting does not match the others or the environment.
    """

    def __init__(
        self,
        env: gym.Env[Any, Any],
        *,
        total_env_steps: int,
        fragments: FragmentSettings | None = None,
        preferences: PreferenceSettings | None = None,
        reward_model: RewardModelSettings | Path | str | None = None,
        folder: Path | str | None = None,
        observation_transform: Transform | None = None,
        ask: bool = True,
        fit: bool = True,
        wait: Wait = False,
        labelling: LabellingSettings | None = None,
        seed: int = 0,
    ):
        if preferences is not None and preferences.asks_people and ask:
            _check_shown(env, observation_transform)
        check_wait(preferences, wait)
        teaching = Teaching(
            _space(env, observation_transform),
            env.action_space,
            total_env_steps=total_env_steps,
            fragments=fragments,
            preferences=preferences,
            reward_model=reward_model,
            folder=folder,
            ask=ask,
            fit=fit,
            seed=seed,
            labelling=labelling,
            waits=wait == "always",
            title=env.spec.id if env.spec else str(env),
            fps=float(env.metadata.get("render_fps") or 15),
        )
        self._attach(env, teaching, transform_for(env.observation_space, observation_transform), wait)

    def share(self, env: gym.Env[Any, Any]) -> HumanPreferencesEnv:
        """Wrap ``env``, another environment of the same kind, with the same reward and actors.

        The actors stop when all environments are closed.

        Raises:
            ValueError: its observation or action space differs.
        """
        self._teaching.check_open()
        if (env.observation_space, env.action_space) != (self.env.observation_space, self.env.action_space):
            raise ValueError(
                f"{env} has different spaces from {self.env}; only environments of the same kind can share a reward."
            )
        other = HumanPreferencesEnv.__new__(HumanPreferencesEnv)
        other._attach(env, self._teaching, self._transform, self._wait)
        return other

    def _attach(self, env: gym.Env[Any, Any], teaching: Teaching, transform: Transform | None, wait: Wait) -> None:
        gym.Wrapper.__init__(self, env)
        self._join(teaching, Recorder(1), transform, wait)
        self._drawing = generator(teaching.seed, "films", self._source)
        self._first_drawn = 0
        self._frame: Array | None = None

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        self._last = self._see(observation)
        self._recorder.begin()
        self._first_drawn = int(self._drawing.integers(self._drawn_every - self._teaching.fragments.length))
        self._frame = self._draw()
        self._started = time.perf_counter()
        return copy.deepcopy(observation), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; returns the learned reward (see the class).

        Raises:
            Exception: an actor failed permanently.
        """
        given = np.array(action, self._action_dtype)[None]
        observation, true, terminated, truncated, info = self.env.step(
            copy.deepcopy(action)
        )  # some change or reuse arrays
        observation = copy.deepcopy(observation)
        before, self._last = self._last, self._see(observation)
        true = float(true)
        frame, self._frame = self._frame, self._draw(1)
        rewards, learned, _, episodes = self._take(
            before,
            given,
            np.array([true]),
            np.array([terminated]),
            np.array([truncated]),
            self._last,
            (frame, self._frame),
        )
        info = info | {"true_reward": true, "reward_is_learned": bool(learned[0])}
        if episodes is not None:
            _, returns, lengths = episodes
            seconds = round(time.perf_counter() - self._started, 6)
            info.setdefault("episode", {"r": float(returns[0]), "l": int(lengths[0]), "t": seconds})
        return observation, float(rewards[0]), terminated, truncated, info

    def _see_all(self, observations: Any) -> Array:
        if self._transform is None:
            return self._array(observations)
        nested = isinstance(observations, dict)
        count = len(next(iter(observations.values()))) if nested else len(observations)
        one = [{name: of[i] for name, of in observations.items()} if nested else observations[i] for i in range(count)]
        return np.stack([self._see(observation)[0] for observation in one])

    @property
    def _drawn_every(self) -> int:
        """Steps from the start of one rendered fragment to the start of the next; rendering is slower than most steps."""
        first = self._teaching.gathering or self._teaching.people_wait
        return (2 if first else 8) * (self._teaching.fragments.length + 1)

    def _draw(self, taken: int = 0) -> Array | None:
        """Render the environment if this step is part of a rendered fragment; ``taken`` steps are not recorded yet."""
        if not self._teaching.films or not self._records:
            return None
        t = int(self._recorder.lengths[0]) + taken - self._first_drawn
        if t < 0 or t % self._drawn_every > self._teaching.fragments.length:
            return None
        return np.array(self.env.render())

    def _see(self, observation: Any) -> Array:
        """The reward model's observation, ``[1, …]``; a copy, because some environments reuse their arrays."""
        seen = observation if self._transform is None else self._transform(observation)
        return self._array(seen)[None]

    def _play(self, choose: Callable[[Any], Any], env_steps: int, seed: int) -> None:
        observation, _ = self._reset(seed=seed)
        for _ in range(env_steps):
            if self._recorder.over[0]:
                observation, _ = self._reset()
            observation, *_ = self.step(choose(observation))

    def _mix(self, random: BoolArray, drawn: Any, chosen: Any) -> Any:
        return drawn if random[0] else chosen


def _space(env: gym.Env[Any, Any], transform: Transform | None) -> gym.spaces.Box:
    seen = None if transform is None else np.asarray(transform(env.observation_space.sample()))
    return seen_space(env.observation_space, seen, env.action_space, env.spec.id if env.spec else str(env))


def _check_shown(env: gym.Env[Any, Any], transform: Transform | None) -> None:
    """Check that the environment can be shown to people."""
    if is_image(_space(env, transform)):
        return
    try:
        Camera(env)
    except ValueError as error:
        raise SettingError(f"preferences.teacher is 'human', and {error}") from error
