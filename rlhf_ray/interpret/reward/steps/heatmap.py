"""The reward of every move in a grid world: drawn, and as a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.collections import PolyCollection
from matplotlib.colors import CenteredNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.data.errors import Fault
from rlhf_ray.envs import make_env
from rlhf_ray.envs.gridworld import GridStates
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.statistics import constant, pearson
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Every move in the grid"
MOST_LAYERS = 4
"""Layers drawn."""
SHOWN = 5
"""Moves in the table, from either end."""

STAY = (0, 0)
NAMES = {STAY: "stay", (-1, 0): "up", (0, 1): "right", (1, 0): "down", (0, -1): "left"}
"""Of the moves, by (rows, columns)."""
COLOURS = "RdBu_r"
INVALID, WALL, OVER = "#d9d9d9", "#555555", "#f2f2f2"
_TURN = np.linspace(0, 2 * np.pi, 24, endpoint=False)
_CIRCLE = 0.19 * np.stack([np.cos(_TURN), np.sin(_TURN)], 1)


@dataclass(frozen=True)
class MoveValues:
    """The reward of each move in a grid world: float64 ``[S, A]``; NaN where a move is not valid (see `valid_moves`)."""

    name: str  # short name of the reward
    states: GridStates
    values: FloatArray


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the step does not apply; None if it does."""
    subject = context.subject
    if subject.environment is None:
        return "The environment is unknown, so there is no grid to draw."
    env = _grid(subject.environment)
    if env is None:
        return f"{subject.environment} is no grid world whose states can be listed."
    fits = env.observation_space.shape == subject.reward.observation_space.shape
    return None if fits else f"The reward takes other observations than {subject.environment} gives."


def run(context: StepContext[Subject]) -> Section:
    """Compute, draw and list the reward of every move, beside the true one."""
    env = _grid(str(context.subject.environment))
    states = env.grid_states()
    panels = [
        move_values(context.subject.scaled, states, "this reward"),
        move_values(context.subject.truth or env.ground_truth(), states, "true reward"),
    ]
    valid, listed = valid_moves(states), moves(panels)
    given, true = (panel.values[valid] for panel in panels)
    correlation = None if constant(given) or constant(true) else pearson(given, true)
    order = np.argsort(-given, kind="stable")
    best_and_worst = [listed[i] for i in (*order[:SHOWN], *order[SHOWN:][-SHOWN:])]
    rows = [[round(cell, 4) if isinstance(cell, float) else cell for cell in row] for row in best_and_worst]
    alike = "" if correlation is None else f" Over all moves, correlation with the true reward {correlation:.2f}."
    caption = (
        "The reward of each move: a triangle for a step in its direction, a circle for staying. Hatched: the move leads against a "
        f"wall, or the state never occurs. G: goal, K: key. White: the median move of the panel.{alike}"
    )
    image = png(draw(panels, range(min(MOST_LAYERS, len(states.layers)))))
    columns = ["layer", "row", "column", "move", *(panel.name for panel in panels)]
    tables, pictures = [Table(columns, rows, "The moves worth most and least.")], [Picture("moves", image, caption)]
    values = {"columns": columns, "moves": listed, "correlation": correlation}
    return Section("heatmap", TITLE, (), (), tables, pictures, (), values)


def valid_moves(states: GridStates) -> BoolArray:
    """Return which moves do what they say, ``[S, A]``: not those against a wall, nor any where the episode is over."""
    moves = np.array(states.moves)
    row, column = (at[:, None] + moves[:, axis] for axis, at in enumerate((states.rows, states.columns)))
    leads = (states.rows[states.next_states] == row) & (states.columns[states.next_states] == column)
    return np.asarray(leads & ~states.terminal[:, None])


def move_values(reward: RewardFunction, states: GridStates, name: str) -> MoveValues:
    """Compute the reward of each move; ``states`` are from the environment's ``grid_states()``, ``name`` is the panel's."""
    valid, seen = valid_moves(states), states.observations
    state, action = np.nonzero(valid)
    after = states.next_states[state, action]
    values = np.full(valid.shape, np.nan)
    values[state, action] = reward(seen[state], action, seen[after], states.terminal[after])
    return MoveValues(name, states, values)


def moves(panels: Sequence[MoveValues]) -> list[list[Any]]:
    """List each valid move: layer, row, column, move, and the value of each panel."""
    states = panels[0].states
    return [
        [
            states.layers[states.layer[state]],
            int(states.rows[state]),
            int(states.columns[state]),
            NAMES[states.moves[action]],
            *(float(panel.values[state, action]) for panel in panels),
        ]
        for state, action in np.argwhere(valid_moves(states))
    ]


