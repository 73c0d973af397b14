"""Figures of attributions: maps over grey images, cells of grids, bars for vectors; crossed out where a check failed."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution.background import FIELDS, INPUT_WORDS, Background, Maps
from rlhf_ray.reward.functions import Input
from rlhf_ray.study.plots import png

DPI = 90
BARS = 16
"""Most bars of a vector."""
CROSS = "#c0392b"


def grey(image: Array) -> FloatArray:
    """Return an image ``[height, width, channels]`` as grey values 0 to 1: of a stack, the newest frame."""
    channels = image.shape[-1]
    newest = image[..., -3:] if channels % 3 == 0 else image[..., -1:]
    values = newest.astype(np.float64).mean(-1)
    top = 255.0 if image.dtype == np.uint8 else float(np.abs(values).max()) or 1.0
    return np.asarray(np.clip(values / top, 0.0, 1.0))


def scale_of(maps: Maps) -> float:
    """Return the largest absolute value of all maps, channels added: the one colour scale of a figure; 1 for maps of zeros."""
    return max((float(np.abs(_plane(of)).max()) for of in maps.values()), default=0.0) or 1.0


def draw(
    background: Background,
    steps: Transitions,
    captions: Sequence[str],
    maps: Maps,
    signed: bool,
    crossed_out: str | None = None,
) -> bytes:
    """Draw the maps of some steps, all on one scale, as a PNG.

    Args:
        background: reward and data.
        steps: the steps, one column each.
        captions: one for each step.
        maps: their maps.
        signed: whether maps tell raising (red) from lowering (blue).
        crossed_out: why not to trust the maps; written across them.
    """
    shown = [name for name in maps if name in ("state", "next_state")]
    kind = background.regions.kind if background.regions is not None else ""
    if kind in ("patch", "cell") and shown:
        figure = _planes(background, steps, captions, maps, shown, signed)
    else:
        figure = _bars(background, steps, captions, maps)
    if crossed_out:
        _cross_out(figure, crossed_out)
    return png(figure, DPI)


def _planes(
    background: Background,
    steps: Transitions,
    captions: Sequence[str],
    maps: Maps,
    shown: Sequence[Input],
    signed: bool,
) -> Figure:
    assert background.regions is not None
    cells = background.regions.layout if background.regions.kind == "cell" else None
    planes = {name: _plane(maps[name]) for name in shown}
    scale = scale_of({name: maps[name] for name in shown})
    width, height = 1.7 * len(steps) + 1.2, 1.75 * len(shown) + 0.9
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(len(shown), len(steps), squeeze=False)
    figure.subplots_adjust(0.3 / width, 0.45 / height, 1 - 0.9 / width, 1 - 0.4 / height, 0.06, 0.08)
    colours = matplotlib.colormaps["RdBu_r" if signed else "viridis"]
    norm = Normalize(-scale if signed else 0.0, scale)
    for row, name in enumerate(shown):
        observations = getattr(steps, FIELDS[name])
        for column, ax in enumerate(axes[row]):
            values = planes[name][column].reshape(cells) if cells else planes[name][column]
            if cells:
                _draw_cells(ax, observations[column].reshape(cells), values, colours, norm)
            else:
                opacity = np.clip(np.abs(values) / scale, 0.0, 1.0) ** 0.6
                shade = 0.25 + 0.55 * grey(observations[column])
                mixed = colours(norm(values))[..., :3] * opacity[..., None] + shade[..., None] * (
                    1 - opacity[..., None]
                )
                ax.imshow(mixed, interpolation="nearest")
            ax.set_xticks([])
            ax.set_yticks([])
            if row == 0:
                ax.set_title(captions[column], fontsize=8)
            if column == 0:
                ax.set_ylabel(INPUT_WORDS[name], fontsize=9)
            if row == len(shown) - 1:
                others = [f"{INPUT_WORDS[of]} {maps[of][column].sum():+.2g}" for of in maps if of not in shown]
                ax.set_xlabel("\n".join(others), fontsize=8)
    place = figure.add_axes((1 - 0.8 / width, 0.55 / height, 0.12 / width, 1 - 1.1 / height))
    bar = figure.colorbar(ScalarMappable(norm, colours), cax=place)
    bar.set_label("reward per " + ("cell" if cells else "pixel"), fontsize=8)
    bar.ax.tick_params(labelsize=7)
    return figure


def _draw_cells(ax: Axes, codes: Array, values: FloatArray, colours: Any, norm: Normalize) -> None:
    ax.imshow(values, cmap=colours, norm=norm, interpolation="nearest")
    common = np.unique(codes, return_counts=True)
    empty = common[0][common[1].argmax()]
    for (row, column), code in np.ndenumerate(codes):
        if code != empty:
            dark = colours(norm(values[row, column]))[:3]
            ink = "white" if float(np.dot(dark, (0.3, 0.6, 0.1))) < 0.5 else "black"
            size = min(8.0, 80.0 / max(codes.shape))
            ax.text(column, row, f"{code:g}", ha="center", va="center", fontsize=size, color=ink)


def _bars(background: Background, steps: Transitions, captions: Sequence[str], maps: Maps) -> Figure:
    sums = background.part_sums(maps)
    top = np.sort(np.argsort(-np.abs(sums).mean(0), kind="stable")[:BARS])[::-1]
    limit = float(np.abs(sums).max()) * 1.05 or 1.0
    width, height = 1.6 * len(steps) + 2.6, 0.24 * len(top) + 1.2
    figure = Figure(figsize=(width, height))
    axes = figure.subplots(1, len(steps), squeeze=False, sharey=True)[0]
    figure.subplots_adjust(2.5 / width, 0.6 / height, 1 - 0.1 / width, 1 - 0.45 / height, 0.08)
    for column, ax in enumerate(axes):
        values = sums[column, top]
        ax.barh(range(len(top)), values, color=np.where(values >= 0, "#b2182b", "#2166ac"))
        ax.axvline(0.0, color="#59636e", linewidth=0.6)
        ax.set_xlim(-limit if sums.min() < 0 else 0.0, limit)
        ax.set_title(captions[column], fontsize=8)
        ax.set_yticks(range(len(top)), [background.part_names[i] for i in top], fontsize=8)
        ax.tick_params(axis="x", labelsize=7)
    axes[len(axes) // 2].set_xlabel("units of the reward", fontsize=8)
    return figure


def _cross_out(figure: Figure, why: str) -> None:
    """Cross the figure out and write the reason below it."""
    width, height = figure.get_size_inches()
    text = textwrap.wrap("Don't trust this: " + why, max(30, int(width * 13)))
    below = 0.17 * len(text) + 0.1
    figure.set_size_inches(width, height + below)
    share = below / (height + below)
    for ax in figure.axes:
        at = ax.get_position()
        ax.set_position((at.x0, share + at.y0 * (1 - share), at.width, at.height * (1 - share)))
    for ends in ([share, 1.0], [1.0, share]):
        figure.add_artist(Line2D([0, 1], ends, color=CROSS, linewidth=5, alpha=0.8, transform=figure.transFigure))
    figure.text(0.5, share / 2, "\n".join(text), ha="center", va="center", fontsize=9, color=CROSS)


def _plane(values: FloatArray) -> FloatArray:
    """Add the channels of images ``[n, height, width, channels]``; leave other maps."""
    return values.sum(-1) if values.ndim == 4 else values
