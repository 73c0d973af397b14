"""Steps of a vector environment as arrays, and what it says about them besides the reward: success, and other numbers.

An episode has succeeded if any of its steps says so (``success`` or ``is_success`` in its info), as in Meta-World's results. A step
says so by true or false, 1 or 0, also as an array of one number. NaN and None say nothing, like an info without the name; any other
value says nothing either, and is logged once. Once the environment has said anything about success, all its episodes count, and
those in which no step says that it succeeded count as failed.
"""

import logging
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.data.fragments import Trajectory


@dataclass(frozen=True)
class VectorRollout:
    """``steps`` steps of ``copies`` of an environment, with next-step autoreset.

    The step after an episode's end starts the next episode: it has no action and no reward, and doesn't count (`real`). So the
    observation after each step that counts is in the next row.

    Attributes:
        observations: ``[steps + 1, copies, *observation_shape]``, of the environment's dtype.
        actions: ``[steps, copies, *action_shape]``: the policy's (`rlhf_ray.policies.actions` has the environment's).
        log_probabilities: ``[steps, copies]`` float32: of the actions.
        rewards: ``[steps, copies]`` float64: the true rewards.
        terminated, truncated: ``[steps, copies]`` bool: whether the step ended its episode.
        real: ``[steps, copies]`` bool: False where a copy was reset instead.
        starts: ``[copies]`` int64: steps of the episode before the first row; of a copy that is reset there, those of the episode
            that has ended.
        version: of the policy that acted.
        source: number of the env runner.
    """

    observations: Array
    actions: Array
    log_probabilities: FloatArray
    rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    real: BoolArray
    starts: IntArray
    version: int
    source: int = 0

    def __len__(self) -> int:
        return int(self.real.sum())

    env_steps = agent_steps = __len__
    """What RLlib asks of an episode."""

    @property
    def ended(self) -> BoolArray:
        """``[steps, copies]`` bool: whether the step was its episode's last."""
        return self.terminated | self.truncated

    def pieces(self) -> list[tuple[int, slice]]:
        """Return each episode's rows: its copy, and the rows that count, in the order of the copies and of time."""
        episodes = []
        for copy in range(self.real.shape[1]):
            # The row after an episode's end is a reset; one at the very beginning belongs to the rollout before.
            begin = 0 if self.real[0, copy] else 1
            for end in [*np.flatnonzero(self.ended[:, copy]).tolist(), len(self.real) - 1]:
                if begin <= end:
                    episodes.append((copy, slice(begin, end + 1)))
                begin = end + 2
        return episodes

    def _start(self, copy: int, rows: slice) -> int:
        return int(self.starts[copy]) if rows.start == 0 else 0

    def episode_lengths(self) -> tuple[int, ...]:
        """Return the number of steps of each episode that ended."""
        ended = [(copy, rows) for copy, rows in self.pieces() if self.ended[rows.stop - 1, copy]]
        return tuple(rows.stop - rows.start + self._start(copy, rows) for copy, rows in ended)

    def trajectories(self, env_actions: Array) -> list[Trajectory]:
        """Return each episode's steps, as views.

        Args:
            env_actions: ``[steps, copies, *action_shape]``, as given to the environment.
        """
        return [
            Trajectory(
                self.observations[rows.start : rows.stop + 1, copy],
                env_actions[rows, copy],
                self.rewards[rows, copy],
                bool(self.terminated[rows.stop - 1, copy]),
                self._start(copy, rows),
            )
            for copy, rows in self.pieces()
        ]


SUCCESS = ("success", "is_success")
"""Names under which environments say that a step reached the task's goal."""

logger = logging.getLogger(__name__)

_logged: set[str] = set()
"""Environments whose odd successes were logged in this process."""


def with_plain_success(info: dict[str, Any], environment: str) -> dict[str, Any]:
    """Return the info of one environment with plain successes only: one number, 0 or 1; what says nothing is left out.

    Vectorised infos mix up other values: gymnasium's array of booleans makes true of NaN.

    The given info stays as it is. The environment's name is for the log.
    """
    said = {name: _plain(info[name], name, environment) for name in SUCCESS if name in info}
    if all(value is info[name] is not None for name, value in said.items()):
        return info
    kept = {name: value for name, value in info.items() if name not in said}
    return kept | {name: value for name, value in said.items() if value is not None}