def draw(panels: Sequence[MoveValues], layers: Sequence[int]) -> Figure:
    """Draw the reward of each move: a column for each panel and a row for each of ``layers``.

    Each state is a cell with a triangle for each of four moves and a circle for staying. Moves that are not valid are grey and
    hatched, walls dark. G marks a goal, K a key. Each panel has its own colours, and its median move is white, so that rewards that
    differ by a factor or a constant look alike.
    """
    states = panels[0].states
    height = 0.6 + 3.2 * states.grid[0] / max(states.grid)
    figure = Figure((0.4 + 4.2 * len(panels), height * len(layers)), layout="constrained")
    grid = figure.subplots(len(layers), len(panels), squeeze=False)
    for column, panel in enumerate(panels):
        centre = float(np.nanmedian(panel.values))
        reach = float(np.nanmax(np.abs(panel.values - centre)))
        norm = CenteredNorm(centre, reach if reach > 1e-9 * max(1.0, abs(centre)) else 1.0)
        for row, layer in enumerate(layers):
            _draw_layer(grid[row, column], panel, layer, norm)
            title = ", ".join(part for part in (panel.name, states.layers[layer]) if part)
            grid[row, column].set_title(title, fontsize=9, wrap=True)
        figure.colorbar(ScalarMappable(norm, COLOURS), ax=grid[:, column].tolist(), label="reward", shrink=0.8)
    return figure


def _draw_layer(axes: Axes, panel: MoveValues, layer: int, norm: Normalize) -> None:
    """Draw one layer of one panel. The cell (row, column) has its middle at x = column, y = row."""
    states, there = panel.states, panel.states.layer == layer
    live = np.flatnonzero(there & ~states.terminal)
    middles = np.stack([states.columns[live], states.rows[live]], 1)[:, None]
    for action, move in sorted(enumerate(states.moves), key=lambda each: each[1] == STAY):  # circles on top
        shapes, values = middles + (_CIRCLE if move == STAY else triangle(move)), panel.values[live, action]
        valid = np.isfinite(values)
        wrong = list(shapes[~valid])
        axes.add_collection(PolyCollection(wrong, facecolor=INVALID, edgecolor="#aaaaaa", hatch="////", lw=0.3))
        colours: dict[str, Any] = {"array": values[valid], "cmap": COLOURS, "norm": norm}
        axes.add_collection(PolyCollection(list(shapes[valid]), **colours, edgecolor="#999999", lw=0.3))
    over, seen = np.zeros(states.grid, bool), states.walls.copy()
    ended = there & states.terminal
    over[states.rows[ended], states.columns[ended]] = True
    seen[states.rows[there], states.columns[there]] = True  # not the key's cell without the key
    for cells, colour, hatch in ((over, OVER, ""), (states.walls, WALL, ""), (~seen, INVALID, "////")):
        for row, column in np.argwhere(cells):
            corner = (column - 0.5, row - 0.5)
            axes.add_patch(Rectangle(corner, 1, 1, facecolor=colour, edgecolor="#aaaaaa", hatch=hatch, lw=0, zorder=1))
    halo = [withStroke(linewidth=1.5, foreground="white")]
    for letter, marked in states.marks[layer].items():
        for row, column in marked:
            axes.add_patch(Rectangle((column - 0.5, row - 0.5), 1, 1, fill=False, edgecolor="black", lw=1.4, zorder=3))
            how: dict[str, Any] = {"fontsize": 6, "weight": "bold", "va": "top", "zorder": 4, "path_effects": halo}
            axes.text(column - 0.46, row - 0.44, letter, **how)
    axes.set(xlim=(-0.5, states.grid[1] - 0.5), ylim=(states.grid[0] - 0.5, -0.5), aspect="equal", xticks=[], yticks=[])


def triangle(move: tuple[int, int]) -> FloatArray:
    """Return the corners (x, y) ``[3, 2]`` of a move's triangle about a cell's middle: two of its corners, and the middle."""
    down, right = move
    along = np.array([right, down]) / 2
    across = np.array([down, right]) / 2
    return np.stack([along - across, along + across, np.zeros(2)])


def _grid(name: str) -> Any:
    """The environment without its wrappers; None unless it is a grid world."""
    try:
        env = make_env(name).unwrapped
    except (ValueError, ImportError, Fault, gymnasium.error.Error):
        return None
    return env if hasattr(env, "grid_states") and hasattr(env, "ground_truth") else None


STEP = Step("heatmap", TITLE, run, why_not=why_not)
