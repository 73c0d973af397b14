"""RewardSession: what one agent's environments share; and what the wrappers' arguments mean."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.atomic import find_folder, whole_folder
from rlhf_ray.data.defaults import own_defaults
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nested import NAME, write_nested
from rlhf_ray.data.spaces import choices_of, without_formal
from rlhf_ray.data.strays import is_empty
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.envs.views import view_of
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.predictor import Predictor
from rlhf_ray.settings import FragmentSettings, PreferenceSettings
from rlhf_ray.settings.checks import require
from rlhf_ray.settings.fragments import ResolvedFragments
from rlhf_ray.wrappers.recorder import Recorder

WINDOW = 500
"""Environment steps per window. After each, fragments are cut, the ring learns the agent's progress, and its errors are raised."""

Transform = Callable[[Any], Any]

Wait = bool | Literal["always"]
"""What waits for learning: nothing, the first reset, or every step with labels due too."""

ASKED = "the wrappers ask for the rewards of"


class RewardSession:
    """The reward in use and the counters; nothing is recorded, asked or fitted, which `LearningSession` adds.

    By itself, it is a fitted reward that stays as it is; this needs no Ray and works in any process.

    Args:
        spaces: observation and action space of one environment, with observations as the reward model sees them.
        total_env_steps, seed: see `HumanPreferencesEnv`.
        path: the fitted reward model's folder, or a folder that `save` wrote; None if the reward is to be learned.

    Raises:
        SettingError: the reward model is for other spaces.
    """

    ensemble: RewardEnsemble
    fragments: ResolvedFragments
    """With ``initial_env_steps`` as this session counts them."""
    collecting, gathering, films, waits = True, False, False, False
    """Whether fragments are cut and questions asked (see `collect`), whether the current steps are random actions for the first
    fragments, whether frames are rendered for people, and whether steps wait for the labels due."""
    windows = unlearned_steps = fragments_dropped = 0
    """Windows so far with fragments, steps with reward 0.0 before the first version, and windows whose clips were dropped because
    those of an earlier window were still in flight."""

    def __init__(
        self, spaces: tuple[gym.spaces.Box, gym.Space[Any]], total_env_steps: int, seed: int, path: Path | None = None
    ):
        self.spaces = (spaces[0], without_formal(spaces[1]))
        self.total_env_steps, self.seed = total_env_steps, seed
        self.env_steps = self.version = self.users = 0
        """Environment steps over all environments, the version of the reward in use (0: none yet), open environments."""
        self.closed = False
        self._process = os.getpid()
        self._predictor: Predictor | None = None
        if path is None:
            return
        self.fragments = FragmentSettings().resolved(horizon=None, total_env_steps=total_env_steps)
        path = find_folder(path)
        inner = path / "reward_model"
        self.ensemble = RewardEnsemble.load(inner if inner.exists() else path)
        self.ensemble.check_steps(ASKED)
        known = (self.ensemble.observation_space, self.ensemble.action_space)
        if [_kind(space) for space in known] != [_kind(space) for space in self.spaces]:
            raise SettingError(
                f"reward_model is {path}, fitted for {known[0]} and {known[1]}, but the environment has {self.spaces}."
            )
        self._use_version(self.ensemble.state())

    def rewards(
        self, observations: Array, actions: Array, next_observations: Array, terminated: Array
    ) -> FloatArray | None:
        """The learned reward of ``n`` steps, ``[n]`` float32; None before the first version."""
        if self._predictor is None:
            return None
        if torch.get_default_dtype() is torch.float32:
            return self._predictor.predict(observations, actions, next_observations, terminated)
        with own_defaults():
            return self._predictor.predict(observations, actions, next_observations, terminated)

    def early_rewards(self, next_observations: Array, real: BoolArray) -> FloatArray:
        """The rewards of ``n`` steps before the first version, ``[n]``."""
        return np.zeros(len(real))

    @property
    def records(self) -> bool:
        """Whether to record steps for fragments."""
        return False

    @property
    def random_steps_wanted(self) -> int:
        """Random environment steps still needed before the first questions; 0 if the labels for the first fit exist."""
        return 0

    @property
    def people_wait(self) -> bool:
        """Whether people wait for the first fragments, which the current steps provide."""
        return False

    @property
    def links(self) -> dict[str, str]:
        """The annotators' links, by name."""
        return {}

    def begin(self) -> None:
        """Start learning unless it runs."""
        self.check_open()

    def wait(self) -> None:
        """Wait for the first version of the reward."""
        self.begin()

    def collect(self, on: bool) -> None:
        """Pause or resume collecting, without pausing the training."""
        self.collecting = on

    def count(self, steps: int) -> None:
        """Count environment steps."""
        self.env_steps += steps

    def note_unlearned(self, steps: int) -> None:
        """Count ``steps`` with reward 0.0."""

    def send(self, recorder: Recorder, source: int) -> None:
        """Take the steps in ``recorder``, and learn from them."""
        recorder.forget()

    @own_defaults()
    def save(self, path: Path) -> None:
        """See `HumanPreferencesEnv.save`."""
        self.check_open()
        path = path.absolute()
        if path.exists() and not (path / NAME).exists() and not (path.is_dir() and is_empty(path)):
            raise ValueError(f"{path} exists and was not written by save(); give another folder.")
        self._settle(path)
        with whole_folder(path) as folder:
            self._write(folder)
            if self.version:
                self.ensemble.save(folder / "reward_model")

    def load(self, path: Path) -> None:
        """See `HumanPreferencesEnv.load`."""
        self.check_open()
        raise RuntimeError(
            f"Can't load into an environment with a fixed reward; use reward_model={str(path)!r} instead."
        )

    def status(self) -> dict[str, Any]:
        """See `HumanPreferencesEnv.status`."""
        return {
            "env_steps": self.env_steps,
            "comparisons": 0,
            "comparisons_due": 0,
            "skipped": 0,
            "reward_version": self.version,
            "unlearned_steps": self.unlearned_steps,
            "fragments_dropped": self.fragments_dropped,
            "collecting": self.collecting,
        }

    def leave(self) -> None:
        """Called when an environment closes; the last one closes the session."""
        self.users -= 1
        if self.users > 0 or self.closed or os.getpid() != self._process:  # a copy that a fork made
            return
        self.closed = True
        self._close()

    def check_open(self) -> None:
        """Raise RuntimeError if already closed, or in another process than the one that started it."""
        if self.closed:
            raise RuntimeError("This environment is closed; create a new one.")
        if os.getpid() != self._process:
            self.check_may_leave()

    def check_may_leave(self) -> None:
        """Raise RuntimeError if this session can't work in another process."""

    def _close(self) -> None:
        """Stop everything that this session started."""

    @own_defaults()
    def _use_version(self, state: dict[str, Array]) -> None:
        """Switch to this version of the reward model: weights, normalisers and number."""
        self.ensemble.load_state(state)
        self._predictor = Predictor(self.ensemble)
        self.version = int(self.ensemble.version)

    def _settle(self, path: Path) -> None:
        """Wait before `save` for what is due."""

    def _write(self, folder: Path, ring: bool = False, unseen: int = 0) -> None:
        """Write what `save` keeps beside the reward model."""
        counters = {"env_steps": self.env_steps, "windows": self.windows, "waits": self.waits}
        write_nested(counters | {"ring": ring, "unseen": unseen}, folder)


def _kind(space: gym.Space[Any]) -> tuple[Any, ...]:
    """The properties of a space that the reward model depends on, without bounds."""
    return type(space), space.shape, space.dtype, choices_of(space)


def check_wait(preferences: PreferenceSettings | None, wait: Wait) -> None:
    """Check ``wait``. Refuse it with pretraining: the steps before the first reward would be random, not the agent's."""
    require(wait in (False, True, "always"), "wait", wait, "it must be False, True or 'always'")
    if wait == "always" and preferences is not None and preferences.human_share:
        raise SettingError(
            f"preferences.human_share is {preferences.human_share}, but wait is 'always', with which only one of people and the "
            "scripted teacher answers: set human_share to 0, or wait to True."
        )
    if wait and preferences is not None and preferences.pretraining_env_steps:
        raise SettingError(
            f"preferences.pretraining_env_steps is {preferences.pretraining_env_steps}, but wait is {wait!r}, which takes random "
            "steps before the first reward: set one of them to 0 or False."
        )


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
