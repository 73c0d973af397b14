"""Plots as inline SVG. Colours are CSS variables of the page, so that one plot works in light and dark mode."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.measure.held_out import ReliabilityBin

Rows = Sequence[dict[str, Any]]
"""The metrics of a run, one dictionary per iteration."""

# Colours for matplotlib, each replaced by a CSS variable. The series use the Okabe-Ito palette, which is safe for the common forms
# of colour blindness.
INK, MUTED, GRID = "#1b1f24", "#59636e", "#d8dde3"
TRUE, LEARNED, HELD_OUT, TRAIN = "#0072b2", "#d55e00", "#009e73", "#cc79a7"
_VARIABLES = {
    INK: "--ink",
    MUTED: "--muted",
    GRID: "--grid",
    TRUE: "--true",
    LEARNED: "--learned",
    HELD_OUT: "--held-out",
    TRAIN: "--train",
}
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # keep text as text: machine-readable, and in the page's font
    "font.size": 10,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.labelsize": 10,
    "axes.edgecolor": MUTED,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 10,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 9.5,
    "ytick.labelsize": 9.5,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "lines.linewidth": 1.6,
    "lines.markersize": 4,
    "legend.frameon": False,
    "legend.fontsize": 9.5,
    "path.simplify": True,
}
_POINTS_PER_INCH = 72
_WIDTH = 360
"""Width of a plot in points. A page shows it 1.4 times as wide on a desktop, and at this size on a phone."""
_MARKED = 40
"""Maximum number of values for which a curve has markers."""


def render(name: str, description: str, size: tuple[float, float], draw: Callable[[Figure], None]) -> Markup:
    """Render a figure as an ``<svg>`` element to embed in a page.

    Args:
        name: name of the plot, unique on the page, because element ids derive from it.
        description: alternative text.
        size: width and height, in points.
        draw: function that draws into the figure.
    """
    buffer = io.StringIO()
    with matplotlib.rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(size[0] / _POINTS_PER_INCH, size[1] / _POINTS_PER_INCH), layout="constrained")
        draw(figure)
        figure.get_layout_engine().execute(figure)  # type: ignore[union-attr]  # run the layout once; saving would run it twice
        figure.set_layout_engine(None)
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    return _inline(buffer.getvalue(), description)


def _inline(document: str, description: str) -> Markup:
    """Turn matplotlib's SVG document into an element for HTML, without namespaces, metadata, style sheet and group ids."""
    body = document[document.index("<svg") :]
    body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
    body = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", body, flags=re.DOTALL)
    body = re.sub(r"<g id=\"[^\"]*\"", "<g", body)
    body = re.sub(r"<!--.*?-->", "", body, flags=re.DOTALL)
    body = body.replace("xlink:href", "href")
    for colour, variable in _VARIABLES.items():
        body = body.replace(colour, f"var({variable})")
    body = re.sub(r"\n\s*", "\n", body)
    box = re.search(r"viewBox=\"[^\"]*\"", body)
    assert box is not None  # matplotlib always writes a viewBox
    opening = Markup('<svg class="plot" role="img" aria-label="{}" {}>').format(description, Markup(box[0]))
    return opening + Markup(body[body.index(">") + 1 :])


def series(rows: Rows, name: str, over: str = "env_steps") -> tuple[FloatArray, FloatArray]:
    """The values of ``over`` and of the metric ``name`` where both are numbers: x and y, ``[n]`` each."""
    points = [
        (float(row[over]), float(row[name])) for row in rows if is_number(row.get(over)) and is_number(row.get(name))
    ]
    values: FloatArray = np.array(points, dtype=np.float64).reshape(-1, 2)
    return values[:, 0], values[:, 1]


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number (and not a bool)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def returns_plot(rows: Rows, random: float | None, reference: float | None) -> Markup | None:
    """True and learned return over environment steps, in two panels with separate scales.

    Args:
        rows: the metrics.
        random: true return of random actions, drawn as a horizontal line.
        reference: true return of the reference, drawn as a horizontal line.
    """
    true, learned = series(rows, "true_return_mean"), series(rows, "learned_return_mean")
    if not len(true[0]) and not len(learned[0]):
        return None

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _curve(upper, *true, TRUE)
        if random is not None:
            _level(upper, "random actions", random, right=True)  # on the right, where the curve has moved away from it
        if reference is not None:
            _level(upper, "reference", reference)
        upper.set_title("True return", color=TRUE)
        upper.set_ylabel("true reward per episode")
        upper.margins(y=0.12)
        _curve(lower, *learned, LEARNED)
        lower.set_title("Learned return", color=LEARNED)
        lower.set_ylabel("learned reward per episode")
        steps_axis(lower)

    return render(
        "returns", "Two panels over environment steps: the true return and the learned return.", (_WIDTH, 420), draw
    )


