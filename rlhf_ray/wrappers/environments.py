"""Environments with a reward learned from preferences, for any reinforcement-learning library: single ones and vectors."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import VectorWrapper

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.seeds import generator
from rlhf_ray.labelling.camera import Camera
from rlhf_ray.wrappers.recorder import Recorder
from rlhf_ray.wrappers.session import RewardSession, Transform, Wait
from rlhf_ray.wrappers.wrapper import PreferenceWrapper


class HumanPreferencesEnv(PreferenceWrapper, gym.Wrapper[Any, Any, Any, Any]):
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
            ``exploration_env_steps`` must be 0.
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

    together = False

    def share(self, env: gym.Env[Any, Any]) -> HumanPreferencesEnv:
        """Wrap ``env``, another environment of the same kind, with the same reward and actors.

        The actors stop when all environments are closed.

        Raises:
            ValueError: its observation or action space differs.
        """
        self._session.check_open()
        if (env.observation_space, env.action_space) != (self.env.observation_space, self.env.action_space):
            raise ValueError(
                f"{env} has different spaces from {self.env}; only environments of the same kind can share a reward."
            )
        other = HumanPreferencesEnv.__new__(HumanPreferencesEnv)
        other._join(env, self._session, Recorder(1), self._transform, self._wait)
        return other

    def _join(
        self, env: Any, session: RewardSession, recorder: Recorder, transform: Transform | None, wait: Wait
    ) -> None:
        super()._join(env, session, recorder, transform, wait)
        self._drawing = generator(session.seed, "films", self._source)
        self._first_drawn = 0
        self._frame: Array | None = None
        self._camera: Camera | None = None

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Step the environment; returns the learned reward (see the class).

        Raises:
            Exception: an actor failed permanently.
        """
        observation, rewards, terminated, truncated, info, news = self._step(action)
        return observation, float(rewards[0]), bool(terminated), bool(truncated), info | _of_one(news)

    def compute_reward(self, *arguments: Any) -> Any:
        """Compute the environment's own reward of other goals (called by Stable-Baselines3's `HerReplayBuffer`).

        Raises:
            SettingError: the learned reward is in use, which nobody can compute of goals alone.
        """
        if not self._true:
            raise SettingError(
                f"Something asks {self.env} for the reward of other goals (compute_reward), as HerReplayBuffer does; that is the "
                "environment's own, not the learned one: use a DictReplayBuffer and relabel_replay_buffer(agent, env)."
            )
        return self.env.get_wrapper_attr("compute_reward")(*arguments)

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        begun = super()._reset(**arguments)
        if self._session.films:
            if self._camera is None:
                self._camera = Camera(self.env, pixelated=False)
                self._camera.frame()  # an odd picture is named at the first reset
            self._camera.begin()
        self._first_drawn = int(self._drawing.integers(self._drawn_every - self._session.fragments.length))
        self._frame = self._draw()
        return begun

    def _filmed(self) -> tuple[Array | None, Array | None]:
        before, self._frame = self._frame, self._draw(1)
        return before, self._frame

    @property
    def _drawn_every(self) -> int:
        """Steps from the start of one rendered fragment to the start of the next; rendering is slower than most steps."""
        first = self._session.gathering or self._session.people_wait
        return (2 if first else 8) * (self._session.fragments.length + 1)

    def _draw(self, taken: int = 0) -> Array | None:
        """Render the environment if this step is part of a rendered fragment; ``taken`` steps are not recorded yet."""
        if self._camera is None or not self._session.films or not self._records:
            return None
        t = int(self._recorder.lengths[0]) + taken - self._first_drawn
        if t < 0 or t % self._drawn_every > self._session.fragments.length:
            return None
        return self._camera.frame()


def _of_one(infos: dict[str, Any]) -> dict[str, Any]:
    """The infos of the only environment in a vector's, without the masks."""
    return {
        name: _of_one(values) if isinstance(values, dict) else values[0].item()
        for name, values in infos.items()
        if not name.startswith("_")
    }


class HumanPreferencesVectorEnv(PreferenceWrapper, VectorWrapper):
    """Replaces the rewards of a `gymnasium.vector` environment with learned ones.

    Arguments, methods and behaviour are those of `HumanPreferencesEnv`, with these differences::

        envs = HumanPreferencesVectorEnv(gym.make_vec("Pendulum-v1", num_envs=8), total_env_steps=100_000, wait=True)

    - ``observation_transform`` gets the environment's batch of observations: the same ``lambda observation:
      observation["pov"]`` selects the batch of images.
    - ``infos["true_reward"]`` and ``infos["reward_is_learned"]`` are arrays ``[num_envs]`` with the masks
      ``infos["_true_reward"]`` and ``infos["_reward_is_learned"]``. When episodes end, ``infos["episode"]`` has the arrays
      ``r`` (true returns), ``l`` and ``t``, and ``infos["_episode"]`` is the mask of ended episodes, like
      `gymnasium.wrappers.vector.RecordEpisodeStatistics`.
    - All autoreset modes work: `AutoresetMode.NEXT_STEP` (the step that resets has reward 0.0, does not count, and its mask is
      False), ``SAME_STEP`` (the last observations must be in ``infos["final_obs"]``, as in gymnasium's environments) and
      ``DISABLED``. Fragments never cross the end of an episode.

    Args:
        env: the vector environment, with ``metadata["autoreset_mode"]``.
        total_env_steps: environment steps, summed over all ``num_envs`` environments.
        fragments, preferences, reward_model, folder, observation_transform, ask, fit, wait, seed: see `HumanPreferencesEnv`.
        labelling: see `HumanPreferencesEnv`; people see observations that are images.

    Raises:
        SettingError: a setting does not match the others or the environment.
    """

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments; returns the learned rewards (see the class).

        Raises:
            Exception: an actor failed permanently.
        """
        observations, rewards, terminated, truncated, infos, news = self._step(actions)
        return observations, rewards, np.asarray(terminated), np.asarray(truncated), infos | news
