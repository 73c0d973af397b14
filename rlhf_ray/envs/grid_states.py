"""Grid states: every state of a grid environment and where each move leads, for tools that look at all moves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rlhf_ray.data.arrays import Array, BoolArray, IntArray


@dataclass(frozen=True)
class GridStates:
    """The ``S`` states of a deterministic grid environment.

    Attributes:
        grid: (rows, columns).
        layers: names of the layers, for example ``without key`` and ``with key``, or one for each level.
        layer: ``[S]``: the layer of each state.
        rows: ``[S]``: the agent's row.
        columns: ``[S]``: the agent's column.
        observations: ``[S, *observation_shape]``.
        next_states: ``[S, A]``: the state that each action leads to.
        moves: (rows, columns) of each action.
        terminal: ``[S]``: whether the episode is over there.
        walls: ``[rows, columns]``.
        marks: for each layer, cells by letter: ``G`` goal, ``K`` key.
    """

    grid: tuple[int, int]
    layers: Sequence[str]
    layer: IntArray
    rows: IntArray
    columns: IntArray
    observations: Array
    next_states: IntArray
    moves: Sequence[tuple[int, int]]
    terminal: BoolArray
    walls: BoolArray
    marks: Sequence[Mapping[str, Sequence[tuple[int, int]]]]

    def __len__(self) -> int:
        return len(self.layer)
