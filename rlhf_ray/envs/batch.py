"""EnvBatch: copies of an environment that tools can question: play given levels, save and restore states, edit levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import gymnasium as gym

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray


@dataclass(frozen=True)
class BatchStep:
    """What a step of ``n`` copies returns.

    Attributes:
        observations: ``[n, …]``.
        rewards: true rewards, ``[n]``; 0 where the episode had ended before.
        terminated, truncated: whether the episode has ended, now or before, ``[n]``.
        causes: why each episode ended, for example saw, pit, coin or timeout; empty if it has not or the cause is unknown.
    """

    observations: Array
    rewards: FloatArray
    terminated: BoolArray
    truncated: BoolArray
    causes: Sequence[str]


class EnvBatch(Protocol):
    """``n`` copies of an environment, each playing one episode. An ended copy stands still: its actions are ignored.

    Attributes:
        name: the environment's name.
        n: number of copies.
        observation_space, action_space: of one copy.
        action_names: what each Discrete action does; empty if unknown.
        edits: changes of a level that the environment offers, with what each does, for example ``{"remove_saw": "…"}``.
    """

    name: str
    n: int
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    action_names: Sequence[str]
    edits: Mapping[str, str]

    def reset(self, levels: Sequence[int]) -> Array:
        """Start an episode of each level (a seed); return observations ``[n, …]``."""
        ...

    def step(self, actions: Array) -> BatchStep:
        """Step all copies with environment actions ``[n, …]``."""
        ...

    def states(self) -> list[bytes]:
        """Return the state of each copy: with the same actions, a restored copy repeats everything exactly.

        Raises:
            SettingError: the environment can't save its state.
        """
        ...

    def restore(self, states: Sequence[bytes]) -> Array:
        """Restore states, of any copies of this environment; return observations ``[n, …]``."""
        ...

    def describe(self) -> dict[str, Array]:
        """Return what each copy says about its state, ``[n, …]`` by name: concepts such as ``saw_ahead`` or ``jump_phase``."""
        ...

    def masks(self) -> dict[str, BoolArray]:
        """Return where each kind of object is in the images, ``[n, height, width]`` by name; empty if unknown."""
        ...

    def edit(self, name: str, rows: BoolArray | None = None) -> Array:
        """Change the current level of ``rows`` (default: all) by an edit of `edits`; return observations ``[n, …]``.

        An edit that has nothing to change, for example no saw in sight, leaves the level as it is.
        """
        ...

    def close(self) -> None:
        """Free the copies."""
        ...
