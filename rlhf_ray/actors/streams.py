"""OwnStreams: random streams for actors and environments that share a process with the agent."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

from rlhf_ray.data.seeds import number_of


class OwnStreams:
    """Context manager: inside, Python's, numpy's and torch's global generators are those of this object, not the process's.

    So a user's teacher or environment, say, that draws from them or seeds them leaves the agent's random numbers alone, as in a
    process of its own. Threads share the generators: enter it where no other thread draws. Entering it again inside has no effect.

    Args:
        seeds: seeds the generators; None: they are different in each process.
        python: whether to exchange Python's generator too, which takes longer than the rest.
    """

    def __init__(self, seeds: np.random.SeedSequence | None = None, *, python: bool = True):
        self.python = python
        self._depth = 0
        self._outside = torch.Generator()
        self.seed(seeds or np.random.SeedSequence())

    def seed(self, seeds: np.random.SeedSequence) -> None:
        """Begin the streams of ``seeds``."""
        number = number_of(seeds)
        self._states: tuple[Any, ...] = (
            random.Random(number).getstate(),
            np.random.MT19937(seeds),
            torch.Generator().manual_seed(number).get_state(),
        )
        self._of_gpus: list[torch.Tensor] = []

    def __enter__(self) -> torch.Generator:
        """Exchange the generators. Returns torch's generator of the process outside, for draws of the agent in between."""
        self._depth += 1
        if self._depth == 1:
            self._exchange()
            self._outside.set_state(self._states[2])
        return self._outside

    def __exit__(self, *exception: object) -> None:
        self._depth -= 1
        if not self._depth:
            self._states = *self._states[:2], self._outside.get_state()
            self._exchange()

    def _exchange(self) -> None:
        python, of_numpy, of_torch = self._states
        if self.python:
            now = random.getstate()
            random.setstate(python)
            python = now
        numpys: Any = np.random
        bits = numpys.get_bit_generator()
        numpys.set_bit_generator(of_numpy)  # a tenth of the time that its state takes
        self._states = python, bits, torch.get_rng_state()
        torch.set_rng_state(of_torch)
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            gpus = torch.cuda.get_rng_state_all()
            if self._of_gpus:
                torch.cuda.set_rng_state_all(self._of_gpus)
            self._of_gpus = gpus
