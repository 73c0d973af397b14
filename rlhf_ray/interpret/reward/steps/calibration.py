"""How well a reward predicts the true rewards in the data, beside what a constant would, and its calibration by reward level."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.statistics import pearson
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.supervised.report import RewardLevel, levels_of, measures
from rlhf_ray.study.figures import DRAWN, fields_of
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

GOOD = 0.5
"""Share of the true reward's variance that a reward should explain."""
GOOD_AUC = 0.9


@dataclass(frozen=True)
class Agreement:
    """How a reward agrees with the true one.

    Attributes:
        errors: figures of `rlhf_ray.reward.supervised.report.measures`, of the reward as it is.
        steps: number of steps with a known true reward.
        scale, offset: the line ``scale * reward + offset`` that fits the true rewards best. A reward learned from comparisons has
            an arbitrary scale, so that only its error after this line means something.
        error_of_line: mean squared error after the line.
        explained: share of the true reward's variance that the reward explains after the line; NaN if the true reward is constant.
        correlation_of_returns: of the episodes' returns; NaN with fewer than 3 episodes.
        levels: mean reward by level of the true reward.
    """

    errors: dict[str, float]
    steps: int
    scale: float
    offset: float
    error_of_line: float
    explained: float
    correlation_of_returns: float
    levels: tuple[RewardLevel, ...] = field(metadata=DRAWN)

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        return self.errors | fields_of(self, "errors")


def known(steps: Transitions) -> Transitions:
    """Return the steps whose true reward is known."""
    return steps[np.isfinite(steps.rewards)]


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the step does not apply: the data has no true rewards."""
    return None if len(known(context.subject.data)) else WORDS.text("unknown")


def run(context: StepContext[Subject]) -> Section:
    """Compare the reward with the true one on all steps of the data."""
    figures = agreement(context.subject.reward, known(context.subject.data))
    checks = _checks(figures)
    return WORDS.section(_statements(figures, checks), checks, _tables(figures), figures=figures)


def agreement(reward: RewardFunction, steps: Transitions) -> Agreement:
    """Compare ``reward`` with the true rewards of ``steps``, which are known.

    Raises:
        ValueError: there are no steps.
    """
    if not len(steps):
        raise ValueError("There are no steps with a known true reward.")
    given, true = reward.of(steps), steps.rewards
    spread = float(given.var()) if np.ptp(given) > 0 else 0.0
    scale = float(((given - given.mean()) * (true - true.mean())).mean() / spread) if spread > 0 else 0.0
    offset = float(true.mean() - scale * given.mean())
    error = float(np.square(scale * given + offset - true).mean())
    errors = measures(given, true, float(true.mean()))
    constant = errors["constant_error"]
    explained = 1 - error / constant if constant > 0 else math.nan
    returns, levels = _correlation_of_returns(given, true, steps), levels_of(given, true, np.zeros(0))
    return Agreement(errors, len(steps), scale, offset, error, explained, returns, levels)


def _correlation_of_returns(given: FloatArray, true: FloatArray, steps: Transitions) -> float:
    _, numbers = np.unique(steps.episodes, return_inverse=True)
    sums = [np.bincount(numbers, rewards).astype(np.float64) for rewards in (given, true)]
    return pearson(sums[0], sums[1]) if len(sums[0]) >= 3 else math.nan


def _checks(figures: Agreement) -> list[Check]:
    explained, auc = figures.explained, figures.errors["balanced_auc"]
    constant = math.isnan(explained)
    checks = [
        WORDS.check("explains", None if constant else explained > GOOD, None if constant else explained, least=GOOD)
    ]
    return checks if math.isnan(auc) else [*checks, WORDS.check("auc", auc > GOOD_AUC, auc, least=GOOD_AUC)]


def _statements(figures: Agreement, checks: list[Check]) -> list[Statement]:
    if math.isnan(figures.explained):
        return [WORDS.statement("constant_truth")]
    if all(check.passed is not False for check in checks):
        return []
    explained, auc = max(figures.explained, 0), figures.errors["balanced_auc"]
    rank, has_auc = _text(figures.errors["rank_correlation"]), not math.isnan(auc)
    values = {"explained": explained, "steps": figures.steps, "rank": rank, "auc": auc if has_auc else None}
    return [WORDS.statement("disagrees", 1 - explained, **values)]


def _tables(figures: Agreement) -> list[Table]:
    errors = figures.errors
    constant = _text(errors["constant_error"])
    rows = [
        ("mean squared error", _text(errors["test_error"]), constant),
        ("… after the best line", _text(figures.error_of_line), constant),
        (
            "… zero and nonzero weighing the same",
            _text(errors["balanced_error"]),
            _text(errors["balanced_constant_error"]),
        ),
        ("balanced AUC, zero or not", _text(errors["balanced_auc"]), "0.5"),
        ("correlation", _text(errors["correlation"]), "0"),
        ("rank correlation", _text(errors["rank_correlation"]), "0"),
        ("correlation of the episodes' returns", _text(figures.correlation_of_returns), "0"),
    ]
    levels = [(level.label, level.test, _text(level.predicted), _text(level.spread)) for level in figures.levels]
    return [WORDS.table("errors", rows), WORDS.table("levels", levels)]


def _text(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
