"""Figures of attributions: maps over grey images, cells of grids, bars for vectors, strips over time; crossed out if not trusted.

Red raises, blue lowers: told apart by the colour-blind too.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.interpret.attribution.question import Maps, Question
from rlhf_ray.study.plots import png, rgb

SIGNED, UNSIGNED = "RdBu_r", "viridis"
RAISES, LOWERS, CROSS = "#b2182b", "#2166ac", "#c0392b"
ON_DARK = {"raises": "#f0776c", "lowers": "#6aaee8", "cross": "#ff8a7a"}
"""These colours on a dark page."""
SATURATION = 5.0
"""In strips, what is this many times the mean absolute value has the full colour, and so has everything beyond."""
BARS = 16
"""Most bars of a vector."""
SIDE = 1.2
"""Inches per picture of a mosaic."""


def plane(maps: FloatArray) -> FloatArray:
    """Add the channels of maps of images ``[…, height, width, channels]``; the sign stays."""
    return np.asarray(maps.sum(-1))


def grey(image: Array) -> FloatArray:
    """Return an image ``[height, width, channels]`` as grey values 0 to 1: of a stack, the newest frame."""
    channels = image.shape[-1]
    newest = image[..., -3:] if channels % 3 == 0 else image[..., -1:]
    values = newest.astype(np.float64).mean(-1)
    top = 255.0 if image.dtype == np.uint8 else float(np.abs(values).max()) or 1.0
    return np.asarray(np.clip(values / top, 0.0, 1.0))


def largest(maps: Mapping[str, FloatArray]) -> float:
    """Return the largest absolute value of all maps, channels added: the one colour scale of a figure; 1 for maps of zeros."""
    planes = (plane(values) if values.ndim == 4 else values for values in maps.values())
    return max((float(np.abs(values).max()) for values in planes), default=0.0) or 1.0


def saturating(maps: Array) -> float:
    """Return the value of the full colour of a strip: one for everything drawn beside each other. 1 for maps of zeros."""
    size = np.abs(np.asarray(maps, np.float64))
    size = size[np.isfinite(size) & (size > 0)]
    return float(SATURATION * size.mean()) if size.size else 1.0


def coloured(values: FloatArray, scale: float, signed: bool = True) -> FloatArray:
    """Return the colours ``[…, 3]`` of values, clipped to the scale."""
    share = np.clip(np.nan_to_num(np.asarray(values, np.float64)) / scale, -1.0, 1.0)
    colours = matplotlib.colormaps[SIGNED if signed else UNSIGNED]
    return np.asarray(colours((share + 1.0) / 2.0 if signed else share)[..., :3])


def overlay(
    frames: Array, maps: FloatArray, scale: float, faded: BoolArray | None = None, signed: bool = True
) -> Array:
    """Colour grey frames ``[n, height, width, channels]`` with maps ``[n, height, width]``: uint8 ``[n, height, width, 3]``.

    Computed in floats and clipped before it becomes bytes, so that a larger value never has a weaker colour than ``scale``, the
    value of the full one. ``faded`` frames ``[n]``, beyond the valid horizon, get none.
    """
    shade = np.stack([0.25 + 0.55 * grey(frame) for frame in frames])[..., None]
    opacity = np.clip(np.abs(np.nan_to_num(maps)) / scale, 0.0, 1.0)[..., None] ** 0.6
    if faded is not None:
        opacity = opacity * ~np.asarray(faded, bool)[:, None, None, None]
    mixed = coloured(maps, scale, signed) * opacity + shade * (1.0 - opacity)
    return np.asarray(np.clip(np.rint(mixed * 255.0), 0, 255), np.uint8)


def draw(
    question: Question, moments: Any, captions: Sequence[str], maps: Maps, signed: bool, crossed_out: str | None = None
) -> bytes:
    """Draw the maps of some moments, one column each, all on one scale, as a PNG.

    ``crossed_out``: why not to trust the maps; written across them.
    """
    cells = question.cells
    shown = question.images if cells is None else [name for name in maps if maps[name][0].size == np.prod(cells)]
    if shown:
        figure = _planes(question, moments, captions, maps, shown, signed)
    else:
        sums = question.part_sums(maps)[None]
        figure = _bars(sums, [""], captions, question.part_names, f"units of the {question.output}")
    return _finished(figure, crossed_out)


def _finished(figure: Figure, crossed_out: str | None) -> bytes:
    """Return the figure as a PNG, crossed out if there is a reason."""
    if crossed_out:
        _cross_out(figure, crossed_out)
    return png(figure)


def _planes(
    question: Question, moments: Any, captions: Sequence[str], maps: Maps, shown: Sequence[str], signed: bool
) -> Figure:
    """Draw one row for each input that is an image or a grid; below each moment, the sums of the other inputs.

    Numbers beside images (a Dict's) are among those.
    """
    cells, observations, planes = question.cells, question.arrays(moments), question.planes
    count = len(planes)
    numbers = {name: maps[name][..., :count] for name in (shown if planes else ())}
    maps = {name: values[..., count:] if name in numbers else values for name, values in maps.items()}
    scale = largest({name: maps[name] for name in shown})
    if cells is None:
        rows = [overlay(observations[name][..., count:], plane(maps[name]), scale, signed=signed) for name in shown]
    else:
        rows = [coloured(maps[name].reshape(-1, *cells), scale, signed) for name in shown]
    others = {question.words[name]: maps[name] for name in maps if name not in shown}
    for name, values in numbers.items():
        when = f" in {question.words[name]}" if len(numbers) > 1 else ""
        others |= {f"{each}{when}": values[..., at] for at, each in enumerate(planes)}
    below = [
        "\n".join(f"{name} {values[moment].sum():+.2g}" for name, values in others.items())
        for moment in range(len(captions))
    ]
    words = [question.words[name] for name in shown]
    figure, ax, corners = _mosaic(np.stack(rows), words, captions, 1.4 * SIDE, below)
    for row, name in enumerate(shown if cells is not None else ()):
        for column, codes in enumerate(observations[name].reshape(-1, *cells)):  # type: ignore[misc]
            _write_codes(ax, codes, rows[row][column], corners[row, column])
    _legend(figure, ax, scale, signed, f"{question.output} per " + ("pixel" if cells is None else "cell"))
    return figure


def _write_codes(ax: Axes, codes: Array, colours: FloatArray, corner: Array) -> None:
    """Write the codes of a grid's cells on them, but for the most common one."""
    values, counts = np.unique(codes, return_counts=True)
    size = min(8.0, 80.0 / max(codes.shape))
    for (row, column), code in np.ndenumerate(codes):
        if code != values[counts.argmax()]:
            ink = "white" if float(np.dot(colours[row, column], (0.3, 0.6, 0.1))) < 0.5 else "black"
            place = corner[1] + column, corner[0] + row
            ax.text(*place, f"{code:g}", ha="center", va="center", fontsize=size, color=ink)


def strip(
    frames: Array,
    maps: FloatArray | None,
    rows: Sequence[str],
    columns: Sequence[str],
    unit: str = "value",
    faded: BoolArray | None = None,
    crossed_out: str | None = None,
    names: Sequence[str] = (),
) -> bytes:
    """Draw frames, with maps over them, for example samples below each other and time to the right, as a PNG with one legend.

    Frames are ``[rows, columns, height, width, channels]``, 0..255, or vectors ``[rows, columns, features]``, drawn as bars with
    the features' ``names``; maps have the same shape, and their channels are added. ``rows`` and ``columns`` are captions, and
    ``unit`` is the legend's. What is ``faded`` ``[rows, columns]``, beyond the valid horizon, is grey, and marked;
    ``crossed_out`` is why not to trust the maps, and is written across them.
    """
    faded = np.zeros(frames.shape[:2], bool) if faded is None else faded
    if frames.ndim != 5:
        values = frames if maps is None else maps
        flat = values.reshape(*values.shape[:2], -1)
        bars = _bars(flat, rows, columns, list(names) or [f"feature {k}" for k in range(flat.shape[2])], unit, faded)
        return _finished(bars, crossed_out)
    images = np.asarray(np.clip(np.rint(frames), 0, 255), np.uint8)
    if maps is None:
        colours = rgb(images)
        pale = np.repeat(colours.mean(-1, keepdims=True) * 0.4 + 75.0, 3, -1).astype(np.uint8)
        figure, ax, corners = _mosaic(np.where(faded[:, :, None, None, None], pale, colours), rows, columns)
    else:
        planes = plane(maps) if maps.ndim == 5 else maps
        scale = saturating(planes[~faded])
        drawn = [overlay(*drawn_row) for drawn_row in zip(images, planes, [scale] * len(rows), faded, strict=True)]
        figure, ax, corners = _mosaic(np.stack(drawn), rows, columns)
        _legend(figure, ax, scale, True, unit)
    height, width = frames.shape[2:4]
    for top, left in corners[faded]:
        ax.text(
            left + width / 2,
            top + height / 2,
            "beyond the\nvalid horizon",
            ha="center",
            va="center",
            fontsize=6,
            color="white",
            bbox={"facecolor": "black", "alpha": 0.5, "pad": 1},
        )
    return _finished(figure, crossed_out)


def curves_figure(shares: FloatArray, lines: dict[str, FloatArray], chance: dict[str, FloatArray], unit: str) -> bytes:
    """Draw deletion and insertion curves ``[levels]`` beside their random orders ``[orders, levels]`` (grey), as a PNG."""
    figure = Figure((3.4 * len(lines), 2.8), layout="constrained")
    for ax, (name, line) in zip(figure.subplots(1, len(lines), squeeze=False)[0], lines.items(), strict=True):
        ax.plot(shares, chance[name].T, color="#aaaaaa", linewidth=0.7)
        ax.plot(shares, line, "o-", color="#4477aa", ms=3)
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("share of the frame", fontsize=8)
        ax.set_ylabel(unit, fontsize=8)
        ax.tick_params(labelsize=7)
    return png(figure)


def _mosaic(
    images: Array, rows: Sequence[str], columns: Sequence[str], side: float = SIDE, below: Sequence[str] = ()
) -> tuple[Figure, Axes, Array]:
    """Draw images ``[rows, columns, height, width, 3]`` as one: an axes for each would take seconds.

    Return the figure, its axes, and the top left corners of the images, ``[rows, columns, 2]``, too.
    """
    height, width = images.shape[2:4]
    gap = max(1, width // 16)
    shape = len(rows) * (height + gap) - gap, len(columns) * (width + gap) - gap, 3
    whole = np.full(shape, 255 if images.dtype == np.uint8 else 1.0, images.dtype)
    tops, lefts = (np.arange(count) * (side + gap) for count, side in zip(images.shape, (height, width), strict=False))
    corners = np.stack(np.meshgrid(tops, lefts, indexing="ij"), -1)
    for (top, left), image in zip(corners.reshape(-1, 2), images.reshape(-1, height, width, 3), strict=True):
        whole[top : top + height, left : left + width] = image
    figure = Figure((side * len(columns) + 1.9, side * len(rows) + (0.8 if any(below) else 0.5)), layout="constrained")
    ax = figure.subplots()
    ax.imshow(whole, interpolation="nearest")
    middle_x = corners[0, :, 1] + width / 2 - 0.5
    ax.xaxis.tick_top()
    ax.set_xticks(middle_x, columns, fontsize=8)
    ax.set_yticks(corners[:, 0, 0] + height / 2 - 0.5, rows, fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for x, text in zip(middle_x, below, strict=False):
        ax.text(x, shape[0] + gap, text, ha="center", va="top", fontsize=6)
    return figure, ax, corners


def _legend(figure: Figure, ax: Axes, scale: float, signed: bool, unit: str) -> None:
    norm, colours = Normalize(-scale if signed else 0.0, scale), SIGNED if signed else UNSIGNED
    bar = figure.colorbar(
        ScalarMappable(norm, colours), ax=ax, extend="both" if signed else "max", shrink=0.9, pad=0.02
    )
    bar.set_label(f"{unit}\n(red raises, blue lowers)" if signed else unit, fontsize=7)
    bar.ax.tick_params(labelsize=6)


def _bars(
    values: FloatArray,
    rows: Sequence[str],
    columns: Sequence[str],
    names: Sequence[str],
    unit: str,
    faded: BoolArray | None = None,
) -> Figure:
    """Draw vectors ``[rows, columns, size]`` as bars: their largest elements, all on one scale."""
    faded = np.zeros(values.shape[:2], bool) if faded is None else faded
    top = np.sort(np.argsort(-np.abs(values).mean((0, 1)), kind="stable")[:BARS])[::-1]
    limit = float(np.abs(values).max(initial=0.0)) * 1.05 or 1.0
    longest = max(len(names[k]) for k in top)
    width, height = 1.4 * len(columns) + 0.6 + 0.07 * longest, (0.2 * len(top) + 0.4) * len(rows) + 0.6
    figure = Figure((width, height), layout="constrained")
    axes: Any = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
    for i, j in np.ndindex(*axes.shape):
        ax, bars = axes[i, j], values[i, j, top]
        ax.barh(range(len(top)), bars, color="#bbbbbb" if faded[i, j] else np.where(bars >= 0, RAISES, LOWERS))
        ax.axvline(0.0, color="#59636e", linewidth=0.6)
        ax.set_xlim(-limit if values.min() < 0 else 0.0, limit)
        ax.set_yticks(range(len(top)), [names[k] for k in top], fontsize=7)
        ax.tick_params(axis="x", labelsize=6)
        if i == 0:
            ax.set_title(columns[j], fontsize=8)
        if j == 0:
            ax.set_ylabel(rows[i], fontsize=8)
    figure.supxlabel(unit, fontsize=8)
    return figure


def _cross_out(figure: Figure, why: str) -> None:
    """Cross the figure out and write the reason below it."""
    width, height = figure.get_size_inches()
    text = textwrap.wrap("Don't trust this: " + why, max(30, int(width * 13)))
    below = 0.17 * len(text) + 0.1
    figure.set_size_inches(width, height + below)
    share = below / (height + below)
    figure.set_layout_engine("constrained", rect=(0, share, 1, 0.97 - share))
    for ends in ([share, 1.0], [1.0, share]):
        figure.add_artist(Line2D([0, 1], ends, color=CROSS, linewidth=5, alpha=0.8, transform=figure.transFigure))
    figure.text(0.5, share / 2, "\n".join(text), ha="center", va="center", fontsize=9, color=CROSS)
