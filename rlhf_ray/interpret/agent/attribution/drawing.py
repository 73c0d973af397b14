"""Drawing attributions: colours over grey frames that saturate instead of wrapping, strips over time, bars for vectors."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.interpret.agent.attribution.methods import plane
from rlhf_ray.interpret.reward.attribution.drawing import grey
from rlhf_ray.study.plots import png

COLOURS = "RdBu_r"
"""Red raises, blue lowers: told apart by the colour-blind too."""
SATURATION = 5.0
"""What is this many times the mean absolute value has the full colour, and so has everything beyond."""
RAISES, LOWERS = "#b2182b", "#2166ac"
BARS = 16
"""Most bars of a vector."""


def scale_of(maps: Array) -> float:
    """Return the value of the full colour: one for everything drawn beside each other. 1 for maps of zeros."""
    size = np.abs(np.asarray(maps, np.float64))
    size = size[np.isfinite(size) & (size > 0)]
    return float(SATURATION * size.mean()) if size.size else 1.0


def overlay(frames: Array, maps: FloatArray, scale: float, faded: BoolArray | None = None) -> Array:
    """Colour grey frames with signed maps.

    Computed in floats and clipped before it becomes bytes, so that a larger value never has a weaker colour.

    Args:
        frames: ``[n, height, width, channels]``, 0..255.
        maps: ``[n, height, width]``.
        scale: value of the full colour.
        faded: ``[n]``: frames beyond the valid horizon, which get no colour.

    Returns:
        uint8 ``[n, height, width, 3]``.
    """
    share = np.clip(np.nan_to_num(np.asarray(maps, np.float64)) / scale, -1.0, 1.0)
    colours = matplotlib.colormaps[COLOURS]((share + 1.0) / 2.0)[..., :3]
    shade = np.stack([0.25 + 0.55 * grey(np.clip(frame, 0, 255).astype(np.uint8)) for frame in frames])[..., None]
    opacity = np.abs(share)[..., None] ** 0.6
    if faded is not None:
        opacity = opacity * ~np.asarray(faded, bool)[:, None, None, None]
    mixed = colours * opacity + shade * (1.0 - opacity)
    return np.asarray(np.clip(np.rint(mixed * 255.0), 0, 255), np.uint8)


def strip(
    frames: Array,
    maps: FloatArray,
    rows: Sequence[str],
    columns: Sequence[str],
    unit: str,
    scale: float | None = None,
    faded: BoolArray | None = None,
) -> bytes:
    """Draw maps over their frames, for example samples below each other and time to the right, as a PNG with one legend.

    Args:
        frames: ``[rows, columns, height, width, channels]`` or vectors ``[rows, columns, features]``.
        maps: the same shape; channels are added. Vectors become bars.
        rows: captions.
        columns: captions.
        unit: of the legend.
        scale: value of the full colour; None: from the maps that are not faded.
        faded: ``[rows, columns]``: beyond the valid horizon: grey, and marked.
    """
    faded = np.zeros(frames.shape[:2], bool) if faded is None else faded
    if frames.ndim != 5:
        return _bars(maps.reshape(*maps.shape[:2], -1), rows, columns, unit, faded)
    planes = plane(maps) if maps.ndim == 5 else maps
    scale = scale or scale_of(planes[~faded])
    images = np.stack([overlay(frames[i], planes[i], scale, faded[i]) for i in range(len(frames))])
    figure, ax = _mosaic(images, rows, columns, faded)
    bar = figure.colorbar(ScalarMappable(Normalize(-scale, scale), COLOURS), ax=ax, extend="both", shrink=0.9, pad=0.02)
    bar.set_label(f"{unit}\n(red raises, blue lowers)", fontsize=7)
    bar.ax.tick_params(labelsize=6)
    return png(figure)


def frames_picture(frames: Array, rows: Sequence[str], columns: Sequence[str], faded: BoolArray) -> bytes:
    """Draw frames, or bars for vectors, below and beside each other, as a PNG.

    Args:
        frames: ``[rows, columns, …]``.
        rows: captions.
        columns: captions.
        faded: ``[rows, columns]``: beyond the valid horizon: grey, and marked.
    """
    if frames.ndim != 5:
        return _bars(frames.reshape(*frames.shape[:2], -1), rows, columns, "value", faded)
    images = np.asarray(np.clip(np.rint(frames), 0, 255), np.uint8)
    colours = images[..., -3:] if images.shape[-1] % 3 == 0 else np.repeat(images[..., -1:], 3, -1)
    grey_ones = np.repeat(colours.mean(-1, keepdims=True) * 0.4 + 75.0, 3, -1).astype(np.uint8)
    return png(_mosaic(np.where(faded[:, :, None, None, None], grey_ones, colours), rows, columns, faded)[0])


def _mosaic(images: Array, rows: Sequence[str], columns: Sequence[str], faded: BoolArray) -> tuple[Figure, Axes]:
    """Draw images ``[rows, columns, height, width, 3]`` as one: an axes for each would take seconds."""
    height, width = images.shape[2:4]
    gap = max(1, width // 16)
    whole = np.full((len(rows) * (height + gap) - gap, len(columns) * (width + gap) - gap, 3), 255, np.uint8)
    for i, j in np.ndindex(*images.shape[:2]):
        top, left = i * (height + gap), j * (width + gap)
        whole[top : top + height, left : left + width] = images[i, j]
    figure = Figure((1.2 * len(columns) + 1.9, 1.2 * len(rows) + 0.5), layout="constrained")
    ax = figure.subplots()
    ax.imshow(whole, interpolation="nearest")
    middle_x = np.arange(len(columns)) * (width + gap) + width / 2 - 0.5
    middle_y = np.arange(len(rows)) * (height + gap) + height / 2 - 0.5
    ax.xaxis.tick_top()
    ax.set_xticks(middle_x, columns, fontsize=8)
    ax.set_yticks(middle_y, rows, fontsize=8)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    for i, j in np.argwhere(faded):
        ax.text(middle_x[j], middle_y[i], "beyond the\nvalid horizon", ha="center", va="center", fontsize=6, color="white",
                bbox={"facecolor": "black", "alpha": 0.5, "pad": 1})  # fmt: skip
    return figure, ax


def _bars(maps: FloatArray, rows: Sequence[str], columns: Sequence[str], unit: str, faded: BoolArray) -> bytes:
    top = np.sort(np.argsort(-np.abs(maps).mean((0, 1)), kind="stable")[:BARS])[::-1]
    limit = float(np.abs(maps).max(initial=0.0)) * 1.05 or 1.0
    width, height = 1.3 * len(columns) + 1.6, (0.16 * len(top) + 0.4) * len(rows) + 0.6
    figure = Figure((width, height), layout="constrained")
    axes = figure.subplots(len(rows), len(columns), squeeze=False, sharex=True, sharey=True)
    for i, name in enumerate(rows):
        for j, ax in enumerate(axes[i]):
            values = maps[i, j, top]
            colour = np.where(values >= 0, RAISES, LOWERS) if not faded[i, j] else "#bbbbbb"
            ax.barh(range(len(top)), values, color=colour)
            ax.axvline(0.0, color="#59636e", linewidth=0.6)
            ax.set_xlim(-limit, limit)
            ax.set_yticks(range(len(top)), [f"feature {k}" for k in top], fontsize=7)
            ax.tick_params(axis="x", labelsize=6)
            if i == 0:
                ax.set_title(columns[j], fontsize=8)
            if j == 0:
                ax.set_ylabel(name, fontsize=8)
    figure.supxlabel(unit, fontsize=8)
    return png(figure)


def curves_figure(shares: FloatArray, lines: dict[str, FloatArray], chance: dict[str, FloatArray], unit: str) -> bytes:
    """Draw deletion and insertion curves beside their random orders (grey), as a PNG.

    Args:
        shares: ``[levels]``.
        lines: by name, ``[levels]``.
        chance: by the same names, ``[orders, levels]``.
        unit: of the curves.
    """
    figure = Figure((3.4 * len(lines), 2.8), layout="constrained")
    for ax, (name, line) in zip(figure.subplots(1, len(lines), squeeze=False)[0], lines.items(), strict=True):
        ax.plot(shares, chance[name].T, color="#aaaaaa", linewidth=0.7)
        ax.plot(shares, line, "o-", color="#4477aa", ms=3)
        ax.set_title(name, fontsize=9)
        ax.set_xlabel("share of the frame", fontsize=8)
        ax.set_ylabel(unit, fontsize=8)
        ax.tick_params(labelsize=7)
    return png(figure)
