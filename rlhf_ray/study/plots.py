"""What the pictures of all studies share: PNGs that are the same bytes for the same figure, colours, observations."""

from __future__ import annotations

import io

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_ray.data.arrays import Array

BLUE, ORANGE = "#4477aa", "#ee7733"


def png(figure: Figure, dpi: float = 100) -> bytes:
    """Return ``figure`` as PNG; the same figure gives the same bytes."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi, metadata={"Software": None})
    return buffer.getvalue()


def draw_observation(axes: Axes, observation: Array, grid: tuple[int, int] | None = None, most: float = 1.0) -> bool:
    """Draw an image (its last channels if it has more than four, or two) or a grid; return False for other observations.

    Args:
        axes: where to.
        observation: one observation.
        grid: (rows, columns) if it is a grid.
        most: the largest object code of a grid.
    """
    axes.set(xticks=[], yticks=[])
    if grid is not None and observation.size == grid[0] * grid[1]:
        axes.imshow(np.asarray(observation, float).reshape(grid), cmap="viridis", vmin=0, vmax=max(1.0, most))
        return True
    if observation.ndim == 3:
        channels = observation.shape[2]
        shown = observation if channels == 3 else observation[..., -3:] if channels % 3 == 0 else observation[..., -1]
        shown = shown if shown.dtype == np.uint8 else np.clip(shown, 0, 1)
        axes.imshow(shown, cmap="gray" if shown.ndim == 2 else None)
        return True
    return False
