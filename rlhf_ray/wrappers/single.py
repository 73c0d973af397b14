"""HumanPreferencesEnv: one environment whose reward is learned from preferences, for whatever library trains the agent."""

from __future__ import annotations

import copy
import time
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.labelling.films import Camera
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.wrappers.recorder import Recorder
from rlhf_ray.wrappers.taught import Taught, Transform, seen_space
from rlhf_ray.wrappers.teaching import Teaching


class HumanPreferencesEnv(Taught, gym.Wrapper[Any, Any, Any, Any]):
    """Replaces the reward of ``env`` by one that is learned from comparisons of clips, while your agent trains in it.

    Clips are cut from what the agent does; a teacher (a scripted one that knows the true reward, unless the settings say
    otherwise) is asked which of two is better; a reward model is fitted to the answers. All of that happens in Ray actors
    beside the training, which never waits for it (but see ``wait``). With Stable-Baselines3::

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
            agent.learn(98_000)  # the first 2,000 steps are random ones: fragments.initial_env_steps
            env.save("taught")

    Four environments: ``DummyVecEnv([lambda: env] + [lambda: env.share(gym.make("Pendulum-v1")) for _ in range(3)])``; they
    share the ring, the reward and the budget. They have to be in one process: `SubprocVecEnv` and the like cannot hold them. (For
    `gymnasium.vector` environments there is `HumanPreferencesVectorEnv`.)

    **What step returns.** The learned reward of the newest version, whose mean is 0 and standard deviation 1 over the compared
    clips. Before the first version 0.0. ``info["true_reward"]`` is always the environment's own reward,
    ``info["reward_is_learned"]`` says whether the reward returned is learned, and at the end of an episode ``info["episode"]``
    has its true return ``r``, length ``l`` and seconds ``t``, as of `gymnasium.wrappers.RecordEpisodeStatistics` (where the
    wrapped environment has written that itself, it is left as it is). ``env.true_returns`` holds the last 100. A Monitor
    *around* this wrapper would overwrite ``info["episode"]`` with learned returns, and Stable-Baselines3 puts one there if
    handed the environment itself: hand it a ``DummyVecEnv`` as above, or put your own Monitor inside.

    **Off-policy agents** (SAC, DQN …) keep rewards in a replay buffer, where each stays what it was: 0.0 from before the first
    version, an older version's from before a newer one. So make the environment with ``wait=True``, and relabel the buffer when
    ``status()["reward_version"]`` has changed: with Stable-Baselines3 by ``rlhf_ray.wrappers.relabel_replay_buffer(agent, env)``
    (examples/sb3_sac.py), elsewhere by `relabel`. ``status()["unlearned_steps"]`` counts the steps that were rewarded 0.0.

    **When something goes wrong** in an actor it is restarted, and nothing is lost; what cannot be repaired, or a setting
    that turns out not to fit the environment, is raised in ``step``.

    **Other uses.** Only collect preferences: ``fit=False, folder="labels"``. Only fit to those there are:
    ``ask=False, folder="labels"`` (or `load`), then `wait_for_reward`. A reward that stays as it is: ``reward_model="taught"``,
    which needs no Ray. Evaluation: `use_true_reward` with `pause`, or a plain environment.

    Args:
        env: the environment. Its episodes must all have one length (or see `PreferenceSettings.allow_variable_horizon`).
            Observations: vectors, or uint8 images (height, width, channels); anything else with ``observation_transform``.
            Actions: Discrete or Box.
        total_env_steps: steps the agent is going to take, over all environments that share the ring. Labels and fits are spread
            over them. Steps beyond are rewarded by what was learned till then.
        fragments: how clips are cut. ``initial_env_steps`` are the steps before the first question; ``exploration_env_steps``
            must be 0.
        preferences: how many comparisons are asked for, when, and who answers. ``mode`` is not looked at: it is asynchronous.
        reward_model: the settings of the reward networks; or a folder, with a saved reward model or written by `save`: then that
            is the reward, nothing is asked or fitted, and no other setting counts.
        folder: keeps the preferences in ``FOLDER/preferences``, each on the disk as soon as it is given; those it holds already
            count and are fitted to. None: a temporary folder, gone with `close`; `save` keeps a copy.
        observation_transform: what of an observation the teacher and the reward model get: ``lambda observation:
            observation["pov"]``. The agent gets the whole.
        ask: whether to ask.
        fit: whether to fit.
        wait: whether the first ``reset`` takes ``fragments.initial_env_steps`` random actions, to make the first clips, and
            waits for the first version of the reward, so that the agent learns from nothing else. Otherwise its own first steps
            make them.
        labelling: with ``preferences.teacher="human"``: the settings of the page where people compare clips; `links` says where it
            is. They are shown observations that are images as they are; of other environments stretches are drawn as the agent
            acts, for which ``env`` has to be made with ``render_mode="rgb_array"``.
        seed: of random actions, of which clips are asked about, and of the reward networks. When a label arrives depends on
            time all the same, so that two runs differ.

    Raises:
        SettingError: a setting does not fit the others, or the environment.
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
        wait: bool = False,
        labelling: LabellingSettings | None = None,
        seed: int = 0,
    ):
        if preferences is not None and preferences.asks_people and ask:
            _check_shown(env, observation_transform)
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
            title=env.spec.id if env.spec else str(env),
            fps=float(env.metadata.get("render_fps") or 15),
        )
        self._attach(env, teaching, observation_transform, wait)

    def share(self, env: gym.Env[Any, Any]) -> HumanPreferencesEnv:
        """``env``, another of the same kind, with the same reward, asked about in the same ring.

        The ring ends when all are closed.

        Raises:
            ValueError: its spaces are other ones.
        """
        self._teaching.check_open()
        if (env.observation_space, env.action_space) != (self.env.observation_space, self.env.action_space):
            raise ValueError(
                f"{env} has other spaces than {self.env}; only environments of one kind can share a reward."
            )
        other = HumanPreferencesEnv.__new__(HumanPreferencesEnv)
        other._attach(env, self._teaching, self._transform, self._wait)
        return other

    def _attach(self, env: gym.Env[Any, Any], teaching: Teaching, transform: Transform | None, wait: bool) -> None:
        gym.Wrapper.__init__(self, env)
        self._join(teaching, Recorder(1), transform, wait)
        self._drawing = np.random.default_rng([teaching.seed, 6, self._source])
        self._first_drawn = 0
        self._frame: Array | None = None

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        observation, info = self.env.reset(**arguments)
        self._last = self._see(observation)
        self._recorder.begin()
        self._first_drawn = int(self._drawing.integers(self._drawn_every - self._teaching.fragments.length))
        self._frame = self._draw()
        self._started = time.perf_counter()
        return observation, info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """As of the environment, but for the reward; see the class.

        Raises:
            Exception: whatever went wrong in the ring.
        """
        given = np.array(action, self._action_dtype)[None]  # before the step: some environments change it
        observation, true, terminated, truncated, info = self.env.step(action)
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
            return np.asarray(observations, self._space.dtype)
        nested = isinstance(observations, dict)
        count = len(next(iter(observations.values()))) if nested else len(observations)
        one = [{name: of[i] for name, of in observations.items()} if nested else observations[i] for i in range(count)]
        return np.stack([self._see(observation)[0] for observation in one])

    @property
    def _drawn_every(self) -> int:
        """Steps from the beginning of one stretch that is drawn to that of the next: drawing takes longer than most steps."""
        first = self._teaching.gathering or self._teaching.people_wait
        return (2 if first else 8) * (self._teaching.fragments.length + 1)

    def _draw(self, taken: int = 0) -> Array | None:
        """A picture of the environment, if now is a time that people may be shown; ``taken`` steps are not recorded yet."""
        if not self._teaching.films or self._paused:
            return None
        t = int(self._recorder.lengths[0]) + taken - self._first_drawn
        if t < 0 or t % self._drawn_every > self._teaching.fragments.length:
            return None
        return np.asarray(self.env.render())

    def _see(self, observation: Any) -> Array:
        """What the reward model sees, with an axis in front: a copy, since some environments reuse their arrays."""
        seen = observation if self._transform is None else self._transform(observation)
        return np.array(seen, self._space.dtype)[None]

    def _act_randomly(self, env_steps: int) -> None:
        actions = copy.deepcopy(self.env.action_space)  # the agent may draw from the environment's own
        actions.seed(self._teaching.seed)
        self._reset(seed=self._teaching.seed)
        for _ in range(env_steps):
            if self._recorder.over[0]:
                self._reset()
            self.step(actions.sample())


def _space(env: gym.Env[Any, Any], transform: Transform | None) -> gym.spaces.Box:
    seen = None if transform is None else np.asarray(transform(env.observation_space.sample()))
    return seen_space(env.observation_space, seen, env.action_space, env.spec.id if env.spec else str(env))


def _check_shown(env: gym.Env[Any, Any], transform: Transform | None) -> None:
    """Check that people can be shown the environment."""
    if is_image(_space(env, transform)):
        return
    try:
        Camera(env)
    except ValueError as error:
        raise SettingError(f"preferences.teacher is 'human', and {error}") from error
