"""Episodes: what an agent did and had in mind, as a struct of padded arrays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

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
