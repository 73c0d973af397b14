"""The reward of every move in a grid world."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gymnasium
import numpy as np

from rlhf_ray.data.errors import Fault
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward.heatmap import MoveValues, heatmap, move_values, value_table
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.statistics import constant, pearson
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Every move in the grid"
MOST_LAYERS = 4
"""Layers drawn."""
SHOWN = 5
"""Moves in the table, from either end."""


@dataclass(frozen=True)
class Moves:
    """The table of all moves, and the correlation with the true reward over them; None if either is constant."""

    columns: list[str]
    moves: list[list[Any]]
    correlation: float | None


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
    assert env is not None, "why_not() says so"
    states = env.grid_states()
    panels = [
        move_values(context.subject.scaled, states, "this reward"),
        move_values(context.subject.truth or env.ground_truth(), states, "true reward"),
    ]
    figures = measure(panels)
    order = np.argsort(-panels[0].values[panels[0].valid], kind="stable")
    rows = [_rounded(figures.moves[i]) for i in (*order[:SHOWN], *order[SHOWN:][-SHOWN:])]
    alike = (
        ""
        if figures.correlation is None
        else f" Over all moves, correlation with the true reward {figures.correlation:.2f}."
    )
    caption = (
        "The reward of each move: a triangle for a step in its direction, a circle for staying. Hatched: the move leads against a "
        f"wall, or the state never occurs. G: goal, K: key. White: the median move of the panel.{alike}"
    )
    image = heatmap(panels, "panel", range(min(MOST_LAYERS, len(states.layers))))
    tables = [Table(figures.columns, rows, "The moves worth most and least.")]
    return Section("heatmap", TITLE, (), (), tables, [Picture("moves", image, caption)], (), values_of(figures))


def measure(panels: list[MoveValues]) -> Moves:
    """Compute the figures of a reward and the true one."""
    given, true = (panel.values[panel.valid] for panel in panels)
    table = value_table(panels)
    correlation = None if constant(given) or constant(true) else pearson(given, true)
    return Moves(list(table.columns), [list(row) for row in table.rows], correlation)


def _grid(name: str) -> Any:
    """The environment without its wrappers; None unless it is a grid world."""
    try:
        env = make_env(name).unwrapped
    except (ValueError, ImportError, Fault, gymnasium.error.Error):
        return None
    return env if hasattr(env, "grid_states") and hasattr(env, "ground_truth") else None


def _rounded(row: list[Any]) -> list[Any]:
    return [round(cell, 4) if isinstance(cell, float) else cell for cell in row]


STEP = Step("heatmap", TITLE, run, why_not=why_not)
