"""What the pictures of studies share beside curves: PNGs that are the same bytes for the same figure, inputs, films."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from PIL import Image

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.study.curves import COLOURS


def png(figure: Figure, dpi: float = 100) -> bytes:
    """Return ``figure`` as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def rgb(frames: Array) -> Array:
    """Return frames ``[…, h, w, c]`` of any number of channels as uint8 ``[…, h, w, 3]``: of a stack, the newest image."""
    frames = np.asarray(frames)
    if frames.dtype != np.uint8:
        frames = np.clip(np.round(frames), 0, 255).astype(np.uint8)
    return frames[..., -3:] if frames.shape[-1] % 3 == 0 else np.repeat(frames[..., -1:], 3, -1)


def film(frames: Sequence[Array], milliseconds: int, side: int) -> bytes:
    """Return frames ``[h, w, 3]`` uint8 as an animated WebP, as many times larger as makes their smaller side ``side`` or more."""
    by = -(-side // min(frames[0].shape[:2]))
    first, *rest = [Image.fromarray(np.ascontiguousarray(frame.repeat(by, 0).repeat(by, 1))) for frame in frames]
    sink, how = io.BytesIO(), {"lossless": True, "quality": 20, "method": 2}
    first.save(sink, "WEBP", save_all=True, append_images=rest, duration=milliseconds, loop=0, **how)
    return sink.getvalue()


OFF = "#c1121f"


@dataclass(frozen=True)
class Tile:
    """One input in a gallery, with a red frame if it is ``off``: not like the data."""

    frames: Sequence[Array]  # images [height, width, channels] or grids [rows, columns], side by side
    text: str  # below the input
    off: bool = False


def gallery(rows: Sequence[tuple[str, Sequence[Tile]]], largest: float = 1.0) -> bytes:
    """Draw rows of inputs with their titles, as a PNG; ``largest``: highest value of grids."""
    columns = max(len(shown) for _, shown in rows)
    wide = max(len(each.frames) for _, shown in rows for each in shown)
    figure = Figure(figsize=(0.4 + columns * (0.5 + 1.1 * wide), 2.1 * len(rows)), layout="constrained")
    parts = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for part, (title, shown) in zip(parts, rows, strict=True):
        part.suptitle(title, fontsize=9, x=0.01, ha="left")
        axes = part.subplots(1, columns, squeeze=False)[0]
        for axis in axes[len(shown) :]:
            axis.set_axis_off()
        for axis, each in zip(axes, shown, strict=False):
            axis.imshow(_beside([_drawable(frame, largest) for frame in each.frames]), interpolation="nearest")
            axis.set(xticks=[], yticks=[])
            for spine in axis.spines.values():
                spine.set(color=OFF if each.off else "#888888", linewidth=3.0 if each.off else 0.8)
            axis.set_xlabel(each.text, fontsize=6.5, color=OFF if each.off else "black")
    return png(figure, dpi=110)


def _drawable(frame: Array, largest: float) -> Array:
    """Return an RGB image in [0, 1]: colours of three channels; the channels of others side by side in grey; grids in viridis."""
    if frame.ndim == 2:
        return np.asarray(colormaps["viridis"](frame / max(largest, 1e-9))[..., :3])
    scaled = frame / 255.0 if frame.dtype == np.uint8 else np.clip(frame, 0.0, 1.0)
    if scaled.shape[-1] == 3:
        return np.asarray(scaled)
    return _beside([np.repeat(scaled[..., [channel]], 3, -1) for channel in range(min(4, scaled.shape[-1]))])


def _beside(pictures: Sequence[Array]) -> Array:
    gap = np.ones((pictures[0].shape[0], max(1, pictures[0].shape[1] // 16), 3))
    parts: list[Array] = [part for picture in pictures for part in (gap, picture)]
    return np.concatenate(parts[1:], 1)


def bars(names: Sequence[str], series: Mapping[str, Sequence[float]], label: str, chance: float | None = None) -> bytes:
    """Draw a group of horizontal bars for each name, the first at the top."""
    figure = Figure((7.5, 1.2 + 0.22 * len(names) * max(1, len(series))), layout="constrained")
    axes = figure.subplots()
    height = 0.8 / max(1, len(series))
    for at, (name, values) in enumerate(series.items()):
        where = np.arange(len(names)) + (at - (len(series) - 1) / 2) * height
        axes.barh(where, np.nan_to_num(np.array(values, float)), height, label=name, color=COLOURS[at % len(COLOURS)])
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlabel(label)
    axes.set_xlim(min(0.0, axes.get_xlim()[0]), max(1.0, axes.get_xlim()[1]))
    if chance is not None:
        axes.axvline(chance, color="#333333", lw=1, ls="--")
    axes.margins(y=0.02)
    figure.legend(fontsize=8, loc="outside lower center", ncols=4)
    return png(figure)


def scatters(points: FloatArray, colours: Mapping[str, Array]) -> bytes:
    """Draw the same points ``[n, 2]`` once for each colouring ``[n]``: few whole numbers as classes, others as numbers."""
    columns = min(3, len(colours))
    rows = -(-len(colours) // columns)
    figure = Figure((3.7 * columns, 3.2 * rows), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False).flat
    for axes, (name, values) in zip(grid, colours.items(), strict=False):
        values = np.asarray(values, np.float64)
        known = np.isfinite(values)
        axes.plot(*points[~known].T, ".", ms=3, color="#dddddd")
        kinds = np.unique(values[known])
        if len(kinds) <= 6:
            for at, kind in enumerate(kinds):
                own = known & (values == kind)
                colour = "#dddddd" if kind < 0 else COLOURS[at % len(COLOURS)]
                axes.plot(*points[own].T, ".", ms=4, color=colour, label=f"{kind:g}")
            axes.legend(fontsize=7, markerscale=2, loc="best")
        else:
            drawn = axes.scatter(*points[known].T, c=values[known], s=6, cmap="viridis", linewidths=0)
            figure.colorbar(drawn, ax=axes)
        axes.set(xticks=[], yticks=[])
        axes.set_title(name, fontsize=9)
    for axes in figure.axes[len(colours) : rows * columns]:
        axes.set_axis_off()
    return png(figure)


def matrices(rows: Mapping[str, Mapping[str, FloatArray]], names: Sequence[str]) -> bytes:
    """Draw matrices ``[k, k]``: one row of pictures per key, colours centred on 0, one scale for each column."""
    columns = list(dict.fromkeys(key for each in rows.values() for key in each))
    figure = Figure((0.6 + 2.9 * len(columns), 0.4 + 2.6 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    # A component that hardly varies within a behaviour has huge coefficients: they saturate, and leave colour to the others.
    most = {
        key: float(np.quantile(np.abs([each[key] for each in rows.values() if key in each]), 0.97)) for key in columns
    }
    for row, (name, each) in enumerate(rows.items()):
        for column, key in enumerate(columns):
            axes = grid[row, column]
            if key not in each:
                axes.set_axis_off()
                continue
            limit = max(most[key], 1e-9)
            drawn = axes.imshow(each[key], cmap="RdBu_r", vmin=-limit, vmax=limit)
            axes.set_xticks(range(len(names)), names, fontsize=6, rotation=90)
            axes.set_yticks(range(len(names)), names, fontsize=6)
            axes.set_title(f"{name}: {key}", fontsize=8)
            figure.colorbar(drawn, ax=axes, shrink=0.8)
    return png(figure)
