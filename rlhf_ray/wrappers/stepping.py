"""Stepping: environments stepped with the reward of a session, and recorded; a single environment is a vector of one."""

from __future__ import annotations

import copy
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import concatenate, create_empty_array

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.envs.observations import UnfitError, as_array, converted, copied, plain, plain_ends, short
from rlhf_ray.wrappers.arguments import Transform, Wait
from rlhf_ray.wrappers.recorder import Recorder
from rlhf_ray.wrappers.session import WINDOW, RewardSession

FIRST_WINDOW_CLIPS = 4
"""Length of the windows for people's first clips, in clip lengths: such a window contains two completely rendered clips."""


class LatestStep(NamedTuple):
    """What the reward model got of a step, and the rewards that were returned, ``[n]``."""

    before: Array
    actions: Array
    after: Array
    rewards: FloatArray


class Stepping:
    """Steps environments with the session's reward. Arrays have a row for each environment.

    A vector environment is the general case; a single one replaces some methods.
    """

    env: Any
    latest_step: LatestStep | None = None
    _wait: Wait
    _since = 0
    """Steps per environment since the last message to the ring."""

    def _join(
        self, env: Any, session: RewardSession, recorder: Recorder, transform: Transform | None, wait: Wait
    ) -> None:
        """Wrap ``env``, which shares ``session`` from now on."""
        super().__init__(env)  # type: ignore[call-arg] # gymnasium's wrapper
        self._session, self._recorder, self._transform, self._wait = session, recorder, transform, wait
        self._space, actions = session.spaces
        self._action_dtype: Any = np.int64 if choices_of(actions) else np.float32
        self._source = session.users
        session.users += 1
        self._open, self._true, self._paused, self._exploring = True, False, False, False
        self._window = max(4 * session.fragments.length, WINDOW // recorder.copies)
        self._started = np.zeros(recorder.copies)
        self.true_returns: deque[float] = deque(maxlen=100)
        """True returns of the latest episodes, at most 100."""

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        which = self._restarted(arguments.get("options") or {})  # before gymnasium takes the mask out
        observations, infos = self.env.reset(**arguments)
        self._last = self._see(observations)
        self._recorder.begin(which)
        self._started[which] = time.perf_counter()
        self._begin_films()
        return copied(observations), infos

    def _step(self, action: Any) -> tuple[Any, FloatArray, Any, Any, dict[str, Any], dict[str, Any]]:
        """Step the environment with a copy of ``action``.

        Returns:
            What the environment's own `step` returns, with the rewards to return ``[n]`` in place of its own; and what this adds to
            the infos, in gymnasium's convention for vector environments.
        """
        taken = self._rows(np.array(action, self._action_dtype))
        result = self.env.step(copy.deepcopy(action))  # some change or reuse arrays
        observations, infos = copied(result[0]), result[4]
        before, self._last = self._last, self._see(observations)
        true, terminated, truncated = self._outcome(*result[1:4])
        after = self._after(infos, terminated | truncated)
        learned = self._learned(before, taken, after, terminated)
        real, episodes = self._recorder.add(
            before, taken, true, terminated, truncated, after, self._records, self._filmed()
        )
        news: dict[str, Any] = {} if episodes is None else self._note_episodes(*episodes)
        if "episode" in infos:  # the environment's own stays
            news = {}
        if not self._paused:
            self._count(int(real.sum()))
        rewards, is_learned = self._rewards(learned, true, after, real)
        self.latest_step = LatestStep(before, taken, after, rewards)
        news |= {
            "true_reward": true,
            "_true_reward": real,
            "reward_is_learned": is_learned,
            "_reward_is_learned": np.ones(len(true), bool),
        }
        return observations, rewards, result[2], result[3], infos, news

    def _outcome(self, rewards: Any, terminated: Any, truncated: Any) -> tuple[FloatArray, BoolArray, BoolArray]:
        """The true rewards and ends of a step, ``[n]`` each.

        Raises:
            FaultyEnvironmentError: a reward is no number, or an end neither True nor False.
        """
        copies = self._recorder.copies
        try:
            ends = plain_ends(terminated, "terminated", copies), plain_ends(truncated, "truncated", copies)
        except UnfitError as error:
            raise FaultyEnvironmentError(
                f"Environment {self.env}: step() returned {error}. Fix the environment."
            ) from None
        try:
            given = np.array(plain(rewards))
            if given.dtype.kind in "US":  # which numpy would read
                raise TypeError(rewards)
            return given.astype(np.float64).reshape(copies), *ends
        except (TypeError, ValueError, OverflowError):
            raise FaultyEnvironmentError(
                f"Environment {self.env}: the reward is {short(rewards)}, which is not a number. Fix the environment."
            ) from None

    def _learned(self, before: Array, actions: Array, after: Array, terminated: BoolArray) -> FloatArray | None:
        """The learned reward of a step; None if it isn't used or there is none yet."""
        self._session.check_open()
        learned = None if self._true else self._session.rewards(before, actions, after, terminated)
        if not self._records and len(self._recorder):
            self._recorder.forget()  # steps before a pause and after it must not join
        return learned

    def _rewards(
        self, learned: FloatArray | None, true: FloatArray, after: Array, real: BoolArray
    ) -> tuple[FloatArray, BoolArray]:
        """The rewards to return, ``[n]``, and a mask of the learned ones."""
        if learned is not None:
            return np.where(real, learned, 0.0), real
        if not (self._true or self._paused or self._exploring):
            self._session.note_unlearned(int(real.sum()))
        rewards = true.copy() if self._true else self._session.early_rewards(after, real)
        return rewards, np.zeros(len(true), bool)

    def _note_episodes(self, ended: BoolArray, returns: FloatArray, lengths: IntArray) -> dict[str, Any]:
        """Keep the true returns of ended episodes; returns their infos."""
        self.true_returns.extend(returns[ended].tolist())
        seconds = np.where(ended, np.round(time.perf_counter() - self._started, 6), 0.0)
        self._started[ended] = time.perf_counter()
        return {"episode": {"r": returns, "l": lengths, "t": seconds}, "_episode": ended}

    def _count(self, steps: int) -> None:
        before, total = self._session.env_steps, self._session.total_env_steps
        self._session.count(steps)
        self._since += 1
        if self._since >= self._window_now or before < total <= self._session.env_steps:
            self._since = 0
            self._session.send(self._recorder, self._source, wait=self._exploring)

    @property
    def _records(self) -> bool:
        """Whether to record steps for clips."""
        return not self._paused and self._session.records

    @property
    def _window_now(self) -> int:
        """Steps per environment between messages to the ring; fewer while people wait for the first clips."""
        first = FIRST_WINDOW_CLIPS * (self._session.fragments.length + 1)
        return min(self._window, first) if self._session.people_wait else self._window

    def _play(self, choose: Callable[[Any], Any], env_steps: int, seed: int) -> None:
        """Reset with ``seed``, and take ``env_steps`` steps with the actions that ``choose`` gives for the observations."""
        observations, _ = self._reset(seed=seed)
        taken = 0
        while taken < env_steps:
            if self._recorder.autoreset is AutoresetMode.DISABLED and self._recorder.over.any():
                observations, _ = self._reset(options=self._restart(self._recorder.over.copy()))
            observations, *_, news = self._step(choose(observations))
            taken += int(news["_true_reward"].sum())

    def _see(self, observations: Any) -> Array:
        """The reward model's observations; a copy, because some environments reuse their arrays.

        Raises:
            FaultyEnvironmentError: it is no array, or the space's dtype can't hold a value, such as 0.5 in an image of uint8.
        """
        seen = observations if self._transform is None else self._transform(observations)
        wrong = f"Environment {self.env}: it returned"
        try:
            array = as_array(seen)
        except UnfitError as error:
            raise FaultyEnvironmentError(f"{wrong} {error}. Convert it with observation_transform.") from None
        try:
            return self._rows(converted(array, np.dtype(self._space.dtype)))
        except UnfitError as error:
            raise FaultyEnvironmentError(
                f"{wrong} an observation {error}, the dtype of its observation space. Correct the space, or convert observations "
                "with observation_transform."
            ) from None

    # A single environment replaces the following.

    def _recorder_for(self, env: Any) -> Recorder:
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise SettingError(
                f"metadata['autoreset_mode'] of {env} is {mode!r}; set it to the gymnasium.vector.AutoresetMode that the "
                "environment uses."
            )
        return Recorder(env.num_envs, mode)

    def _spaces(self, env: Any) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Observation and action space of one environment."""
        if env.action_space == env.single_action_space:
            raise SettingError(
                f"The action_space of {env} is that of one environment, unlike in gymnasium's vector environments. Make one of "
                f'EnvPool\'s by rlhf_ray.envs.make_vector_env("envpool/ID", {env.num_envs}).'
            )
        return env.single_observation_space, env.single_action_space

    def _transformed(self, env: Any, transform: Transform) -> Array:
        """One observation after the user's transform."""
        seen: Array = np.asarray(transform(env.observation_space.sample()))[0]
        return seen

    def _check_shown(self, env: Any, viewer: str) -> None:
        """Check that something of ``env``, whose observations are no images, can be shown, as the setting ``viewer`` asks for."""
        raise SettingError(
            f"{viewer}, but a vector environment can only show image observations: use HumanPreferencesEnv, and its share() for "
            "more environments."
        )

    def _after(self, infos: dict[str, Any], ended: BoolArray) -> Array:
        """The reward model's observations after the step, before any reset."""
        if self._recorder.autoreset is not AutoresetMode.SAME_STEP or not ended.any():
            return self._last
        final = self._last.copy()
        space = self.env.single_observation_space
        for i in np.flatnonzero(ended):
            batch = concatenate(space, [infos["final_obs"][i]], create_empty_array(space, 1))
            final[i] = self._see(batch)[0]
        return final

    def _restarted(self, options: dict[str, Any]) -> BoolArray:
        """The environments that a reset with ``options`` restarts."""
        mask = options.get("reset_mask")
        return np.ones(self._recorder.copies, bool) if mask is None else np.array(mask, bool)

    def _restart(self, which: BoolArray) -> dict[str, Any] | None:
        """The options of a reset that restarts the environments in the mask ``which``."""
        return {"reset_mask": which}

    def _mix(self, random: BoolArray, drawn: Any, chosen: Any) -> Any:
        """The action of `step`: that of ``drawn`` for environments in the mask ``random``, else of ``chosen``."""
        chosen = np.asarray(chosen)
        return np.where(random.reshape(-1, *[1] * (chosen.ndim - 1)), drawn, chosen)

    def _rows(self, values: Array) -> Array:
        """The environment's ``values`` with a leading dimension over environments."""
        return values

    def _see_all(self, observations: Any) -> Array:
        """The reward model's view of ``n`` observations, ``[n, …]``."""
        return self._see(observations)

    def _begin_films(self) -> None:
        """Prepare to render a new episode."""

    def _filmed(self) -> tuple[Array | None, Array | None]:
        """The images for people before and after the step."""
        return None, None
