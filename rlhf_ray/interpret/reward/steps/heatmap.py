"""Report section: the reward of every move in a grid world."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from rlhf_ray.data.errors import Fault
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward.heatmap import NAMES, MoveValues, heatmap, move_values, value_table
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.study.section import Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "heatmap"
TITLE = "Every move in the grid"

MOST_LAYERS = 4
"""Layers drawn."""
SHOWN = 5
"""Moves in the table, from either end."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the tool does not apply; None if it does."""
    subject = context.subject
    if subject.environment is None:
        return "The environment is unknown, so there is no grid to draw."
    env = _grid(subject.environment)
    if env is None:
        return f"{subject.environment} is no grid world whose states can be listed."
    if env.observation_space.shape != subject.reward.observation_space.shape:
        return f"The reward takes other observations than {subject.environment} gives."
    return None


def run(context: StepContext[Subject]) -> Section:
    """Compute, draw and list the reward of every move, beside the true one."""
    subject = context.subject
    env = _grid(str(subject.environment))
    assert env is not None, "why_not() says so"
    states = env.grid_states()
    panels = [
        move_values(subject.reward, states, "this reward"),
        move_values(env.ground_truth(), states, "true reward"),
    ]
    given, true = (panel.values[panel.valid] for panel in panels)
    spread = float(given.std())
    constant = spread <= 1e-9 * max(1.0, float(np.abs(given).max()))
    alike = pearson(given, true)
    correlation = None if constant or np.isnan(alike) else alike
    table = value_table(panels)
    caption = (
        "The reward of each move: a triangle for a step in its direction, a circle for staying. Hatched: the move leads "
        "against a wall, or the state never occurs. G: goal, K: key. White: the median move of the panel."
    )
    picture = Picture("moves", heatmap(panels, "panel", range(min(MOST_LAYERS, len(states.layers)))), caption)
    values = {
        "columns": list(table.columns),
        "moves": [list(row) for row in table.rows],
        "correlation": correlation,
        "standard_deviation": spread,
    }
    if constant:
        text = f"All {len(given)} moves of the grid get the same reward, {given[0]:.3g}."
        return Section(NAME, TITLE, [Statement("warning", text, 5.0)], pictures=[picture], values=values)
    order = np.argsort(-given, kind="stable")
    shown = [*order[:SHOWN], *order[SHOWN:][-SHOWN:]]
    extremes = Table(table.columns, [_rounded(table.rows[i]) for i in shown], "The moves worth most and least.")
    return Section(
        NAME, TITLE, _statements(panels[0], given, correlation), tables=[extremes], pictures=[picture], values=values
    )


def _statements(panel: MoveValues, given: Any, correlation: float | None) -> list[Statement]:
    states, (state, action) = panel.states, np.argwhere(panel.valid)[int(given.argmax())]
    layer = states.layers[states.layer[state]]
    best, middle = float(given.max()), float(np.median(given))
    where = f"{NAMES[states.moves[action]]} at ({states.rows[state]}, {states.columns[state]})"
    text = (
        f"Of {len(given)} moves in the grid, {where}{f' ({layer})' if layer else ''} is worth most: {best:.3g}; the median move "
        f"gives {middle:.3g}."
    )
    found = [Statement("rewards", text, min(3.0, (best - middle) / float(given.std())))]
    if correlation is None:
        return found
    if correlation > 0.9:
        text = f"Move by move it agrees with the true reward: over all moves they correlate {correlation:.2f}."
        return [*found, Statement("rewards", text, 1.0)]
    text = (
        f"Move by move it differs from the true reward: over all moves they correlate {correlation:.2f}. Potential shaping "
        "alone can do that; the distances and the incentive test tell."
    )
    return [*found, Statement("warning", text, 1.0)]


def _grid(name: str) -> Any:
    """The environment without its wrappers; None unless it is a grid world."""
    try:
        env = make_env(name).unwrapped
    except (ValueError, ImportError, Fault, gymnasium.error.Error):
        return None
    return env if hasattr(env, "grid_states") and hasattr(env, "ground_truth") else None


def _rounded(row: Any) -> list[Any]:
    return [round(each, 4) if isinstance(each, float) else each for each in row]


STEP = Step(NAME, TITLE, run, why_not=why_not)
