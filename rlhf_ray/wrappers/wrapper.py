"""PreferenceWrapper: what `HumanPreferencesEnv` and `HumanPreferencesVectorEnv` share, and what both offer.

It steps environments with the reward of a session, and records them. Arrays have a row for each environment; a single one is the
case of one.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.defaults import own_defaults
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.spaces import choices_of, seeded, without_formal
from rlhf_ray.envs.checked import CheckedEnv, CheckedVectorEnv
from rlhf_ray.envs.observations import UnfitError, as_array, converted
from rlhf_ray.envs.views import view_of
from rlhf_ray.labelling.camera import camera_for, fps_of
from rlhf_ray.queries.gatherers import who_sees_films
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.wrappers.learning import LearningSession
from rlhf_ray.wrappers.recorder import LatestStep, Recorder
from rlhf_ray.wrappers.session import (
    WINDOW,
    RewardSession,
    Transform,
    Wait,
    check_wait,
    seen_space,
)

FIRST_WINDOW_CLIPS = 4
"""Length of the windows for people's first clips, in clip lengths: such a window contains two completely rendered clips."""


class PreferenceWrapper:
    """What users call; the subclasses' docstrings document the arguments."""

    env: Any
    together = True
    """Whether ``env`` is a vector environment; what a single one takes and returns lacks the dimension over environments."""
    latest_step: LatestStep | None = None
    _wait: Wait
    _since = 0
    """Steps per environment since the last message to the ring."""

    @own_defaults()
    def __init__(
        self,
        env: gym.Env[Any, Any] | VectorEnv[Any, Any, Any],
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
        self._open = False  # until __init__ succeeds: gymnasium closes environments on deletion
        recorder = self._recorder_for(env)
        observation_space, action_space = self._spaces(env)
        seen = None
        if observation_transform is not None:
            of_space = np.asarray(observation_transform(env.observation_space.sample()))
            seen = of_space[0] if self.together else of_space
        title = _name(env)
        space = seen_space(observation_space, seen, action_space, title)
        viewer = who_sees_films(preferences) if preferences is not None and ask else None
        if viewer is not None and not is_image(space):
            self._check_shown(env, viewer)
        check_wait(preferences, wait)
        spaces = (space, action_space)
        session: RewardSession
        if isinstance(reward_model, Path | str):
            session = RewardSession(spaces, total_env_steps, seed, Path(reward_model))
        else:
            session = LearningSession(
                spaces,
                total_env_steps,
                seed,
                fragments=fragments,
                preferences=preferences,
                reward_model=reward_model,
                folder=folder,
                ask=ask,
                fit=fit,
                labelling=labelling,
                waits=wait == "always",
                title=title,
                fps=fps_of(env, title),
            )
        view = view_of(observation_space) if observation_transform is None else None
        self._join(env, session, recorder, observation_transform if view is None else view.see, wait)

    def _join(
        self, env: Any, session: RewardSession, recorder: Recorder, transform: Transform | None, wait: Wait
    ) -> None:
        """Wrap ``env``, which shares ``session`` from now on."""
        checked: Any = CheckedVectorEnv if self.together else CheckedEnv
        super().__init__(checked(env, _name(env)))  # type: ignore[call-arg] # gymnasium's wrapper
        self._session, self._recorder, self._transform, self._wait = session, recorder, transform, wait
        self._space, actions = session.spaces
        self._action_dtype: Any = np.int64 if choices_of(actions) else np.float32
        self._source = session.users
        session.users += 1
        self._open, self._true, self._paused = True, False, False
        self._window = max(4 * session.fragments.length, WINDOW // recorder.copies)
        self._started = np.zeros(recorder.copies)
        self.true_returns: deque[float] = deque(maxlen=100)
        """True returns of the latest episodes, at most 100."""

    def __getstate__(self) -> Any:
        """Refuse to be pickled, by `SubprocVecEnv` for example, unless the reward is fixed."""
        self._session.check_may_leave()
        return super().__getstate__()

    def use_true_reward(self) -> None:
        """Return the true reward from now on, for comparison or evaluation. Learning continues and steps count (see `pause`)."""
        self._true = True

    def use_learned_reward(self) -> None:
        """Return the learned reward again (the default)."""
        self._true = False

    def pause(self) -> None:
        """Stop counting steps towards ``total_env_steps`` and stop cutting fragments, to evaluate in this environment."""
        if not self._paused:
            self._recorder.forget()
        self._paused = True

    def resume(self) -> None:
        """End a `pause`."""
        self._paused = False

    def pause_collecting(self) -> None:
        """Stop cutting clips and asking questions, while training, its step count and fits to given answers go on.

        Applies to all environments that share the reward. Open questions stay open. Labels still fall due, and are asked for after
        `resume_collecting`; those of a pause that lasts to the end of the training are never asked for.
        """
        self._session.collect(False)

    def resume_collecting(self) -> None:
        """End a `pause_collecting`."""
        self._session.collect(True)

    def wait_for_reward(self) -> None:
        """Wait until there is a learned reward; see ``wait``.

        If the first fragments are missing, takes random actions to collect them; reset the environment afterwards.

        Raises:
            RuntimeError: there will be no reward, because nothing is fitted or there are no preferences to fit to.
        """
        self._session.begin()
        if self._session.random_steps_wanted:
            self._session.gathering = True
            try:
                self._act_randomly(self._session.random_steps_wanted)
                self._session.send(self._recorder, self._source)
            finally:
                self._session.gathering = False
        self._session.wait()

    def relabel(self, observations: Any, actions: Array, next_observations: Any, terminated: Array) -> FloatArray:
        """Compute the learned reward of ``n`` steps with the newest version, to update a replay buffer.

        Args:
            observations: the environment's observations before the steps, ``[n, *shape]`` (for a Dict space, a dict of these).
            actions: the actions passed to `step`, ``[n, *shape]``.
            next_observations: the environment's observations after the steps, before any reset, shaped like ``observations``.
            terminated: ``[n]`` bool; False for truncated episodes.

        Returns:
            The rewards, ``[n]`` float32.

        Raises:
            RuntimeError: there is no learned reward yet.
        """
        seen = [self._see_all(batch) for batch in (observations, next_observations)]
        rewards = self._session.rewards(seen[0], np.asarray(actions), seen[1], np.asarray(terminated))
        if rewards is None:
            raise RuntimeError("There is no learned reward yet; call wait_for_reward() first.")
        return rewards

    def save(self, path: Path | str) -> None:
        """Save preferences, reward model and counters to the folder ``path``, to continue from with `load`.

        With a scripted teacher, waits for due labels and their fit; with people it does not wait, and warns about missing labels.

        The folder contains ``preferences`` (a preference store for `rlhf-ray store`), ``reward_model`` (for `RewardEnsemble.load`;
        missing before the first version) and the state of the actors. Replaces an earlier save atomically. Does not save your
        agent.

        Raises:
            ValueError: ``path`` exists and was not written by `save`.
        """
        self._session.save(Path(path))

    def load(self, path: Path | str) -> None:
        """Continue from a folder written by `save`, or add the preferences of the preference store ``path``.

        Call it before the first reset.

        Raises:
            RuntimeError: the environment was already reset.
        """
        self._session.load(Path(path))

    @property
    def links(self) -> dict[str, str]:
        """With ``preferences.teacher="human"``: the annotators' links, by name."""
        return self._session.links

    def status(self) -> dict[str, Any]:
        """The progress, as a dict.

        ``env_steps``, ``comparisons`` and ``skipped`` pairs so far, ``comparisons_due`` so far, the ``reward_version`` in use (0:
        none yet), ``unlearned_steps`` (steps with reward 0.0 before the first version), ``fragments_dropped`` (windows whose
        fragments were dropped because the actors were busy), and whether it is ``collecting`` (see `pause_collecting`). After the
        first fit, also the last fit's metrics, by the names that `rlhf_ray.data.metrics` describes: ``train_accuracy``,
        ``held_out_accuracy``, ``held_out_brier``, ``held_out_calibration_error``, ``error_rate`` of all answers,
        ``error_rate/NAME`` and ``rationality/NAME`` of each annotator, ``method/NAME`` and others.
        """
        return self._session.status()

    def close(self, **arguments: Any) -> None:
        """Close the environment; with the last one, stop the actors, and Ray if it was started here. Idempotent."""
        if self._open:
            self._open = False
            try:
                super().close(**arguments)  # type: ignore[misc]
            finally:
                self._session.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; a vector environment accepts ``options["reset_mask"]``. The first reset may wait; see ``wait``."""
        self._session.begin()
        if self._wait:
            self._wait = False
            self.wait_for_reward()
        return self._reset(seed=seed, options=options)

    def _act_randomly(self, env_steps: int) -> None:
        """Reset, and take ``env_steps`` random actions from a space of their own: the agent may sample from the environment's."""
        rng = generator(self._session.seed, "first actions", self._source)
        actions = seeded(without_formal(self.env.action_space), int(rng.integers(2**31)))
        self._reset(seed=int(rng.integers(2**31)))
        taken = 0
        while taken < env_steps:
            if self._recorder.autoreset is AutoresetMode.DISABLED and self._recorder.over.any():
                self._reset(options={"reset_mask": self._recorder.over.copy()} if self.together else None)
            *_, news = self._step(actions.sample())
            taken += int(news["_true_reward"].sum())

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        mask = (arguments.get("options") or {}).get("reset_mask") if self.together else None
        which = np.ones(self._recorder.copies, bool) if mask is None else np.array(mask, bool)  # gymnasium takes it out
        observations, infos = self.env.reset(**arguments)
        self._last = self._see(observations)
        self._recorder.begin(which)
        self._started[which] = time.perf_counter()
        return observations, infos

    def _step(self, action: Any) -> tuple[Any, FloatArray, Any, Any, dict[str, Any], dict[str, Any]]:
        """Step the environment.

        Returns:
            What the environment's own `step` returns, with the rewards to return ``[n]`` in place of its own; and what this adds to
            the infos, in gymnasium's convention for vector environments.
        """
        taken = self._rows(np.array(action, self._action_dtype))
        observations, given, *ends, infos = self.env.step(action)
        before, self._last = self._last, self._see(observations)
        true: FloatArray = np.reshape(given, self._recorder.copies).astype(np.float64)
        terminated, truncated = (np.reshape(end, self._recorder.copies) for end in ends)
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
        return observations, rewards, *ends, infos, news

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
        if not (self._true or self._paused):
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
        window = self._window
        if self._session.people_wait:
            window = min(window, FIRST_WINDOW_CLIPS * (self._session.fragments.length + 1))
        if self._since >= window or before < total <= self._session.env_steps:
            self._since = 0
            self._session.send(self._recorder, self._source)

    @property
    def _records(self) -> bool:
        """Whether to record steps for clips."""
        return not self._paused and self._session.records

    def _see(self, observations: Any) -> Array:
        """The reward model's observations, as a copy.

        Raises:
            FaultyEnvironmentError: it is no array, or the space's dtype can't hold a value, such as 0.5 in an image of uint8.
        """
        seen = observations if self._transform is None else self._transform(observations)
        try:
            return self._rows(converted(as_array(seen), np.dtype(self._space.dtype)))
        except UnfitError as error:
            raise FaultyEnvironmentError(
                f"Environment {_name(self.env)}: the reward model gets {error}. Convert observations with observation_transform."
            ) from None

    def _recorder_for(self, env: Any) -> Recorder:
        if not self.together:
            return Recorder(1)
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise SettingError(
                f"metadata['autoreset_mode'] of {env} is {mode!r}; set it to the gymnasium.vector.AutoresetMode that the "
                "environment uses."
            )
        return Recorder(env.num_envs, mode)

    def _spaces(self, env: Any) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """Observation and action space of one environment."""
        if not self.together:
            return env.observation_space, env.action_space
        if env.action_space == env.single_action_space:
            raise SettingError(
                f"The action_space of {env} is that of one environment, unlike in gymnasium's vector environments. Make one of "
                f'EnvPool\'s by rlhf_ray.envs.make_vector_env("envpool/ID", {env.num_envs}).'
            )
        return env.single_observation_space, env.single_action_space

    def _check_shown(self, env: Any, viewer: str) -> None:
        """Check that something of ``env``, whose observations are no images, can be shown, as the setting ``viewer`` asks for."""
        if not self.together:
            camera_for(f"{viewer}, but ", env, pixelated=False)
            return
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

    def _rows(self, values: Array) -> Array:
        """The environment's ``values`` with a leading dimension over environments."""
        return values if self.together else values[None]

    def _see_all(self, observations: Any) -> Array:
        """The reward model's view of ``n`` observations, ``[n, …]``."""
        if self.together:
            return self._see(observations)
        if self._transform is None:
            seen: Array = self._see(observations)[0]
            return seen
        space = batch_space(self.env.observation_space)
        return np.concatenate([self._see(row) for row in iterate(space, observations)])

    def _filmed(self) -> tuple[Array | None, Array | None]:
        """The images for people before and after the step."""
        return None, None


def _name(env: Any) -> str:
    return getattr(env.spec, "id", None) or str(env)
