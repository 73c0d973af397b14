"""Named random streams: no two draws, processes or environments of a run, or of runs with different seeds, share one.

Each draw of the ring uses a fresh generator seeded with (seed, stream, numbers), with no state in between. So a restarted actor, or
a run resumed from a checkpoint, makes the same draws as the lost one would have. Processes that carry their generators along take
a `sequence`, which numpy's `SeedSequence.spawn` divides further.
"""

import numpy as np

_STREAMS = (
    *("pairs", "answers", "rollouts", "fragments", "films", "recordings", "unlabelled", "exploration"),
    *("first actions", "waits"),
)
"""Numbered from 1. The order must not change: runs of earlier versions resume with it."""

_PROCESSES = ("algorithm", "env runners", "evaluation", "learners", "fresh policy")
"""The number of each kind is the first element of its spawn keys."""


def generator(seed: int, stream: str, *numbers: int) -> np.random.Generator:
    """Return the generator for draw ``numbers`` (each 0 or more) of ``stream`` in a run with this ``seed``."""
    return np.random.default_rng([seed, _STREAMS.index(stream) + 1, *numbers])


def sequence(seed: int, process: str, *numbers: int) -> np.random.SeedSequence:
    """Return the seeds of process ``numbers`` (each 0 or more) of this kind in a run with this ``seed``."""
    return np.random.SeedSequence(seed, spawn_key=(_PROCESSES.index(process), *numbers))


def number_of(seeds: np.random.SeedSequence) -> int:
    """Return a seed of 31 bits, which every environment and library accepts."""
    return int(seeds.generate_state(1)[0] >> 1)
