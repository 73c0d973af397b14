"""Episodes: an agent's actions and activations, as a struct of padded arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray


@dataclass(frozen=True)
class Episodes:
    """``n`` episodes of at most ``T`` steps, whole or from the middle. Rows after an episode's end are padding.

    Attributes:
        observations: ``[n, T + 1, …]``; that at ``lengths[i]`` is the final one.
        actions: environment actions, ``[n, T, …]``.
        logits: inputs of the action distribution, ``[n, T, outputs]`` float32.
        values: ``[n, T]``.
        memory: before each step, ``[n, T + 1, memory_size]`` float32; that at ``lengths[i]`` is the memory after the last step.
        rewards: true rewards, ``[n, T]``.
        lengths: steps of each episode, ``[n]``.
        terminated, truncated: whether it ended so; neither if it was cut.
        causes: why each ended; empty strings if unknown.
        levels: the seed of each level, ``[n]``.
        states: what the environment said about itself, ``[n, T + 1, …]`` by name.
        activations: outputs of layers at each step, ``[n, T, …]`` by name.
        env_states: the environment's states at each observation, ``env_states[i][t]``; empty if not kept.
    """

    observations: Array
    actions: Array
    logits: FloatArray
    values: FloatArray
    memory: FloatArray
    rewards: FloatArray
    lengths: IntArray
    terminated: BoolArray
    truncated: BoolArray
    causes: Sequence[str]
    levels: IntArray
    states: Mapping[str, Array] = field(default_factory=dict)
    activations: Mapping[str, Array] = field(default_factory=dict)
    env_states: Sequence[Sequence[bytes]] = ()

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def returns(self) -> FloatArray:
        """True return of each episode, ``[n]``."""
        returns: FloatArray = (self.rewards * self.real).sum(1)
        return returns

    @property
    def real(self) -> BoolArray:
        """Which steps are no padding, ``[n, T]``."""
        real: BoolArray = np.arange(self.actions.shape[1])[None] < self.lengths[:, None]
        return real

    def select(self, rows: IntArray | Sequence[int]) -> Episodes:
        """Return the episodes ``rows``, in that order."""
        at = np.asarray(rows, np.int64)

        def of(value: Any) -> Any:
            if isinstance(value, Mapping):
                return {name: column[at] for name, column in value.items()}
            return value[at] if isinstance(value, np.ndarray) else [value[row] for row in at] if len(value) else value

        return Episodes(**{each.name: of(getattr(self, each.name)) for each in fields(self)})

    @staticmethod
    def concatenate(parts: Sequence[Episodes]) -> Episodes:
        """Put episodes one after another, padded to the longest. All parts must hold the same fields."""
        steps = max(part.actions.shape[1] for part in parts)

        def of(values: Sequence[Any]) -> Any:
            if isinstance(values[0], Mapping):
                return {name: of([value[name] for value in values]) for name in values[0]}
            if not isinstance(values[0], np.ndarray):
                return [item for value in values for item in value]
            return np.concatenate([_padded(value, steps, part) for value, part in zip(values, parts, strict=True)])

        return Episodes(**{each.name: of([getattr(part, each.name) for part in parts]) for each in fields(Episodes)})


def _padded(values: Array, steps: int, part: Episodes) -> Array:
    """Pad the axis of time, where there is one, from the length of ``part`` to ``steps``."""
    have = part.actions.shape[1]
    if values.ndim < 2 or values.shape[1] not in (have, have + 1) or have == steps:
        return values
    return np.pad(values, [(0, 0), (0, steps - have), *[(0, 0)] * (values.ndim - 2)])
