"""Named random streams: no two draws, processes or environments of a run, or of runs with different seeds, share one.

Each draw of the ring uses a fresh generator seeded with (seed, stream, numbers), with no state in between. So a restarted actor, or
a run resumed from a checkpoint, makes the same draws as the lost one would have. Processes that carry their generators along take
a `sequence`, which numpy's `SeedSequence.spawn` divides further.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

Stream = Literal[
    "pairs",
    "answers",
    "rollouts",
    "fragments",
    "films",
    "recordings",
    "unlabelled",
    "exploration",
    "first actions",
    "waits",
]

Process = Literal["algorithm", "env runners", "evaluation", "learners"]

_NUMBERS: dict[Stream, int] = {
    "pairs": 1,
    "answers": 2,
    "rollouts": 3,
    "fragments": 4,
    "films": 5,
    "recordings": 6,
    "unlabelled": 7,
    "exploration": 8,
    "first actions": 9,
    "waits": 10,
}
"""Number of each stream. Existing numbers must not change: runs of earlier versions resume with them."""

_KEYS: dict[Process, int] = {"algorithm": 0, "env runners": 1, "evaluation": 2, "learners": 3}
"""First element of each kind of process's spawn keys."""


def generator(seed: int, stream: Stream, *numbers: int) -> np.random.Generator:
    """Return the generator for draw ``numbers`` (each 0 or more) of ``stream`` in a run with this ``seed``."""
    return np.random.default_rng([seed, _NUMBERS[stream], *numbers])


def sequence(seed: int, process: Process, *numbers: int) -> np.random.SeedSequence:
    """Return the seeds of process ``numbers`` (each 0 or more) of this kind in a run with this ``seed``."""
    return np.random.SeedSequence(seed, spawn_key=(_KEYS[process], *numbers))


def number_of(seeds: np.random.SeedSequence) -> int:
    """Return a seed of 31 bits, which every environment and library accepts."""
    return int(seeds.generate_state(1)[0] >> 1)
