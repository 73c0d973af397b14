"""Taught: the common base of `HumanPreferencesEnv` and `HumanPreferencesVectorEnv`."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.bounds import without_formal
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.data.seeds import generator
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.data.switching import Switching
from rlhf_ray.envs.observations import UnfitError, converted
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.envs.views import view_of
from rlhf_ray.settings.checks import require
from rlhf_ray.wrappers.recorder import Recorder
from rlhf_ray.wrappers.teaching import WINDOW, Teaching, Wait

FIRST_WINDOW_CLIPS = 4
"""Length of the windows for people's first clips, in clip lengths: such a window contains two completely rendered clips."""

Transform = Callable[[Any], Any]


class Taught:
    """Reward switches, pausing, exploring, saving and waiting; base class of the two wrappers."""

    env: Any
    _teaching: Teaching
    _recorder: Recorder
    _wait: Wait

    def _join(self, teaching: Teaching, recorder: Recorder, transform: Transform | None, wait: Wait) -> None:
        self._teaching, self._recorder, self._transform, self._wait = teaching, recorder, transform, wait
        self._space, actions = teaching.spaces
        self._action_dtype: Any = np.int64 if choices_of(actions) else np.float32
        self._source = teaching.users
        teaching.users += 1
        self._open, self._true, self._paused, self._exploring = True, False, False, False
        self._window = max(4 * teaching.fragments.length, WINDOW // recorder.copies)
        self.true_returns: deque[float] = deque(maxlen=100)
        """True returns of the latest episodes, at most 100."""

    def __getstate__(self) -> Any:
        """Refuse to be pickled, by `SubprocVecEnv` for example, unless the reward is fixed."""
        self._teaching.refuse_to_leave()
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
        self._teaching.collect(False)

    def resume_collecting(self) -> None:
        """End a `pause_collecting`."""
        self._teaching.collect(True)

    def explore(self, policy: Callable[[Any], Any], env_steps: int) -> None:
        """Step this environment with ``policy``'s actions mixed with random ones, for clips that the policy alone does not give.

        Each action is random with ``fragments.random_action_share``; below 1, ``fragments.switch_probability`` makes stretches of
        either, as in `rlhf-ray train`. The steps count towards ``total_env_steps``, and their clips are compared like the agent's;
        `true_returns` does not have their episodes. Starts with a reset. Reset the environment afterwards too, or explore in one
        that nothing else steps, made with ``env.share(…)``.

        Args:
            policy: maps the environment's observation (of a vector environment: the batch) to an action (the batch of actions).
                Called at each step, also where the action is random.
            env_steps: number of environment steps; a vector environment rounds up to steps of all its environments.

        Raises:
            RuntimeError: there is nothing to explore for: ``ask=False``, a fixed reward, or a pause.
            SettingError: ``env_steps`` is below the length of a clip.
        """
        teaching = self._teaching
        if not self._records:
            raise RuntimeError("explore() makes clips to ask about, but this environment asks nothing: it is paused, "
                               "has a fixed reward, or ask=False.")  # fmt: skip
        of = teaching.fragments
        require(env_steps >= of.length, "env_steps", env_steps, f"a clip has fragments.length={of.length} steps")
        self._prepare()
        rng = generator(teaching.seed, "exploration", self._source, teaching.windows)
        drawn = self._own_actions(int(rng.integers(2**31)))
        switching: dict[int, Switching] = {}

        def choose(observation: Any) -> Any:
            chosen = policy(observation)
            for i in np.flatnonzero(self._recorder.lengths == 0).tolist():  # a new episode
                switching[i] = Switching(of.random_action_share, of.switch_probability, rng)
            random = np.array([switching[i].random() for i in range(self._recorder.copies)])
            return self._mix(random, drawn.sample(), chosen)

        returns, self._exploring = list(self.true_returns), True
        try:
            self._play(choose, env_steps, int(rng.integers(2**31)))
            teaching.send(self._recorder, self._source, wait=True)
        finally:
            self._exploring = False
            self.true_returns.clear()
            self.true_returns.extend(returns)

    def wait_for_reward(self) -> None:
        """Wait until there is a learned reward; see ``wait``.

        If the first fragments are missing, takes random actions to collect them; reset the environment afterwards.

        Raises:
            RuntimeError: there will be no reward, because nothing is fitted or there are no preferences to fit to.
        """
        self._teaching.begin()
        if self._teaching.random_steps_wanted:
            self._teaching.gathering = True
            try:
                self._act_randomly(self._teaching.random_steps_wanted)
                self._teaching.send(self._recorder, self._source)
            finally:
                self._teaching.gathering = False
        self._teaching.wait()

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
        rewards = self._teaching.rewards(seen[0], np.asarray(actions), seen[1], np.asarray(terminated))
        if rewards is None:
            raise RuntimeError("There is no learned reward yet; call wait_for_reward() first.")
        return rewards

    def _array(self, seen: Any) -> Array:
        """A copy of observations with the dtype that the reward model reads; some environments reuse their arrays.

        Raises:
            FaultyEnvironmentError: that dtype can't hold a value, such as 0.5 in an image of uint8.
        """
        try:
            return converted(np.asarray(seen), np.dtype(self._space.dtype))
        except UnfitError as error:
            raise FaultyEnvironmentError(
                f"Environment {self.env}: it returned an observation {error}, the dtype of its observation space. "
                "Correct the space, or convert observations with observation_transform."
            ) from None

    def _see_all(self, observations: Any) -> Array:
        """The reward model's view of ``n`` observations."""
        raise NotImplementedError

    def save(self, path: Path | str) -> None:
        """Save preferences, reward model and counters to the folder ``path``, to continue from with `load`.

        With a scripted teacher, waits for due labels and their fit; with people it does not wait, and warns about missing labels.

        The folder contains ``preferences`` (a preference store for `rlhf-ray store`), ``reward_model`` (for `RewardEnsemble.load`;
        missing before the first version) and the state of the actors. Replaces an earlier save atomically. Does not save your
        agent.

        Raises:
            ValueError: ``path`` exists and was not written by `save`.
        """
        self._teaching.save(Path(path))

    def load(self, path: Path | str) -> None:
        """Continue from a folder written by `save`, or add the preferences of the preference store ``path``.

        Call it before the first reset.

        Raises:
            RuntimeError: the environment was already reset.
        """
        self._teaching.load(Path(path))

    @property
    def links(self) -> dict[str, str]:
        """With ``preferences.teacher="human"``: the annotators' links, by name."""
        return self._teaching.links

    def status(self) -> dict[str, Any]:
        """The progress, as a dict.

        ``env_steps``, ``comparisons`` and ``skipped`` pairs so far, ``comparisons_due`` so far, the ``reward_version`` in use (0:
        none yet), ``unlearned_steps`` (steps with reward 0.0 before the first version), ``clips_dropped`` (windows dropped because
        the actors were busy), and whether it is ``collecting`` (see `pause_collecting`). After the first fit, also the last fit's
        metrics, by the names that `rlhf_ray.data.metrics` describes: ``train_accuracy``, ``held_out_accuracy``,
        ``held_out_brier``, ``held_out_calibration_error``, ``error_rate`` of all answers, ``error_rate/NAME`` and
        ``rationality/NAME`` of each annotator, ``method/NAME`` and others.
        """
        return self._teaching.status()

    def close(self, **arguments: Any) -> None:
        """Close the environment; with the last one, stop the actors, and Ray if it was started here. Idempotent."""
        if self._open:
            self._open = False
            try:
                super().close(**arguments)  # type: ignore[misc]
            finally:
                self._teaching.leave()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Reset the environment; a vector environment accepts ``options["reset_mask"]``. The first reset may wait; see ``wait``."""
        self._prepare()
        return self._reset(seed=seed, options=options)

    def _prepare(self) -> None:
        """Start the ring; the first time, wait for the reward if ``wait`` is set."""
        self._teaching.begin()
        if self._wait:
            self._wait = False
            self.wait_for_reward()

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        raise NotImplementedError

    def _take(
        self,
        before: Array,
        actions: Array,
        true: FloatArray,
        terminated: BoolArray,
        truncated: BoolArray,
        after: Array,
        frames: tuple[Array | None, Array | None] = (None, None),
    ) -> tuple[FloatArray, BoolArray, BoolArray, Any]:
        """Record a step of every environment (arguments as in `Recorder.add`).

        Returns:
            The rewards to return, a mask of the learned ones, and the results of `Recorder.add`.
        """
        teaching = self._teaching
        teaching.check_open()
        learned = None if self._true else teaching.rewards(before, actions, after, terminated)
        if not self._records and len(self._recorder):
            self._recorder.forget()  # steps before a pause and after it must not join
        real, episodes = self._recorder.add(before, actions, true, terminated, truncated, after, self._records, frames)
        if episodes is not None:
            self.true_returns.extend(episodes[1][episodes[0]].tolist())
        if not self._paused:
            self._count(int(real.sum()))
        if learned is None:
            if not (self._true or self._paused or self._exploring):
                teaching.note_unlearned(int(real.sum()))
            rewards = true if self._true else teaching.early_rewards(after, real)
            return rewards, np.zeros(len(true), bool), real, episodes
        return np.where(real, learned, 0.0), real, real, episodes

    def _count(self, steps: int) -> None:
        before, total = self._teaching.env_steps, self._teaching.total_env_steps
        self._teaching.count(steps)
        self._since += 1
        if self._since >= self._window_now or before < total <= self._teaching.env_steps:
            self._since = 0
            self._teaching.send(self._recorder, self._source, wait=self._exploring)

    @property
    def _records(self) -> bool:
        """Whether to record steps for clips."""
        return not self._paused and self._teaching.records

    @property
    def _window_now(self) -> int:
        """Steps per environment between messages to the ring; fewer while people wait for the first clips."""
        first = FIRST_WINDOW_CLIPS * (self._teaching.fragments.length + 1)
        return min(self._window, first) if self._teaching.people_wait else self._window

    _since = 0
    """Steps per environment since the last message to the ring."""

    def _act_randomly(self, env_steps: int) -> None:
        """Reset, and take ``env_steps`` random actions."""
        rng = generator(self._teaching.seed, "first actions", self._source)
        actions = self._own_actions(int(rng.integers(2**31)))
        self._play(lambda observation: actions.sample(), env_steps, int(rng.integers(2**31)))

    def _own_actions(self, seed: int) -> gym.Space[Any]:
        """The action space with its own random numbers: the agent may sample from the environment's own space."""
        actions = copy.deepcopy(without_formal(self.env.action_space))
        actions.seed(seed)
        return actions

    def _play(self, choose: Callable[[Any], Any], env_steps: int, seed: int) -> None:
        """Reset with ``seed``, and take ``env_steps`` steps with the actions that ``choose`` gives for the observations."""
        raise NotImplementedError

    def _mix(self, random: BoolArray, drawn: Any, chosen: Any) -> Any:
        """The action of `step`: that of ``drawn`` for environments in the mask ``random``, else of ``chosen``."""
        raise NotImplementedError


def transform_for(space: gym.Space[Any], given: Transform | None) -> Transform | None:
    """The reward model's view of observations: the user's own, else the one of `rlhf_ray.envs.views` if the space needs one."""
    view = None if given is not None else view_of(space)
    return given if view is None else view.see


def seen_space(space: gym.Space[Any], seen: Array | None, action_space: gym.Space[Any], name: str) -> gym.spaces.Box:
    """The space of the reward model's observations.

    Args:
        space: the space of one observation.
        seen: one observation after the user's ``observation_transform``; None without one.
        action_space: the action space of one environment.
        name: the environment's name, for errors.

    Raises:
        SettingError: the reward model does not support such observations or actions.
    """
    if seen is not None:
        if seen.dtype == np.bool_:
            seen = seen.astype(np.uint8)
        limits = np.iinfo(seen.dtype) if seen.dtype.kind in "iu" else None
        low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
        space = gym.spaces.Box(low, high, seen.shape, seen.dtype.type)
    elif (view := view_of(space)) is not None:
        space = view.space
    try:
        check_spaces(space, action_space, name)
    except ValueError as error:
        remedy = "Or select a part of the observation with observation_transform, such as lambda observation: observation['pov']."
        raise SettingError(
            f"{error} {remedy if seen is None else '(This is the output of observation_transform.)'}"
        ) from error
    assert isinstance(space, gym.spaces.Box)  # checked
    return space
