"""Checked environments: validates what an environment returns in each step, and names the environment in errors."""

from __future__ import annotations

import copy
import importlib
import logging
import math
import traceback
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.errors import FaultyEnvironmentError

RAISED = (Exception, SystemExit)
"""Exceptions attributed to the environment. Includes `sys.exit`, which would silently end an actor's process."""

_NOT_THEIRS = (
    str(Path(gym.__file__).parent),
    str(Path(__file__).parent),
    str(Path(importlib.__file__).parent),
    "<frozen",
)
"""Prefixes of file names that don't help to locate an environment's error."""

logger = logging.getLogger(__name__)


def fault(doing: str, error: BaseException) -> FaultyEnvironmentError:
    """Convert ``error``, raised by ``doing``, to a `FaultyEnvironmentError`."""
    if isinstance(error, FaultyEnvironmentError):
        return error
    said = " ".join(str(error).split())
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places = [place for place in places if not place[0].startswith(_NOT_THEIRS)]
    if isinstance(error, SyntaxError) and error.filename:
        places, said = [(error.filename, error.lineno)], error.msg
    where = f" ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else ""
    return FaultyEnvironmentError(
        f"{doing} raised {type(error).__name__}{': ' if said else ''}{said}{where}. Fix the environment; --debug shows the "
        "traceback."
    )


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Checks an environment's observations and rewards, and converts them to the dtypes of its spaces.

    Observations of another dtype (or lists) become arrays of the observation space's dtype if no value is lost. Rewards become
    floats. Bounds are not checked: many good environments slightly exceed theirs.

    Actions go in and observations and frames come out as copies: some environments change the actions they are given, or reuse
    their arrays.

    Args:
        env: the environment.
        name: its name in errors.

    Raises:
        FaultyEnvironmentError: from ``reset``, ``step`` and ``render``.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str):
        super().__init__(env)
        self._called = name
        self._box = env.observation_space if isinstance(env.observation_space, gym.spaces.Box) else None
        self._float = self._box is not None and self._box.dtype is not None and self._box.dtype.kind == "f"
        self._episode = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        self._episode, self._step = self._episode + 1, 0
        try:
            observation, info = self.env.reset(seed=seed, options=options)
        except RAISED as error:
            raise fault(f"{self._where()}: reset()", error) from error
        return self._observation(observation, "reset()"), info

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        self._step += 1
        try:
            observation, reward, terminated, truncated, info = self.env.step(copy.deepcopy(action))
            terminated, truncated = bool(terminated), bool(truncated)
        except RAISED as error:
            raise fault(f"{self._where()}: step()", error) from error
        try:
            number = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError):
            raise self._fault(f"the reward is {reward!r}, which is not a number") from None
        if not math.isfinite(number):
            if isinstance(action, np.ndarray) and action.dtype.kind == "f" and not np.isfinite(action).all():
                text = f"the policy acts with {_short(action)}, because its weights are not finite. Lower the learning rate."
                raise FaultyEnvironmentError(f"{self._where()}: {text}")
            raise self._fault(f"the reward is {number}")
        return self._observation(observation, "step()"), number, terminated, truncated, info

    def render(self) -> Any:
        """See gymnasium."""
        try:
            return copy.deepcopy(self.env.render())
        except RAISED as error:
            raise fault(f"{self._where()}: render()", error) from error

    def close(self) -> None:
        """See gymnasium. Logs errors instead of raising, so that results are not lost."""
        try:
            self.env.close()  # type: ignore[no-untyped-call]
        except Exception:
            logger.warning("Can't close the environment %s.", self._called, exc_info=True)

    def _observation(self, observation: Any, of: str) -> Any:
        """Convert ``observation`` to the observation space's dtype and check it."""
        if self._box is None:
            return copy.deepcopy(observation)
        space, given = self._box, observation
        if not (isinstance(observation, np.ndarray) and observation.dtype == space.dtype):
            try:
                given = np.asarray(observation)
            except ValueError:
                raise self._fault(f"{of} returned an observation that is not an array: {_short(observation)}") from None
            if given.dtype.kind not in "biuf":
                raise self._fault(
                    f"{of} returned an observation that is not an array of numbers: {_short(observation)}"
                )
        if given.shape != space.shape:
            raise self._fault(
                f"{of} returned an observation of shape {given.shape}; its observation space has shape {space.shape}"
            )
        if given.dtype.kind == "f" and not np.isfinite(given).all():
            bad = given[~np.isfinite(given)].flat[0]
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(given))[0])
            raise self._fault(f"{of} returned an observation that is {bad} at {where[0] if len(where) == 1 else where}")
        if given.dtype == space.dtype:
            return np.array(given)
        with np.errstate(all="ignore"):
            cast = given.astype(space.dtype)
        if not self._float and not np.array_equal(cast, given):
            bad = given[cast != given].flat[0]
            raise self._fault(
                f"{of} returned an observation of {given.dtype}, and its value {bad} is not a {space.dtype}"
            )
        return cast

    def _where(self) -> str:
        return f"Environment {self._called}, step {self._step} of episode {self._episode}"

    def _fault(self, what: str) -> FaultyEnvironmentError:
        return FaultyEnvironmentError(f"{self._where()}: {what}. Fix the environment.")


class CheckedVectorEnv(gym.vector.VectorWrapper):
    """Checks that a vector environment's observations and rewards are finite numbers; copies arrays, as `CheckedEnv` does.

    Args:
        env: the environment.
        name: its name in errors.

    Raises:
        FaultyEnvironmentError: from ``reset`` and ``step``.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], name: str):
        super().__init__(env)
        self._called = name

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        try:
            observations, info = self.env.reset(**options)
        except RAISED as error:
            raise fault(f"Environment {self._called}: reset()", error) from error
        self._check("an observation", observations, "reset()")
        return np.array(observations), info

    def step(self, actions: Any) -> Any:
        """See gymnasium."""
        try:
            observations, rewards, *others = self.env.step(copy.deepcopy(actions))
        except RAISED as error:
            raise fault(f"Environment {self._called}: step()", error) from error
        self._check("a reward", rewards, "step()")
        self._check("an observation", observations, "step()")
        return np.array(observations), np.array(rewards), *others

    def _check(self, what: str, values: Any, of: str) -> None:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            copy = int(np.argwhere(~np.isfinite(values))[0, 0])
            raise FaultyEnvironmentError(
                f"Environment {self._called}, copy {copy}: {of} returned {what} that is no finite number. Fix the environment."
            )


def try_out(env: gym.Env[Any, Any], steps: int = 3) -> None:
    """Reset ``env`` and take a few random steps, to find faults before a run starts.

    Raises:
        FaultyEnvironmentError: the environment has a fault.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's: about harmless things or errors raised here
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                return


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
