"""Named random streams: each draw uses a fresh generator seeded with (seed, stream, numbers), with no state in between.

So a restarted actor, or a run resumed from a checkpoint, makes the same draws as the lost one would have.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal["pairs", "answers", "rollouts", "fragments", "films", "recordings", "unlabelled", "exploration"]

_NUMBERS: dict[Stream, int] = {
    "pairs": 1,
    "answers": 2,
    "rollouts": 3,
    "fragments": 4,
    "films": 5,
    "recordings": 6,
    "unlabelled": 7,
    "exploration": 8,
}
"""Number of each stream. Existing numbers must not change: runs of earlier versions resume with them."""


def generator(seed: int, stream: Stream, *numbers: int) -> np.random.Generator:
    """Return the generator for draw ``numbers`` (each 0 or more) of ``stream`` in a run with this ``seed``."""
    return np.random.default_rng([seed, _NUMBERS[stream], *numbers])
