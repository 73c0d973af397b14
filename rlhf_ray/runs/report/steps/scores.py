"""How well a reward model predicts answers that it was not fitted to, and how far it is from the true reward."""

from __future__ import annotations

import math
from collections.abc import Iterator

from rlhf_ray.measure.held_out import PredictionScores
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.reward.sampled_distances import DISTANCES
from rlhf_ray.runs.distances import RewardDistances
from rlhf_ray.runs.report.subject import Run
from rlhf_ray.runs.reward_scores import RewardScores
from rlhf_ray.study.section import Section, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)


def why_not(context: StepContext[Run]) -> str | None:
    """Return why there are no scores."""
    measured = context.subject.scores or context.subject.distances
    return None if measured else WORDS.text("not_measured")


def run(context: StepContext[Run]) -> Section:
    """Tell the scores of the newest reward model."""
    return score_section(context.subject.scores, context.subject.distances)


def score_section(scores: RewardScores | None, distances: RewardDistances | None) -> Section:
    """Return what is known of a reward model: its scores, its correlations with the true reward and its distances from it."""
    figures = {"scores": scores, "distances": distances}
    notes = []
    if scores is not None:
        notes.append(WORDS.statement("held_out", version=scores.version, disagreement=scores.disagreement))
    if distances is not None or (scores is not None and _truth_known(scores)):
        notes.append(WORDS.statement("truth", epic=distances is None or "epic" in distances.values))
    return WORDS.section(notes, (), list(_tables(scores, distances)), (), figures)


def _truth_known(scores: RewardScores) -> bool:
    return math.isfinite(scores.correlations.steps_linear.mean)


def _tables(scores: RewardScores | None, distances: RewardDistances | None) -> Iterator[Table]:
    if scores is not None:
        groups = [
            (WORDS.text(kind, name=name), each) for kind in scores.groups for name, each in scores.groups[kind].items()
        ]
        rows = [[name, *_row(each)] for name, each in [("all", scores.overall), *groups]]
        yield WORDS.table("held_out", rows)
    truth = []
    if scores is not None and _truth_known(scores):
        names = ("steps_linear", "steps_rank", "returns_linear", "returns_rank")
        truth = [(WORDS.text(name), interval(getattr(scores.correlations, name))) for name in names]
    if distances is not None:
        for name, value in distances.values.items():
            shown = interval(MeanEstimate(value.value, value.low, value.high))
            truth.append((f"{DISTANCES[name]}, new steps, reward version {distances.version}", shown))
    if truth:
        yield WORDS.table("truth", truth)


def _row(scores: PredictionScores) -> list[str]:
    ties = scores.answers - scores.decided
    return [
        f"{scores.answers}{f' ({ties} ties)' if ties else ''}",
        interval(scores.accuracy),
        interval(scores.log_likelihood),
        interval(scores.brier, 3),
        f"{scores.calibration_error:.2f} ({scores.chance:.2f})",
    ]


def interval(estimate: MeanEstimate, digits: int = 2) -> str:
    """Format a mean with its interval; – if it is unknown."""
    return estimate.text(digits) if math.isfinite(estimate.mean) else "–"


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
