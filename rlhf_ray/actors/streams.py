"""OwnStreams: random streams for actors that share a process with the agent."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch


class OwnStreams:
    """Context manager: inside, Python's, numpy's and torch's global generators are those of this object, not the process's.

    So a user's teacher, say, that draws from them or seeds them leaves the agent's random numbers alone, as in a process of its
    own. Threads share the generators: enter it where no other thread draws.
    """

    def __init__(self) -> None:
        self._inside: tuple[Any, ...] = (
            random.Random().getstate(),
            np.random.RandomState().get_state(),
            torch.Generator().get_state(),
        )
        self._outside: tuple[Any, ...] | None = None

    def __enter__(self) -> None:
        self._outside = random.getstate(), np.random.get_state(), torch.get_rng_state()
        _set(*self._inside)

    def __exit__(self, *exception: object) -> None:
        self._inside = random.getstate(), np.random.get_state(), torch.get_rng_state()
        assert self._outside is not None
        _set(*self._outside)


def _set(python: Any, of_numpy: Any, of_torch: torch.Tensor) -> None:
    random.setstate(python)
    np.random.set_state(of_numpy)
    torch.set_rng_state(of_torch)
