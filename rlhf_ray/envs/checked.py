"""Checked environments: validates what an environment returns in each step, and names the environment in errors."""

from __future__ import annotations

import copy
import importlib
import logging
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.defaults import making, stepping
from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.data.spaces import fitted
from rlhf_ray.data.vector_rollout import with_plain_success
from rlhf_ray.envs.observations import (
    LARGEST,
    Say,
    UnfitError,
    copied,
    fitting,
    plain,
    plain_end,
    plain_ends,
    plain_number,
    short,
)

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
        return FaultyEnvironmentError(str(error))  # a new one: nothing is its own cause
    message = " ".join(str(error).split())
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places = [place for place in places if not place[0].startswith(_NOT_THEIRS)]
    if isinstance(error, SyntaxError) and error.filename:
        places, message = [(error.filename, error.lineno)], error.msg
    where = f" ({Path(places[-1][0]).name}, line {places[-1][1]})" if places else ""
    return FaultyEnvironmentError(
        f"{doing} raised {type(error).__name__}{': ' if message else ''}{message}{where}. Fix the environment; --debug shows the "
        "traceback."
    )


class CheckedEnv(gym.Wrapper[Any, Any, Any, Any]):
    """Checks an environment's observations (`rlhf_ray.envs.observations`) and rewards, and converts them to their dtypes.

    Observations, and their parts, become arrays of the space's dtype. Rewards become floats. Successes in infos are plain
    (`rlhf_ray.data.vector_rollout`).

    Actions go in and observations and frames come out as copies: some environments change the actions they are given, or reuse
    their arrays. Actions go in as the space's dtype, and stay in its bounds (`rlhf_ray.data.spaces.fitted`).

    Raises:
        FaultyEnvironmentError: from ``reset``, ``step`` and ``render``.
    """

    def __init__(self, env: gym.Env[Any, Any], name: str):
        super().__init__(env)
        self._called = name
        self._fitting = fitting(env.observation_space, Say(name))
        self._episode = self._step = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        self._episode, self._step = self._episode + 1, 0
        try:
            with making:
                observation, info = self.env.reset(seed=seed, options=options)
        except RAISED as error:
            raise fault(f"{self._where()}: reset()", error) from error
        return self._observation(observation, "reset()"), with_plain_success(info, self._called)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """See gymnasium."""
        self._step += 1
        try:
            given = fitted(copied(action), self.env.action_space)
            with stepping:
                observation, reward, terminated, truncated, info = self.env.step(given)
        except RAISED as error:
            raise fault(f"{self._where()}: step()", error) from error
        try:
            number = plain_number(reward)
        except (TypeError, ValueError, ArithmeticError, RuntimeError):
            raise self._fault(f"the reward is {short(reward)}, which is not a number") from None
        try:
            terminated, truncated = plain_end(terminated, "terminated"), plain_end(truncated, "truncated")
        except UnfitError as error:
            raise self._fault(f"step() returned {error}") from None
        if not abs(number) <= LARGEST:
            _blame_policy(action, self._where())
            raise self._fault(f"the reward is {number}, which is not a finite float32")
        info = with_plain_success(info, self._called)
        return self._observation(observation, "step()"), number, terminated, truncated, info

    def render(self) -> Any:
        """See gymnasium."""
        try:
            with stepping:
                return copy.deepcopy(self.env.render())
        except RAISED as error:
            raise fault(f"{self._where()}: render()", error) from error

    def close(self) -> None:
        """See gymnasium. Logs errors instead of raising, so that results are not lost."""
        try:
            with making:
                self.env.close()  # type: ignore[no-untyped-call]
        except Exception:
            logger.warning("Can't close the environment %s.", self._called, exc_info=True)

    def _observation(self, observation: Any, of: str) -> Any:
        try:
            return self._fitting(observation)
        except UnfitError as error:
            raise self._fault(f"{of} returned {error}") from None

    def _where(self) -> str:
        return f"Environment {self._called}, step {self._step} of episode {self._episode}"

    def _fault(self, what: str) -> FaultyEnvironmentError:
        return FaultyEnvironmentError(f"{self._where()}: {what}. Fix the environment.")


