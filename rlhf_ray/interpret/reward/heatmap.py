"""Heat maps: the reward of every move in a grid world, drawn and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Polygon
from matplotlib.patheffects import withStroke

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.grid_states import GridStates
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Table

STAY = (0, 0)
NAMES = {STAY: "stay", (-1, 0): "up", (0, 1): "right", (1, 0): "down", (0, -1): "left"}
"""Of the moves, by (rows, columns)."""

COLOURS = "RdBu_r"
INVALID, WALL, OVER = "#d9d9d9", "#555555", "#f2f2f2"
STAY_RADIUS = 0.19

_TURN = np.linspace(0, 2 * np.pi, 24, endpoint=False)
_CIRCLE = STAY_RADIUS * np.stack([np.cos(_TURN), np.sin(_TURN)], 1)

Scale = Literal["common", "panel"]


@dataclass(frozen=True)
class MoveValues:
    """The reward of each move in a grid world.

    Attributes:
        name: short name of the reward.
        states: the states.
        values: ``[S, A]`` float64; NaN where a move is not valid: it leads against a wall, or the episode is over.
    """

    name: str
    states: GridStates
    values: FloatArray

    @property
    def valid(self) -> BoolArray:
        """Which moves are valid, ``[S, A]``."""
        return valid_moves(self.states)


def valid_moves(states: GridStates) -> BoolArray:
    """Return which moves do what they say, ``[S, A]``: not those against a wall, nor any where the episode is over."""
    moves = np.array(states.moves)
    row, column = (at[:, None] + moves[:, axis] for axis, at in enumerate((states.rows, states.columns)))
    leads = (states.rows[states.next_states] == row) & (states.columns[states.next_states] == column)
    valid: BoolArray = leads & ~states.terminal[:, None]
    return valid


def move_values(reward: RewardFunction, states: GridStates, name: str = "") -> MoveValues:
    """Compute the reward of each move.

    Args:
        reward: any reward function whose observations are those of ``states``.
        states: from the environment's ``grid_states()``.
        name: of the panel; the reward's own if empty.

    Raises:
        SettingError: the reward takes other observations.
    """
    shape = states.observations.shape[1:]
    if tuple(reward.observation_space.shape or ()) != shape:
        raise SettingError(
            f"The reward {reward.name!r} takes observations of shape {reward.observation_space.shape}, but those of the grid world "
            f"have the shape {shape}; use the environment that it was made for."
        )
    valid = valid_moves(states)
    state, action = np.nonzero(valid)
    after = states.next_states[state, action]
    values = np.full(valid.shape, np.nan)
    values[state, action] = reward(
        states.observations[state], action, states.observations[after], states.terminal[after]
    )
    return MoveValues(name or reward.name, states, values)


def value_table(panels: Sequence[MoveValues]) -> Table:
    """Return all valid moves as a table: layer, row, column, move, and the value in each panel."""
    states = panels[0].states
    rows = [
        [
            states.layers[states.layer[state]],
            int(states.rows[state]),
            int(states.columns[state]),
            NAMES[states.moves[action]],
            *(float(panel.values[state, action]) for panel in panels),
        ]
        for state, action in np.argwhere(panels[0].valid)
    ]
    return Table(
        ["layer", "row", "column", "move", *(panel.name for panel in panels)], rows, "The reward of each move."
    )


def heatmap(panels: Sequence[MoveValues], scale: Scale = "common", layers: Sequence[int] | None = None) -> bytes:
    """Draw the reward of each move, as `draw` does: a PNG."""
    return png(draw(panels, scale, layers))


def draw(panels: Sequence[MoveValues], scale: Scale = "common", layers: Sequence[int] | None = None) -> Figure:
    """Draw the reward of each move: a column for each panel and a row for each layer.

    Each state is a cell with a triangle for each of four moves and a circle for staying. Moves that are not valid are grey and
    hatched, walls dark. G marks a goal, K a key.

    Args:
        panels: rewards of the same states, for example before and after preprocessing.
        scale: common: all panels share their colours, and 0 is white; panel: each has its own, and its median move is white,
            so that rewards that differ by a factor or a constant look alike.
        layers: layers to draw; all if None.
    """
    states = panels[0].states
    layers = list(range(len(states.layers))) if layers is None else list(layers)
    height = 0.6 + 3.2 * states.grid[0] / max(states.grid)
    figure = Figure((0.4 + 4.2 * len(panels), height * len(layers)), layout="constrained")
    grid = figure.subplots(len(layers), len(panels), squeeze=False)
    norms = _norms(panels, scale)
    for column, (panel, norm) in enumerate(zip(panels, norms, strict=True)):
        for row, layer in enumerate(layers):
            _draw_layer(grid[row, column], panel, layer, norm)
            title = ", ".join(part for part in (panel.name, states.layers[layer]) if part)
            grid[row, column].set_title(title, fontsize=9, wrap=True)
        if scale == "panel" or column == len(panels) - 1:
            where = grid[:, column].tolist() if scale == "panel" else grid.ravel().tolist()
            figure.colorbar(ScalarMappable(norm, COLOURS), ax=where, label="reward", shrink=0.8)
    return figure


def _norms(panels: Sequence[MoveValues], scale: Scale) -> list[Normalize]:
    """The colour scale of each panel; white is 0 (common) or the panel's median."""

    def around(centre: float, values: FloatArray) -> Normalize:
        seen = values[np.isfinite(values)]
        reach = float(np.abs(seen - centre).max()) if len(seen) else 0.0
        reach = reach if reach > 1e-9 * max(1.0, abs(centre)) else 1.0
        return Normalize(centre - reach, centre + reach)

    if scale == "common":
        norm = around(0.0, np.concatenate([panel.values.ravel() for panel in panels]))
        return [norm] * len(panels)
    return [around(_median(panel.values), panel.values) for panel in panels]


