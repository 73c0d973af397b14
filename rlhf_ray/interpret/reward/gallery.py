"""Pictures of made-up inputs: a red frame and the reason where one is off the manifold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import Array
from rlhf_ray.study.plots import png

OFF = "#c1121f"


@dataclass(frozen=True)
class Tile:
    """One input in a gallery.

    Attributes:
        frames: images ``[height, width, channels]`` or grids ``[rows, columns]``, side by side.
        text: below the input.
        off: whether it is off the manifold.
    """

    frames: Sequence[Array]
    text: str
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
    scaled = frame / 255.0
    if scaled.shape[-1] == 3:
        return np.asarray(scaled)
    return _beside([np.repeat(scaled[..., [channel]], 3, -1) for channel in range(min(4, scaled.shape[-1]))])


def _beside(pictures: Sequence[Array]) -> Array:
    gap = np.ones((pictures[0].shape[0], max(1, pictures[0].shape[1] // 16), 3))
    parts: list[Array] = [part for picture in pictures for part in (gap, picture)]
    return np.concatenate(parts[1:], 1)