def _plain(value: Any, name: str, environment: str) -> Any:
    """Return one success as a number that is 0 or 1, or a boolean; None if it says nothing."""
    if isinstance(value, bool | np.bool_) or value is None:
        return value
    try:
        array = np.asarray(value)
    except (ValueError, TypeError, RuntimeError):  # rows of different lengths, a tensor with a gradient, …
        array = np.empty(0)
    if array.size == 1:
        said = array.item()
        if said is None or said != said:  # NaN
            return None
        if array.dtype.kind in "biuf" and said in (0, 1):
            return said if array.ndim or isinstance(value, np.ndarray) else value
    _log_odd(value, name, environment)
    return None


def _log_odd(value: Any, name: str, environment: str) -> None:
    if environment not in _logged:
        _logged.add(environment)
        logger.warning(
            "Environment %s: %r in the info of a step is %s, which is neither true nor false, 1 nor 0; it counts as unknown. "
            "NaN and None say that it is unknown.",
            environment,
            name,
            textwrap.shorten(repr(value), 60, placeholder="..."),
        )


class Infos:
    """Follows what the copies of a vector environment (next-step autoreset) say about their episodes.

    Args:
        copies: their number.
        environment: its name, for the log.

    Attributes:
        known: whether the environment has said anything about success so far.
    """

    def __init__(self, copies: int, environment: str):
        self.known, self._environment = False, environment
        self._so_far: BoolArray = np.zeros(copies, bool)
        self._ended: BoolArray = np.zeros(copies, bool)
        self._sums: dict[str, tuple[float, int]] = {}

    def see(self, infos: Mapping[str, Any], ended: BoolArray) -> BoolArray:
        """Take in a step: its infos, and whether each copy's episode has ended with it.

        Returns:
            Whether the episodes that have ended succeeded, in the order of their copies; it means something only if `known`.
        """
        real = ~self._ended  # the others have started their next episode
        for name in SUCCESS:
            if name in infos:
                succeeded, said = self._successes(infos, name)
                self._so_far |= real & succeeded
                self.known = self.known or bool((real & said).any())
        for name, values in infos.items():
            number = isinstance(values, np.ndarray) and values.dtype.kind == "f" and values.shape == real.shape
            if name not in SUCCESS and number:
                counted = real & _told(infos, name) & ~np.isnan(values)
                total, count = self._sums.get(name, (0.0, 0))
                self._sums[name] = total + float(values[counted].sum()), count + int(counted.sum())
        self._ended = np.array(ended, bool)
        ended_well = self._so_far[self._ended]
        self._so_far[self._ended] = False
        return ended_well

    def _successes(self, infos: Mapping[str, Any], name: str) -> tuple[BoolArray, BoolArray]:
        """Return which copies say by ``name`` that their step succeeded, and which say anything."""
        values, copies = infos[name], len(self._ended)
        if not isinstance(values, np.ndarray | list | tuple) or len(values) != copies:
            _log_odd(values, name, self._environment)
            values = [None] * copies
        told = np.broadcast_to(_told(infos, name), copies)
        if isinstance(values, np.ndarray) and values.dtype == bool and values.shape == (copies,):
            return values & told, told
        said = zip(values, told, strict=True)
        plain = [_plain(value, name, self._environment) if tells else None for value, tells in said]
        return np.array([bool(value) for value in plain]), np.array([value is not None for value in plain])

    def means(self) -> dict[str, float]:
        """Return the mean of each number that isn't whole over all steps since the last call that say it (not as NaN), by name."""
        sums, self._sums = self._sums, {}
        return {name: total / count for name, (total, count) in sums.items() if count}


def _told(infos: Mapping[str, Any], name: str) -> Any:
    """Return for which copies gymnasium's infos say ``name``: without a mask, for all.

    A mask that has one of its own is a value of the environment's instead.
    """
    return True if f"__{name}" in infos else infos.get(f"_{name}", True)
