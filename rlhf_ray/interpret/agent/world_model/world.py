"""World: what a simulation needs of a world model. Differentiable, and the same for images and vectors."""

from __future__ import annotations

from typing import Protocol

from torch import Tensor


class World(Protocol):
    """A learned environment for ``n`` episodes at once. Its state is one vector ``[n, size]`` per episode: the world's memory.

    Attributes:
        size: length of the state vector.
        context: number of observations that it starts from.
        agent: digest of the agent whose recording it was trained on.
    """

    size: int
    context: int
    agent: str

    @property
    def digest(self) -> str:
        """Hash of its weights and settings, 16 hex digits."""
        ...

    def begin(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the state ``[n, size]`` at the last of the context's observations.

        Args:
            observations: ``[n, context, …]`` in the environment's units.
            actions: between them, ``[n, context - 1, actions]``: one-hot for Discrete, policy actions for Box.
        """
        ...

    def next(self, state: Tensor, actions: Tensor) -> Tensor:
        """Return the state ``[n, size]`` after actions ``[n, actions]`` (weights of Discrete actions, or policy actions of Box)."""
        ...

    def observe(self, state: Tensor) -> Tensor:
        """Return the observation ``[n, …]`` of a state, float, in the environment's units (images 0..255)."""
        ...

    def reward(self, state: Tensor) -> Tensor:
        """Return the predicted reward ``[n]`` of the step that led to the state."""
        ...

    def end(self, state: Tensor) -> Tensor:
        """Return the logit ``[n]`` that the episode terminated with the step that led to the state."""
        ...
