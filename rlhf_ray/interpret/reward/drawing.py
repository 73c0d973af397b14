"""Pictures of the shortcut finder: effects of regions, curves, rewards beside true ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import BoolArray, FloatArray
from rlhf_ray.interpret.reward.curves import Curve
from rlhf_ray.interpret.effects.regions import Regions
from rlhf_ray.study.plots import BLUE, ORANGE, png


def map_picture(regions: Regions, effects: FloatArray, intervals: FloatArray) -> bytes:
    """Draw the effect of each region ``[regions]``: a map for cells and patches, bars with intervals for features."""
    if regions.kind == "feature":
        shown = np.argsort(-effects, kind="stable")[:20][::-1]
        figure = Figure((6, 1 + 0.3 * len(shown)), layout="constrained")
        axes = figure.subplots()
        spread = np.abs(intervals[shown].T - effects[shown])
        axes.barh([regions.names[i] for i in shown], effects[shown], xerr=spread, color=BLUE, ecolor="#333333")
        axes.set_xlabel("moves the reward by (1: as much as the whole step)")
        return png(figure)
    figure = Figure((5, 4.2), layout="constrained")
    axes = figure.subplots()
    places = effects[: len(effects) - regions.planes].reshape(regions.layout)
    drawn = axes.imshow(places, cmap="viridis", vmin=0, vmax=max(1.0, float(effects.max())))
    axes.set(xticks=[], yticks=[])
    figure.colorbar(drawn, label="moves the reward by (1: as much as the whole step)")
    return png(figure)


def curves_picture(curves: Sequence[tuple[str, Curve]]) -> bytes:
    """Draw up to six curves, all with the same reward axis."""
    curves = curves[:6]
    columns = min(3, len(curves))
    rows = -(-len(curves) // columns)
    figure = Figure((3.6 * columns, 2.8 * rows), layout="constrained")
    for axes, (name, curve) in zip(
        figure.subplots(rows, columns, squeeze=False, sharey=True).flat, curves, strict=False
    ):
        if curve.changes or len(curve.content) <= 4:
            axes.bar(curve.content, curve.rewards, color=BLUE)
            axes.tick_params(axis="x", rotation=30, labelsize=7)
        else:
            axes.plot(curve.middle, curve.rewards, "o-", color=BLUE)
        axes.set_title(name, fontsize=8, wrap=True)
        axes.set_ylabel("mean reward")
    for axes in figure.axes[len(curves) :]:
        axes.set_axis_off()
    return png(figure)


def scatter_picture(truth: FloatArray, rewards: FloatArray, worst: BoolArray | None) -> bytes:
    """Draw rewards against true rewards, the steps ``worst`` in orange."""
    figure = Figure((5, 4), layout="constrained")
    axes = figure.subplots()
    rng = np.random.default_rng(0)
    few = len(np.unique(truth)) < 20
    wide = (rng.random(len(truth)) - 0.5) * 0.03 * max(float(np.ptp(truth)), 1e-9) if few else np.zeros(len(truth))
    at = np.zeros(len(truth), bool) if worst is None else worst
    axes.plot((truth + wide)[~at], rewards[~at], ".", ms=3, color=BLUE, alpha=0.5)
    axes.plot((truth + wide)[at], rewards[at], ".", ms=5, color=ORANGE)
    axes.set(xlabel="true reward", ylabel="reward")
    return png(figure)
