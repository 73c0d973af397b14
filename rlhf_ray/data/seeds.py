"""Random streams by name: everything random is drawn from a generator of (seed, stream, number), never from a carried one.

So a restarted actor, or a run that continues from a checkpoint, draws what the lost one would have drawn.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal["pairs", "answers", "rollouts", "fragments", "films"]

_NUMBERS: dict[Stream, int] = {"pairs": 1, "answers": 2, "rollouts": 3, "fragments": 4, "films": 5}
"""Of each stream. A new stream takes a new number: runs of earlier versions are continued with these."""


def generator(seed: int, stream: Stream, *numbers: int) -> np.random.Generator:
    """The generator of ``stream``'s draws number ``numbers`` (each 0 or more) in a run with this ``seed``."""
    return np.random.default_rng([seed, _NUMBERS[stream], *numbers])