def _median(values: FloatArray) -> float:
    seen = values[np.isfinite(values)]
    return float(np.median(seen)) if len(seen) else 0.0


def _draw_layer(axes: Axes, panel: MoveValues, layer: int, norm: Normalize) -> None:
    """Draw one layer of one panel. The cell (row, column) has its middle at x = column, y = row."""
    states = panel.states
    shapes = {move: _CIRCLE if move == STAY else np.array(triangle(0.0, 0.0, move)) for move in states.moves}
    for invalid in (True, False):
        corners, values = list[Any](), list[float]()
        for action in sorted(
            range(len(states.moves)), key=lambda action: states.moves[action] == STAY
        ):  # circles on top
            for state in np.flatnonzero((states.layer == layer) & ~states.terminal):
                if np.isnan(panel.values[state, action]) == invalid:
                    at = np.array([states.columns[state], states.rows[state]])
                    corners.append(shapes[states.moves[action]] + at)
                    values.append(panel.values[state, action])
        if invalid:
            axes.add_collection(PolyCollection(corners, facecolor=INVALID, edgecolor="#aaaaaa", hatch="////", lw=0.3))
        else:
            colours: dict[str, Any] = {"array": np.array(values), "cmap": COLOURS, "norm": norm}
            axes.add_collection(PolyCollection(corners, **colours, edgecolor="#999999", lw=0.3))
    over = np.zeros(states.grid, bool)
    ended = (states.layer == layer) & states.terminal
    over[states.rows[ended], states.columns[ended]] = True
    for cells, colour, hatch in (
        (over, OVER, ""),
        (states.walls, WALL, ""),
        (_unreached(states, layer), INVALID, "////"),
    ):
        squares = [_square(row, column) for row, column in np.argwhere(cells)]
        axes.add_collection(PolyCollection(squares, facecolor=colour, edgecolor="#aaaaaa", hatch=hatch, lw=0))
    halo = [withStroke(linewidth=1.5, foreground="white")]
    for letter, marked in states.marks[layer].items():
        for row, column in marked:
            axes.add_patch(Polygon(_square(row, column), fill=False, edgecolor="black", lw=1.4, zorder=3))
            axes.text(
                column - 0.46, row - 0.44, letter, fontsize=6, weight="bold", va="top", zorder=4, path_effects=halo
            )
    axes.set(xlim=(-0.5, states.grid[1] - 0.5), ylim=(states.grid[0] - 0.5, -0.5), aspect="equal", xticks=[], yticks=[])


def _unreached(states: GridStates, layer: int) -> BoolArray:
    """Cells without a state in ``layer``, ``[rows, columns]``: the key's cell without the key."""
    there = states.walls.copy()
    of = states.layer == layer
    there[states.rows[of], states.columns[of]] = True
    return ~there


def triangle(row: float, column: float, move: tuple[int, int]) -> list[tuple[float, float]]:
    """Return the corners (x, y) of the triangle of ``move`` in a cell: two corners of the cell and its middle."""
    down, right = move
    if right == 0:
        edge = [(column - 0.5, row + 0.5 * down), (column + 0.5, row + 0.5 * down)]
    else:
        edge = [(column + 0.5 * right, row - 0.5), (column + 0.5 * right, row + 0.5)]
    return [*edge, (column, row)]


def _square(row: float, column: float) -> list[tuple[float, float]]:
    return [(column + x, row + y) for x, y in ((-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5))]
