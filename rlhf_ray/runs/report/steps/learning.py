"""The curves of a run: returns, accuracy, drift, distances, labels, the reward's scale, the learner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.measure.held_out import ReliabilityBin
from rlhf_ray.runs.report.subject import Run, is_number
from rlhf_ray.study.curves import COLOURS, LEFT, MUTED, Axes, CurvePanel, draw_curves, stroke, svg, text
from rlhf_ray.study.section import Picture, Section


@dataclass(frozen=True)
class Plot:
    """A picture of metrics."""

    caption: str
    panels: dict[str, dict[str, str]]
    """By the label of the vertical axis, metrics and their names."""
    first: int = 0
    """Number of the first panel's colour."""
    bottom: float | None = None
    """Lowest value shown; None: as the curves have it."""


PLOTS = {
    "returns": Plot(
        "Returns in training. Top: the true return. Bottom: the learned return of the same behaviour; each reward version has "
        "its own scale, so compare the direction of the curve, not its height.",
        {"true return": {"true_return_mean": ""}, "learned return": {"learned_return_mean": ""}},
    ),
    "accuracy": Plot(
        "Fraction of answers, ties excluded, for which the reward model gives the preferred fragment the higher return. Held-out "
        "comparisons are never used for training.",
        {"accuracy": {"held_out_accuracy": "held out", "train_accuracy": "training"}},
        first=2,
    ),
    "drift": Plot(
        "Reward drift. Top: learned reward per step of the newest behaviour above that of a fixed set of fragments, the probe "
        "set, in its standard deviations. Comparable over reward versions. If it rises while the true return falls, the agent "
        "exploits the reward model. Bottom: whether the reward model orders fragments as the true return does.",
        {
            "reward above the probe set's": {"learned_gain": ""},
            "rank correlation": {
                "probe_rank_correlation": "probe set",
                "return_rank_correlation": "newest comparisons",
            },
        },
        first=1,
    ),
    "distances": Plot(
        "Distance of the learned to the true reward: sampled estimates on the newest comparisons, for each reward version. 0 "
        "for the true reward, shaped and scaled at will, 1 for its opposite, 0.71 for an unrelated one.",
        {"distance": {"epic_distance": "EPIC", "dard_distance": "DARD"}},
        first=1,
        bottom=0.0,
    ),
    "scale": Plot(
        "Standard deviation and mean of the reward per step, before normalisation to mean 0 and standard deviation 1. A "
        "growing scale can indicate overfitting.",
        {"standard deviation": {"reward_std": ""}, "mean": {"reward_mean": ""}},
    ),
    "learner": Plot(
        "If the entropy falls early, the policy has stopped exploring. An explained variance near 1 means that the value function "
        "predicts the learned returns well.",
        {"policy entropy (nats)": {"policy_entropy": ""}, "explained variance": {"value_explained_variance": ""}},
    ),
}


def section(run: Run) -> Section:
    """Draw the curves."""
    why = None if run.rows else "No iterations recorded (metrics.jsonl is missing or empty)."
    return Section("learning", "Learning", skipped=why, pictures=list(_pictures(run)) if run.rows else [])


def points(rows: Sequence[dict[str, Any]], metric: str) -> FloatArray:
    """Return environment steps and ``metric`` of the rows where both are numbers, ``[n, 2]``."""
    pairs = [(row.get("env_steps"), row.get(metric)) for row in rows]
    return np.array([pair for pair in pairs if all(map(is_number, pair))], np.float64).reshape(-1, 2)


def _pictures(run: Run) -> Iterator[Picture]:
    agents = {"random actions": "random", "reference": "reference"}
    levels: dict[str, dict[str, Any]] = {
        "true return": {level: run.agent(name, "true_return_mean") for level, name in agents.items()},
        "accuracy": {"chance": 0.5},
    }
    mix = run.settings.get("reward_mix")
    trained_on = f" The agent is trained on a mixture of both: reward_mix is {mix}." if mix else ""
    for name, plot in PLOTS.items():
        panels = []
        for number, (label, metrics) in enumerate(plot.panels.items(), plot.first):
            lines = {legend: points(run.rows, metric) for metric, legend in metrics.items()}
            known = {level: value for level, value in levels.get(label, {}).items() if is_number(value)}
            panels.append(CurvePanel(label, lines, known, first=number, bottom=plot.bottom))
        if any(len(line) for panel in panels for line in panel.lines.values()):
            yield Picture(name, draw_curves(panels), plot.caption + (trained_on if name == "returns" else ""))
    if run.scores is not None:
        yield Picture(
            "reliability",
            _reliability(run.scores.curve),
            "Reward model calibration: held-out answers by the reward model's confidence in the side it prefers, with 95 % "
            "intervals and numbers of answers. On the dotted line, it is right as often as it says; below it, it is "
            "overconfident.",
        )


def _reliability(curve: Sequence[ReliabilityBin]) -> bytes:
    """Draw the share of answers for the side that the reward model prefers, by its confidence, with intervals and counts."""
    axes = Axes((LEFT, 468), (24, 256), (0.48, 1.02), (-0.08, 1.04))
    parts = [text(LEFT, 14, "share of answers on its side"), *axes.left(6), *axes.below("confidence")]
    parts.append(stroke(axes.x([0.5, 1.0]), axes.y([0.5, 1.0]), MUTED, 1.0, "2 3"))
    for step in curve:
        if step.answers:
            share, x = step.observed, float(axes.x(step.predicted))
            parts.append(stroke(np.full(2, x), axes.y([share.low or 0.0, share.high or 0.0]), COLOURS[2], 1.0))
            parts.append(stroke(np.array([x]), axes.y([share.mean]), COLOURS[2], markers=3.5))
            parts.append(text(x, axes.down[1] - 5, f"{step.answers}", "middle", MUTED))
    return svg(480, 300, parts)