class CheckedVectorEnv(gym.vector.VectorWrapper):
    """Checks and copies a vector environment's observations, and checks its rewards, as `CheckedEnv` does.

    Args:
        env: the environment.
        name: its name in errors.
        limit: the step limit that it is registered with; None for none.

    Raises:
        FaultyEnvironmentError: from ``reset`` and ``step``.
    """

    def __init__(self, env: gym.vector.VectorEnv[Any, Any, Any], name: str, limit: int | None = None):
        super().__init__(env)
        self._called, self._limit = name, limit
        self._steps = np.zeros(env.num_envs, np.int64)
        self._fitting = fitting(env.observation_space, Say(name))

    def reset(self, **options: Any) -> tuple[Any, dict[str, Any]]:
        """See gymnasium."""
        try:
            with making:
                observations, info = self.env.reset(**options)
        except RAISED as error:
            raise fault(f"Environment {self._called}: reset()", error) from error
        self._steps[:] = 0
        return self._observations(observations, "reset()"), info

    def step(self, actions: Any) -> Any:
        """See gymnasium."""
        try:
            given = fitted(copied(actions), self.env.action_space)
            with stepping:
                observations, rewards, terminated, truncated, info = self.env.step(given)
        except RAISED as error:
            raise fault(f"Environment {self._called}: step()", error) from error
        rewards = np.array(plain(rewards))
        try:
            ends = [plain_ends(*said, self.num_envs) for said in ((terminated, "terminated"), (truncated, "truncated"))]
        except UnfitError as error:
            raise FaultyEnvironmentError(
                f"Environment {self._called}: step() returned {error}. Fix the environment."
            ) from None
        if rewards.dtype.kind not in "biuf" or not np.maximum.reduce(np.abs(rewards), axis=None) <= LARGEST:
            _blame_policy(actions, f"Environment {self._called}")
            raise FaultyEnvironmentError(
                f"Environment {self._called}: step() returned the rewards {short(rewards)}, which are not all finite float32s. Fix "
                "the environment."
            )
        if self._limit is not None:
            self._count(ends[0] | ends[1])
        return self._observations(observations, "step()"), rewards, *ends, info

    def _count(self, ended: Any) -> None:
        """Count the steps of each copy's episode; one that has ended begins its next with the next step, which is not counted."""
        self._steps += 1
        if self._limit is not None and (self._steps > self._limit).any():
            raise FaultyEnvironmentError(
                f"Environment {self._called}: an episode of its vector_entry_point goes on after max_episode_steps={self._limit}. "
                "Truncate episodes there, or register it without vector_entry_point."
            )
        self._steps[ended] = -1

    def _observations(self, observations: Any, of: str) -> Any:
        try:
            return self._fitting(observations)
        except UnfitError as error:
            raise FaultyEnvironmentError(
                f"Environment {self._called}: {of} returned {error}, in a batch of {self.num_envs} copies. Fix the environment."
            ) from None


def _blame_policy(action: Any, where: str) -> None:
    """Raise an error if ``action`` explains a step that is not finite."""
    if isinstance(action, np.ndarray) and action.dtype.kind == "f" and not np.isfinite(action).all():
        unfit = action if action.ndim < 2 else action[~np.isfinite(action).reshape(len(action), -1).all(1)][0]
        raise FaultyEnvironmentError(
            f"{where}: the policy acts with {short(unfit)}, because its weights are not finite. Lower the learning rate."
        )


TRIED_STEPS = 3
"""Steps in which faults of an environment are looked for before a run starts."""


def try_out(env: gym.Env[Any, Any], look: Callable[[Any], Any] = lambda observation: None) -> None:
    """Reset ``env`` and take a few random steps, to find faults before a run starts; ``look`` at each observation.

    Raises:
        FaultyEnvironmentError: the environment has a fault.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # gymnasium's: about harmless things or errors raised here
        env.action_space.seed(0)
        look(env.reset(seed=0)[0])
        for _ in range(TRIED_STEPS):
            observation, _, terminated, truncated, _ = env.step(env.action_space.sample())
            look(observation)
            if terminated or truncated:
                return
