"""Checked environments: what an environment gives is looked at in each step, and what is wrong is said in its name."""

from __future__ import annotations

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
"""What an environment may raise that is its fault, `sys.exit` included: in an actor that would end the process without a word."""

_NOT_THEIRS = (
    str(Path(gym.__file__).parent),
    str(Path(__file__).parent),
    str(Path(importlib.__file__).parent),
    "<frozen",
)
"""Beginnings of file names that say nothing about where an environment went wrong."""

logger = logging.getLogger(__name__)


def fault(doing: str, error: BaseException) -> FaultyEnvironmentError:
    """The fault that ``error`` is, which was raised by ``doing``."""
    if isinstance(error, FaultyEnvironmentError):
        return error
    said = " ".join(str(error).split())
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places = [place for place in places if not place[0].startswith(_NOT_THEIRS)]
    if isinstance(error, SyntaxError) and error.filename:
        places, said = [(error.filename, error.lineno)], error.msg
    where = f" ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else ""
    return FaultyEnvironmentError(
        f"{doing} raised {type(error).__name__}{': ' if said else ''}{said}{where}. Fix the environment; --debug shows the trace."
    )


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """An environment whose observations and rewards are checked, and brought to the form that its spaces promise.

    Observations of another dtype (or lists) become what the observation space says, where no value is lost by it; rewards become
    floats. Bounds are not checked: many good environments step over theirs a little.

    Args:
        env: the environment.
        name: what to call it.

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
            observation, reward, terminated, truncated, info = self.env.step(action)
            terminated, truncated = bool(terminated), bool(truncated)
        except RAISED as error:
            raise fault(f"{self._where()}: step()", error) from error
        try:
            number = float(reward.item() if isinstance(reward, np.ndarray) else reward)
        except (TypeError, ValueError):
            raise self._fault(f"the reward is {reward!r}, which is not a number") from None
        if not math.isfinite(number):
            raise self._fault(f"the reward is {number}")
        return self._observation(observation, "step()"), number, terminated, truncated, info

    def render(self) -> Any:
        """See gymnasium."""
        try:
            return self.env.render()
        except RAISED as error:
            raise fault(f"{self._where()}: render()", error) from error

    def close(self) -> None:
        """See gymnasium. An environment that cannot be closed is no reason to lose what was done with it."""
        try:
            self.env.close()  # type: ignore[no-untyped-call]
        except Exception:
            logger.warning("The environment %s could not be closed.", self._called, exc_info=True)

    def _observation(self, observation: Any, of: str) -> Any:
        """``observation`` as the observation space says."""
        if self._box is None:
            return observation
        space, given = self._box, observation
        if not (isinstance(observation, np.ndarray) and observation.dtype == space.dtype):
            try:
                given = np.asarray(observation)
            except ValueError:
                raise self._fault(f"{of} gave an observation that is no array but {_short(observation)}") from None
            if given.dtype.kind not in "biuf":
                raise self._fault(f"{of} gave an observation that is no array of numbers but {_short(observation)}")
        if given.shape != space.shape:
            raise self._fault(
                f"{of} gave an observation of the shape {given.shape}, and its observation space has {space.shape}"
            )
        if given.dtype.kind == "f" and not np.isfinite(given).all():
            bad = given[~np.isfinite(given)].flat[0]
            where = tuple(int(i) for i in np.argwhere(~np.isfinite(given))[0])
            raise self._fault(f"{of} gave an observation that is {bad} at {where[0] if len(where) == 1 else where}")
        if given.dtype == space.dtype:
            return given
        with np.errstate(all="ignore"):
            cast = given.astype(space.dtype)
        if not self._float and not np.array_equal(cast, given):
            bad = given[cast != given].flat[0]
            raise self._fault(f"{of} gave an observation of {given.dtype}, and {bad} in it is no {space.dtype}")
        return cast

    def _where(self) -> str:
        return f"Environment {self._called}, step {self._step} of its episode {self._episode}"

    def _fault(self, what: str) -> FaultyEnvironmentError:
        return FaultyEnvironmentError(f"{self._where()}: {what}. Fix the environment.")


def try_out(env: gym.Env[Any, Any], steps: int = 3) -> None:
    """Reset ``env`` and take a few random steps: what is wrong with it at once is said before anything is started.

    Raises:
        FaultyEnvironmentError: something is.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's own, of what is refused here or does no harm
        env.action_space.seed(0)
        env.reset(seed=0)
        for _ in range(steps):
            _, _, terminated, truncated, _ = env.step(env.action_space.sample())
            if terminated or truncated:
                return


def _short(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}…"
