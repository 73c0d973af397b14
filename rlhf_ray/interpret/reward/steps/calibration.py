"""How well a reward predicts the true rewards in the data, beside what a constant would, and its calibration by reward level."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.over_episodes import OverEpisodes, over_episodes
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.measure.intervals import CORRELATION, SHARE
from rlhf_ray.measure.statistics import constant, pearson
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.supervised.report import RewardLevel, balanced_auc, levels_of, measures
from rlhf_ray.study.figures import DRAWN, fields_of
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

GOOD = 0.5
"""Share of the true reward's variance that a reward should explain: more than is left."""
FEWEST = 20
"""Steps without and with a true reward that their AUC takes: one step of fewer moves it by more than 0.05."""
NOTHING = OverEpisodes(math.nan, math.nan, math.nan)
GOOD_AUC = 0.9
"""Share of pairs of steps, one with and one without a true reward, that it should order: wrong in one of ten."""


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
        auc: how well it tells steps with from those without a true reward, both kinds weighing the same; NaN if there is but one.
        correlation_of_returns: of the episodes' returns; NaN with fewer than 3 episodes.
        levels: mean reward by level of the true reward.
    """

    errors: dict[str, float]
    steps: int
    scale: float
    offset: float
    error_of_line: float
    explained: OverEpisodes
    auc: OverEpisodes
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
    subject = context.subject
    figures = agreement(subject.judged, known(subject.data))
    checks = _checks(figures)
    steady = subject.shaped or subject.constant_as_true  # then a constant true reward is no riddle
    statements = [] if steady and math.isnan(figures.explained.value) else _statements(figures, checks)
    return WORDS.section(statements, checks, _tables(figures), figures=figures)


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
    fitted = scale * given + offset if scale > 0 else given

    def correlation(at: IntArray) -> float:
        return pearson(given[at], true[at], 0.0)

    episodes = steps.episodes
    explained = NOTHING if constant(true) else _squared(over_episodes(correlation, episodes, CORRELATION))
    rewarded = int(np.count_nonzero(true))
    told = min(rewarded, len(true) - rewarded) >= FEWEST
    auc = over_episodes(lambda at: balanced_auc(fitted[at], true[at]), episodes, SHARE) if told else NOTHING
    returns, levels = _correlation_of_returns(given, true, steps), levels_of(given, true, np.zeros(0))
    return Agreement(errors, len(steps), scale, offset, error, explained, auc, returns, levels)


def _squared(correlation: OverEpisodes) -> OverEpisodes:
    """Return the share of the variance that the best line explains."""
    ends = sorted((correlation.low**2, correlation.high**2))
    low = 0.0 if correlation.low <= 0 <= correlation.high else ends[0]
    return OverEpisodes(correlation.value**2, low, ends[1])


def _correlation_of_returns(given: FloatArray, true: FloatArray, steps: Transitions) -> float:
    _, numbers = np.unique(steps.episodes, return_inverse=True)
    sums = [np.bincount(numbers, rewards).astype(np.float64) for rewards in (given, true)]
    return pearson(sums[0], sums[1]) if len(sums[0]) >= 3 else math.nan


def _checks(figures: Agreement) -> list[Check]:
    explained, auc = figures.explained, figures.auc
    told = [("explains", explained, GOOD), *([] if math.isnan(auc.value) else [("auc", auc, GOOD_AUC)])]
    return [WORDS.check(key, of.beyond(least), _known(of.value), of=of, least=least) for key, of, least in told]


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _statements(figures: Agreement, checks: list[Check]) -> list[Statement]:
    if math.isnan(figures.explained.value):
        return [WORDS.statement("constant_truth")]
    if all(check.passed is not False for check in checks):
        return []
    rank, auc = _text(figures.errors["rank_correlation"]), None if math.isnan(figures.auc.value) else figures.auc
    values = {"explained": figures.explained, "steps": figures.steps, "rank": rank, "auc": auc}
    return [WORDS.statement("disagrees", 1 - max(figures.explained.value, 0), **values)]


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
        ("balanced AUC, zero or not", _text(figures.auc.value), "0.5"),
        ("correlation", _text(errors["correlation"]), "0"),
        ("rank correlation", _text(errors["rank_correlation"]), "0"),
        ("correlation of the episodes' returns", _text(figures.correlation_of_returns), "0"),
    ]
    levels = [(level.label, level.test, _text(level.predicted), _text(level.spread)) for level in figures.levels]
    return [WORDS.table("errors", rows), WORDS.table("levels", levels)]


def _text(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.3g}"


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
