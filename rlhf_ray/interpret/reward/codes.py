"""Grids of codes: change a few cells at a time. Half a wall means nothing, so gradients don't apply."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.manifold import Frame

MOST_CODES = 16
CHANGES = 4
"""Cells that a search may change."""
MOST_TRIED = 3000
"""Changes tried per step and round, drawn if there are more."""


def codes_of(data: Transitions) -> Array | None:
    """Return the codes that the observations consist of; None if they aren't vectors of a few integers."""
    sample = data.observations[:: max(1, len(data) // 500)]
    if sample.ndim != 2:
        return None
    codes = np.unique(sample)
    whole = np.array_equal(codes, np.round(codes))
    return codes if whole and 2 <= len(codes) <= MOST_CODES and sample.shape[1] > 1 else None


def search(
    starts: Transitions,
    frames: tuple[Frame, ...],
    codes: Array,
    value: Callable[[Transitions], FloatArray],
    rng: np.random.Generator,
    changes: int = CHANGES,
) -> Transitions:
    """Change at most ``changes`` cells of each of ``starts``, each time the one that raises ``value`` most.

    Args:
        starts: steps of the data.
        frames: the frames that may change.
        codes: values that a cell may have.
        value: what to raise, ``[n]``.
        rng: draws among the changes if there are too many.
        changes: most cells to change.
    """
    names = {"state": "observations", "next_state": "next_observations"}
    made = []
    for at in range(len(starts)):
        step = starts[at : at + 1]
        size = step.observations.shape[1]
        best = float(value(step)[0])
        for _ in range(changes):
            options = np.array(
                [(f, cell, c) for f in range(len(frames)) for cell in range(size) for c in range(len(codes))]
            )
            if len(options) > MOST_TRIED:
                options = options[np.sort(rng.choice(len(options), MOST_TRIED, replace=False))]
            tried = step[np.zeros(len(options), np.int64)]
            arrays = {names[frame]: getattr(tried, names[frame]).copy() for frame in frames}
            for number, frame in enumerate(frames):
                rows = np.flatnonzero(options[:, 0] == number)
                arrays[names[frame]][rows, options[rows, 1]] = codes[options[rows, 2]]
            tried = tried.with_(**arrays)
            values = value(tried)
            top = int(np.argmax(values))
            if values[top] <= best + 1e-9:
                break
            best, step = float(values[top]), tried[top : top + 1]
        made.append(step)
    return Transitions.concatenate(made)
