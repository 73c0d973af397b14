"""The reward of every move in a grid world."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np

from rlhf_ray.data.errors import Fault
from rlhf_ray.envs import make_env
from rlhf_ray.interpret.reward.heatmap import NAMES, MoveValues, heatmap, move_values, value_table
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.section import Section, Statement
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

MOST_LAYERS = 4
"""Layers drawn."""
SHOWN = 5
"""Moves in the table, from either end."""
AGREES = 0.9
"""Correlation with the true reward, over all moves that there are, below which it is a warning: a line then leaves a fifth of the
variance."""


@dataclass(frozen=True)
class BestMove:
    """The move that is worth most, what it and the median move give, and the difference in standard deviations.

    ``equal``: how many moves are worth as much; the first of them in the grid, by rows, is named.
    """

    move: str
    row: int
    column: int
    layer: str
    reward: float
    median: float
    stands_out: float
    equal: int = 1


@dataclass(frozen=True)
class Moves:
    """What the step finds.

    Attributes:
        columns, moves: the table of all moves.
        correlation: with the true reward over all moves; None if either is constant.
        standard_deviation: of the reward over all moves; 0 if it is constant.
        best: None for a constant reward.
    """

    columns: list[str]
    moves: list[list[Any]]
    correlation: float | None
    standard_deviation: float
    best: BestMove | None = field(metadata=DRAWN)


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the step does not apply; None if it does."""
    subject = context.subject
    if subject.environment is None:
        return WORDS.text("unknown")
    env = _grid(subject.environment)
    if env is None:
        return WORDS.text("no_grid", environment=subject.environment)
    fits = env.observation_space.shape == subject.reward.observation_space.shape
    return None if fits else WORDS.text("other_observations", environment=subject.environment)


def run(context: StepContext[Subject]) -> Section:
    """Compute, draw and list the reward of every move, beside the true one."""
    env = _grid(str(context.subject.environment))
    assert env is not None, "why_not() says so"
    states = env.grid_states()
    panels = [
        move_values(context.subject.judged, states, "this reward"),
        move_values(context.subject.truth or env.ground_truth(), states, "true reward"),
    ]
    figures = measure(panels)
    image = heatmap(panels, "panel", range(min(MOST_LAYERS, len(states.layers))))
    tables = []
    if figures.best is not None:
        order = np.argsort(-panels[0].values[panels[0].valid], kind="stable")
        rows = [_rounded(figures.moves[i]) for i in (*order[:SHOWN], *order[SHOWN:][-SHOWN:])]
        tables = [WORDS.table("extremes", rows, figures.columns)]
    pictures = [WORDS.picture("moves", image)]
    given = float(np.nanmax(panels[0].values))
    return WORDS.section(_statements(figures, given), tables=tables, pictures=pictures, figures=figures)


def measure(panels: list[MoveValues]) -> Moves:
    """Compute the figures of a reward and the true one."""
    given, true = (panel.values[panel.valid] for panel in panels)
    table, spread = value_table(panels), float(given.std())
    constant = spread <= 1e-9 * max(1.0, float(np.abs(given).max()))
    alike = pearson(given, true)
    correlation = None if constant or np.isnan(alike) else alike
    best = None if constant else _best(panels[0], given, spread)
    return Moves(list(table.columns), [list(row) for row in table.rows], correlation, spread, best)


def _best(panel: MoveValues, given: Any, spread: float) -> BestMove:
    most, median = float(given.max()), float(np.median(given))
    equal = given >= most - 1e-6 * spread
    states, (state, action) = panel.states, np.argwhere(panel.valid)[int(equal.argmax())]
    place = int(states.rows[state]), int(states.columns[state]), states.layers[states.layer[state]]
    return BestMove(NAMES[states.moves[action]], *place, most, median, (most - median) / spread, int(equal.sum()))


def _statements(figures: Moves, given: float) -> list[Statement]:
    best, count = figures.best, len(figures.moves)
    if best is None:
        return [WORDS.statement("constant", 5.0, moves=count, reward=given)]
    statements = [WORDS.statement("best", min(3.0, best.stands_out), moves=count, best=best)]
    if figures.correlation is not None:
        key = "agrees" if figures.correlation > AGREES else "differs"
        statements.append(WORDS.statement(key, 1.0, correlation=figures.correlation))
    return statements


def _grid(name: str) -> Any:
    """The environment without its wrappers; None unless it is a grid world."""
    try:
        env = make_env(name).unwrapped
    except (ValueError, ImportError, Fault, gymnasium.error.Error):
        return None
    return env if hasattr(env, "grid_states") and hasattr(env, "ground_truth") else None


def _rounded(row: list[Any]) -> list[Any]:
    return [round(cell, 4) if isinstance(cell, float) else cell for cell in row]


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
