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
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.section import Section, Table

TITLE = "The reward model on held-out answers"
CORRELATIONS = {
    "steps_linear": "Correlation of step rewards, linear",
    "steps_rank": "Correlation of step rewards, ranks",
    "returns_linear": "Correlation of fragment returns, linear",
    "returns_rank": "Correlation of fragment returns, ranks",
}


def section(run: Run) -> Section:
    """Return the scores of the newest reward model."""
    if run.scores is None and run.distances is None:
        why = "There are no held-out comparisons and no saved reward model to compare."
        return Section("scores", TITLE, skipped=why)
    return score_section(run.scores, run.distances)


def score_section(scores: RewardScores | None, distances: RewardDistances | None) -> Section:
    """Return what is known of a reward model: its scores, its correlations with the true reward and its distances from it."""
    notes, tables = [], []
    if scores is not None:
        notes.append(
            f"Reward model version {scores.version} on comparisons that it was never fitted to, with 95 % intervals. Guessing "
            "has a log-likelihood of −0.69 and a Brier score of 0.25. In brackets: the calibration error that a perfectly "
            "calibrated model has on so few answers."
        )
        if (apart := scores.disagreement) is not None:
            notes.append(
                f"The members' disagreement and the Brier score have a rank correlation of {apart.correlation.text()}; the "
                f"mean Brier score is {apart.agreeing:.3f} where members agree most, {apart.disagreeing:.3f} where least."
            )
        rows = [_row("all", scores.overall)]
        rows += [_row(f"{kind} {of}", each) for kind, group in scores.groups.items() for of, each in group.items()]
        columns = ["", "answers", "accuracy", "log-likelihood", "Brier score", "calibration error (chance)"]
        tables.append(Table(columns, rows, "Held-out answers"))
    if truth := list(_beside_the_truth(scores, distances)):
        formula = distances is None or "epic" in distances.values
        needs = "" if formula else " and need the true reward as a formula, which this environment lacks"
        measure = "" if distances is not None else " `rlhf-ray evaluate RUN --distances` measures them."
        notes.append(
            "Correlations with the true reward are on the held-out fragments. Distances ignore shaping and scale: 0 is equal, 1 "
            f"opposite; EPIC and DARD are 0.71 for unrelated rewards{needs}.{measure}"
        )
        tables.append(Table(["correlation or distance", "value, 95 % interval"], truth, "Learned and true reward"))
    values = {"scores": values_of(scores), "distances": values_of(distances)}
    return Section("scores", TITLE, tables=tables, notes=notes, values=values)


def _beside_the_truth(scores: RewardScores | None, distances: RewardDistances | None) -> Iterator[tuple[str, str]]:
    if scores is not None and math.isfinite(scores.correlations.steps_linear.mean):
        for name, title in CORRELATIONS.items():
            yield title, _interval(getattr(scores.correlations, name))
    if distances is not None:
        for name, label in DISTANCES.items():
            if (found := distances.values.get(name)) is not None:
                title = f"{label}, new steps, reward version {distances.version}"
                yield title, _interval(MeanEstimate(found.value, found.low, found.high))


def _row(name: str, scores: PredictionScores) -> list[str]:
    ties = scores.answers - scores.decided
    return [
        name,
        f"{scores.answers} ({ties} ties)" if ties else f"{scores.answers}",
        _interval(scores.accuracy),
        _interval(scores.log_likelihood),
        _interval(scores.brier, 3),
        f"{scores.calibration_error:.2f} ({scores.chance:.2f})",
    ]


def _interval(estimate: MeanEstimate, digits: int = 2) -> str:
    return estimate.text(digits) if math.isfinite(estimate.mean) else "–"
