"""The curves of a run: returns, accuracy, drift, distances, labels, the reward's scale, the learner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.measure.held_out import ReliabilityBin
from rlhf_ray.runs.report.subject import Run, is_number, part
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Picture, Section
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

MUTED = "#59636e"
COLOURS = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
"""Of the Okabe-Ito palette, which is safe for the common forms of colour blindness."""
MARKED = 40
"""Most values for which a curve has markers."""


@dataclass(frozen=True)
class Panel:
    """Curves over one axis.

    Attributes:
        label: of the vertical axis.
        metrics: the curves' metrics, and what the legend calls them; empty without a legend.
        colour: of the first curve, in `COLOURS`.
        bottom: lowest value shown; None: as the curves have it.
    """

    label: str
    metrics: dict[str, str]
    colour: int = 0
    bottom: float | None = None


PLOTS = {
    "returns": (
        Panel("true return", {"true_return_mean": ""}),
        Panel("learned return", {"learned_return_mean": ""}, 1),
    ),
    "accuracy": (Panel("accuracy", {"held_out_accuracy": "held out", "train_accuracy": "training"}, 2),),
    "drift": (
        Panel("reward above the probe set's", {"learned_gain": ""}, 1),
        Panel(
            "rank correlation",
            {"probe_rank_correlation": "probe set", "return_rank_correlation": "newest comparisons"},
        ),
    ),
    "distances": (Panel("distance", {"epic_distance": "EPIC", "dard_distance": "DARD"}, 1, 0.0),),
    "comparisons": (Panel("comparisons", {"comparisons": ""}, 0, 0.0),),
    "scale": (
        Panel("standard deviation", {"reward_std": ""}, 1, 0.0),
        Panel("mean", {"reward_mean": ""}, 1),
    ),
    "learner": (
        Panel("policy entropy (nats)", {"policy_entropy": ""}),
        Panel("explained variance", {"value_explained_variance": ""}),
    ),
}
OVER = {"scale": "reward_version"}
"""What a plot is over, if not environment steps."""


def why_not(context: StepContext[Run]) -> str | None:
    """Return why there are no curves: no metrics."""
    return None if context.subject.rows else WORDS.text("no_metrics")


def run(context: StepContext[Run]) -> Section:
    """Draw the curves."""
    return WORDS.section(pictures=list(_pictures(context.subject)))


def _pictures(run: Run) -> Iterator[Picture]:
    levels: dict[str, dict[str, Any]] = {
        "true return": {
            "random actions": run.agent("random", "true_return_mean"),
            "reference": run.agent("reference", "true_return_mean"),
        },
        "accuracy": {"chance": 0.5},
        "comparisons": {"budget": part(run.settings, "preferences").get("comparisons")},
    }
    mix = run.settings.get("reward_mix")
    for name, panels in PLOTS.items():
        if any(len(series(run.rows, metric, name)[0]) for panel in panels for metric in panel.metrics):
            yield WORDS.picture(name, png(_plot(run.rows, name, panels, levels)), mix=mix)
    if run.scores is not None:
        yield WORDS.picture("reliability", png(_reliability(run.scores.curve)))


def series(rows: Sequence[dict[str, Any]], metric: str, plot: str = "") -> tuple[FloatArray, FloatArray]:
    """Return the steps (or what else ``plot`` is over) and values of ``metric`` where both are numbers, ``[n]`` each."""
    over = OVER.get(plot, "env_steps")
    points = [(row[over], row[metric]) for row in rows if is_number(row.get(over)) and is_number(row.get(metric))]
    x, y = np.array(points, np.float64).reshape(-1, 2).T
    return x, y


def _plot(
    rows: Sequence[dict[str, Any]], name: str, panels: Sequence[Panel], levels: dict[str, dict[str, Any]]
) -> Figure:
    figure = Figure(figsize=(4.8, 0.6 + 1.5 * len(panels)))
    figure.subplots_adjust(
        0.17, 0.5 / figure.get_figheight(), 0.98, 0.97
    )  # a layout engine takes as long as the drawing
    axes = figure.subplots(len(panels), 1, sharex=True, squeeze=False)[:, 0]
    for panel, place in zip(panels, axes, strict=True):
        for i, (metric, label) in enumerate(panel.metrics.items()):
            x, y = series(rows, metric, name)
            marker = "o" if len(x) <= MARKED else ""
            colour = COLOURS[(panel.colour + i) % len(COLOURS)]
            place.plot(x, y, color=colour, marker=marker, markersize=3, label=label or None)
        for level, value in levels.get(panel.label, {}).items():
            if is_number(value):
                place.axhline(value, color=MUTED, linewidth=1, linestyle=":")
                place.annotate(level, (0, value), xycoords=place.get_yaxis_transform(), color=MUTED, fontsize=8)
        place.set(ylabel=panel.label)
        place.set_ylim(bottom=panel.bottom)
        if len(panel.metrics) > 1:
            place.legend(loc="best", frameon=False, fontsize=8)
    steps_axis(axes[-1], OVER.get(name))
    return figure


def steps_axis(axes: Axes, over: str | None = None) -> None:
    """Label the horizontal axis: environment steps, or whole numbers of something else."""
    axes.set(xlabel=(over or "environment steps").replace("_", " "))
    if over is None:
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _reliability(curve: Sequence[ReliabilityBin]) -> Figure:
    """Draw the share of answers for the side that the reward model prefers, by its confidence, with intervals and counts."""
    figure = Figure(figsize=(4.8, 3))
    figure.subplots_adjust(0.17, 0.17, 0.98, 0.97)
    axes = figure.subplots()
    axes.plot([0.5, 1], [0.5, 1], color=MUTED, linewidth=1, linestyle=":")
    for step in curve:
        if step.answers:
            share = step.observed
            axes.vlines(step.predicted, share.low or 0.0, share.high or 0.0, color=COLOURS[2], linewidth=1)
            axes.plot(step.predicted, share.mean, color=COLOURS[2], marker="o", markersize=4)
            place = (step.predicted, 0.02)
            axes.annotate(f"{step.answers}", place, xycoords=("data", "axes fraction"), color=MUTED, ha="center")
    axes.set(xlabel="confidence", ylabel="answers on its side")
    return figure


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