def accuracy_plot(rows: Rows) -> Markup | None:
    """Accuracy of the reward model on held-out and on training comparisons, over environment steps."""
    held_out, train = series(rows, "held_out_accuracy"), series(rows, "train_accuracy")
    decided = series([row for row in rows if is_number(row.get("held_out_accuracy"))], "held_out_decided")[1]
    if not len(held_out[0]) and not len(train[0]):
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.axhline(50, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        axes.text(
            1, 51, "chance", color=MUTED, fontsize=9, ha="right", va="bottom", transform=axes.get_yaxis_transform()
        )
        label = f"held out ({decided.min():.0f} to {decided.max():.0f} answers)" if len(decided) else "held out"
        _curve(axes, held_out[0], 100 * held_out[1], HELD_OUT, label=label, marker="o")
        _curve(axes, train[0], 100 * train[1], TRAIN, label="training", marker="s", linestyle="--")
        lowest = min([50.0, *(100 * train[1]), *(100 * held_out[1])])
        axes.set(ylabel="accuracy (%)", ylim=(max(-3, lowest - 6), 103))
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0, borderpad=0)
        steps_axis(axes)

    return render("accuracy", "The reward model's accuracy over environment steps.", (_WIDTH, 180), draw)


def reliability_plot(curve: Sequence[ReliabilityBin]) -> Markup:
    """Share of answers for the side that the reward model prefers, by its confidence, with intervals and counts."""
    there = [of for of in curve if of.answers]

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.plot([50, 100], [50, 100], color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
        x = [100 * of.predicted for of in there]
        y = [100 * of.observed.mean for of in there]
        lows = [100 * (of.observed.low or 0.0) for of in there]
        highs = [100 * (of.observed.high or 0.0) for of in there]
        axes.vlines(x, lows, highs, color=HELD_OUT, linewidth=1)
        axes.plot(x, y, color=HELD_OUT, marker="o", markersize=4)
        for at, of in zip(x, there, strict=True):
            axes.annotate(
                f"{of.answers}",
                (at, 0),
                xycoords=("data", "axes fraction"),
                xytext=(0, 3),
                textcoords="offset points",
                color=MUTED,
                fontsize=9,
                ha="center",
            )
        axes.set(
            xlabel="confidence (%)",
            ylabel="answers on its side (%)",
            xlim=(48, 102),
            ylim=(min([30.0, *lows]) - 8, 103),
        )

    return render("reliability", "Observed share of answers by the reward model's confidence.", (_WIDTH, 235), draw)


def probe_plot(rows: Rows) -> Markup | None:
    """Learned reward above that of the probe set, and rank correlations with the true reward, over environment steps."""
    gain = series(rows, "learned_gain")
    correlations = {
        "on the probe set": (series(rows, "probe_rank_correlation"), TRUE),
        "on the newest comparisons": (series(rows, "return_rank_correlation"), HELD_OUT),
    }
    if not len(gain[0]):
        return None

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _curve(upper, *gain, LEARNED)
        upper.set_title("Learned reward per step above the probe set's", color=LEARNED)
        upper.set_ylabel("standard deviations")
        for name, (values, colour) in correlations.items():
            if len(values[0]):
                _curve(lower, *values, colour, label=name)
        lower.set(title="Rank correlation with the true return", ylabel="correlation")
        if any(len(values[0]) for values, _ in correlations.values()):
            lower.legend(loc="best")
        steps_axis(lower)

    return render(
        "probe", "Two panels over environment steps: learned reward and its correlations.", (_WIDTH, 300), draw
    )


def distances_plot(rows: Rows) -> Markup | None:
    """Distances of the learned to the true reward, over environment steps."""
    colours = {"epic": HELD_OUT, "dard": LEARNED}
    curves = {name: series(rows, f"{name}_distance") for name in colours}
    if not any(len(steps) for steps, _ in curves.values()):
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for name, values in curves.items():
            if len(values[0]):
                _curve(axes, *values, colours[name], label=name.upper())
        axes.set(title="Distance of the learned to the true reward", ylim=(0, 1))
        axes.legend(loc="best")
        steps_axis(axes)

    return render(
        "distances", "Distances of the learned to the true reward, over environment steps.", (_WIDTH, 200), draw
    )


def comparisons_plot(rows: Rows, budget: float | None) -> Markup | None:
    """Number of comparisons over environment steps, and the label budget as a horizontal line."""
    steps, answered = series(rows, "comparisons")
    if not len(steps):
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.step(steps, answered, where="post", color=INK)
        if budget is not None:
            _level(axes, "budget", budget)
        axes.set(ylabel="comparisons")
        axes.margins(y=0.12)
        axes.set_ylim(bottom=0)
        steps_axis(axes)

    return render("comparisons", "Number of comparisons over environment steps.", (_WIDTH, 180), draw)


def scale_plot(rows: Rows) -> Markup | None:
    """Standard deviation and mean of the raw reward over reward versions, in two panels."""
    deviation, mean = (series(rows, name, "reward_version") for name in ("reward_std", "reward_mean"))
    if not len(deviation[0]) and not len(mean[0]):
        return None

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _curve(upper, *deviation, LEARNED)
        upper.set(title="Standard deviation", ylabel="raw reward")
        if len(deviation[1]):
            upper.set_ylim(0, 1.1 * max(deviation[1]))
        _curve(lower, *mean, LEARNED)
        lower.set(title="Mean", ylabel="raw reward", xlabel="reward version")
        lower.xaxis.set_major_locator(MaxNLocator(integer=True))
        for axes in (upper, lower):
            axes.yaxis.set_major_locator(MaxNLocator(4))

    return render("scale", "Standard deviation and mean of the raw reward over reward versions.", (_WIDTH, 235), draw)


def learner_plot(rows: Rows) -> Markup | None:
    """The policy's entropy and the value function's explained variance over environment steps, in two panels."""
    entropy, explained = series(rows, "policy_entropy"), series(rows, "value_explained_variance")
    if not len(entropy[0]) and not len(explained[0]):
        return None

    def draw(figure: Figure) -> None:
        upper, lower = figure.subplots(2, 1, sharex=True)
        _curve(upper, *entropy, INK)
        upper.set(title="Policy entropy", ylabel="nats")
        _curve(lower, *explained, INK)
        lower.set(title="Explained variance of the value function", ylabel="fraction")
        for axes in (upper, lower):
            axes.yaxis.set_major_locator(MaxNLocator(4))
        steps_axis(lower)

    return render("learner", "Policy entropy and explained variance over environment steps.", (_WIDTH, 235), draw)


def _curve(axes: Axes, x: FloatArray, y: FloatArray, colour: str, marker: str = "o", **style: Any) -> None:
    axes.plot(x, y, color=colour, marker=marker if len(x) <= _MARKED else "", markersize=3.2, **style)


def _level(axes: Axes, name: str, level: float, right: bool = False) -> None:
    """A horizontal line at ``level`` with its name: above it on the left, or below it on the right."""
    axes.axhline(level, color=MUTED, linewidth=1, linestyle=(0, (2, 2)))
    axes.annotate(
        name,
        (1 if right else 0, level),
        xycoords=axes.get_yaxis_transform(),
        xytext=(-3, -2) if right else (3, 2),
        textcoords="offset points",
        ha="right" if right else "left",
        va="top" if right else "bottom",
        color=MUTED,
        fontsize=9,
    )


def steps_axis(axes: Axes) -> None:
    """Label the x axis as environment steps."""
    axes.set(xlabel="environment steps")
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _short(value)))


def _short(value: float) -> str:
    """Format a number of steps for an axis: 20k, 1.5M."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.4g}{letter}"
    return f"{value:.4g}"
