"""Taught: what `HumanPreferencesEnv` and `HumanPreferencesVectorEnv` have in common."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.wrappers.recorder import Recorder
from rlhf_ray.wrappers.teaching import WINDOW, Teaching

FIRST_WINDOW_CLIPS = 4
"""Clips' lengths of the windows that the first clips for people are cut from: of what is drawn by then, two are whole."""

Transform = Callable[[Any], Any]


class Taught:
    """The switches, saving and waiting. A base of the two wrappers, which say what each method is for."""

    _teaching: Teaching
    _recorder: Recorder
    _wait: bool

    def _join(self, teaching: Teaching, recorder: Recorder, transform: Transform | None, wait: bool) -> None:
        self._teaching, self._recorder, self._transform, self._wait = teaching, recorder, transform, wait
        self._space, actions = teaching.spaces
        self._action_dtype: Any = np.int64 if isinstance(actions, gym.spaces.Discrete) else np.float32
        self._source = teaching.users
        teaching.users += 1
        self._open, self._true, self._paused = True, False, False
        self._window = max(4 * teaching.fragments.length, WINDOW // recorder.copies)
        self.true_returns: deque[float] = deque(maxlen=100)
        """The true returns of the latest episodes, 100 at most."""

    def use_true_reward(self) -> None:
        """Return the true reward from now on, to compare or to evaluate. The ring goes on; steps count (see `pause`)."""
        self._true = True

    def use_learned_reward(self) -> None:
        """Return the learned reward again: the default."""
        self._true = False

    def pause(self) -> None:
        """From now on steps do not count towards ``total_env_steps`` and give no clips: for an evaluation in this environment."""
        if not self._paused:
            self._recorder.forget()
        self._paused = True

    def resume(self) -> None:
        """End a `pause`."""
        self._paused = False

    def wait_for_reward(self) -> None:
        """Wait until there is a learned reward; see ``wait``.

        Where the first clips are missing, random actions make them, so that the environment has to be reset afterwards.

        Raises:
            RuntimeError: there will be none, since nothing is fitted or there is nothing to fit to.
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
        """What the newest version of the reward says of ``n`` steps: for a replay buffer, whose rewards are older versions'.

        Args:
            observations: what the environment returned before the steps, ``[n, *shape]`` (of a Dict space, a dict of these).
            actions: what `step` was given, ``[n, *shape]``.
            next_observations: what the environment returned after the steps, before any reset.
            terminated: ``[n]`` bool; false where an episode was only truncated.

        Returns:
            ``[n]`` float32.

        Raises:
            RuntimeError: there is no version yet.
        """
        seen = [self._see_all(batch) for batch in (observations, next_observations)]
        rewards = self._teaching.rewards(seen[0], np.asarray(actions), seen[1], np.asarray(terminated))
        if rewards is None:
            raise RuntimeError("There is no learned reward yet: wait_for_reward() waits for the first version.")
        return rewards

    def _see_all(self, observations: Any) -> Array:
        """What the reward model sees of ``n`` observations."""
        raise NotImplementedError

    def save(self, path: Path | str) -> None:
        """Save preferences, reward model and counters into the folder ``path``, to go on from with `load`.

        Waits for the labels that are due, and the fit to them, where scripts answer; where people do it does not wait, and a
        warning says how many are missing.

        In it are ``preferences`` (a preference store: `rlhf-ray store` reads it), ``reward_model`` (`RewardEnsemble.load` reads
        it; it is missing before the first version) and the state of the ring. What was saved there before is replaced, and
        stays whole where this process is killed meanwhile. Your agent is yours to save.

        Raises:
            ValueError: ``path`` holds something else.
        """
        self._teaching.save(Path(path))

    def load(self, path: Path | str) -> None:
        """Go on from what `save` wrote to ``path``; or add the preferences of the preference store ``path``.

        Comes before the first reset.

        Raises:
            RuntimeError: the environment was reset before.
        """
        self._teaching.load(Path(path))

    @property
    def links(self) -> dict[str, str]:
        """Where each person labels, with ``preferences.teacher="human"``: their links by name."""
        return self._teaching.links

    def status(self) -> dict[str, Any]:
        """How far it is.

        ``env_steps`` and ``comparisons`` so far, ``comparisons_due`` by now, the ``reward_version`` in use (0: none yet),
        ``unlearned_steps`` (rewarded 0.0, since there was no version), ``clips_dropped`` (windows whose clips the ring had no time
        for), and the last fit's ``train_accuracy`` and ``held_out_accuracy``.
        """
        return self._teaching.status()

    def close(self, **arguments: Any) -> None:
        """Close the environment. With the last that shares it the ring ends, and Ray if it was started here. Again: nothing."""
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
        """As of the environment, with a vector's ``options["reset_mask"]``. The first one may wait; see ``wait``."""
        self._teaching.begin()
        if self._wait:
            self._wait = False
            self.wait_for_reward()
        return self._reset(seed=seed, options=options)

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
        """Record a step of every copy (arguments as of `Recorder.add`).

        Returns:
            The rewards to return, which of them are learned, and what `Recorder.add` returns.
        """
        teaching = self._teaching
        teaching.check_open()
        learned = None if self._true else teaching.rewards(before, actions, after, terminated)
        keep = not self._paused and teaching.records
        real, episodes = self._recorder.add(before, actions, true, terminated, truncated, after, keep, frames)
        if episodes is not None:
            self.true_returns.extend(episodes[1][episodes[0]].tolist())
        if not self._paused:
            self._count(int(real.sum()))
        if learned is None:
            if not self._true and not self._paused:
                teaching.note_unlearned(int(real.sum()))
            return (true if self._true else np.zeros(len(true))), np.zeros(len(true), bool), real, episodes
        return np.where(real, learned, 0.0), real, real, episodes

    def _count(self, steps: int) -> None:
        before, total = self._teaching.env_steps, self._teaching.total_env_steps
        self._teaching.env_steps += steps
        self._since += 1
        if self._since >= self._window_now or before < total <= self._teaching.env_steps:
            self._since = 0
            self._teaching.send(self._recorder, self._source)

    @property
    def _window_now(self) -> int:
        """Steps of each copy after which the ring is told: fewer where people wait for the first clips."""
        first = FIRST_WINDOW_CLIPS * (self._teaching.fragments.length + 1)
        return min(self._window, first) if self._teaching.people_wait else self._window

    _since = 0
    """Steps of each copy since the ring was told last."""

    def _act_randomly(self, env_steps: int) -> None:
        """Take so many random actions, beginning anew."""
        raise NotImplementedError


def seen_space(space: gym.Space[Any], seen: Array | None, action_space: gym.Space[Any], name: str) -> gym.spaces.Box:
    """The space of what the reward model sees of an observation.

    Args:
        space: of one observation.
        seen: one observation after ``observation_transform``; None without one.
        action_space: of one environment.
        name: of the environment, for errors.

    Raises:
        SettingError: the reward model takes no such observations or actions.
    """
    if seen is not None:
        if seen.dtype == np.bool_:
            seen = seen.astype(np.uint8)
        limits = np.iinfo(seen.dtype) if seen.dtype.kind in "iu" else None
        low, high = (-np.inf, np.inf) if limits is None else (limits.min, limits.max)
        space = gym.spaces.Box(low, high, seen.shape, seen.dtype.type)
    try:
        check_spaces(space, action_space, name)
    except ValueError as error:
        remedy = (
            "Or say with observation_transform what of an observation counts: lambda observation: observation['pov']."
        )
        raise SettingError(
            f"{error} {remedy if seen is None else '(This is what observation_transform gives.)'}"
        ) from error
    assert isinstance(space, gym.spaces.Box)  # checked
    return space
