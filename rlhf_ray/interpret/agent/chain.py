"""The chain from an agent to its report: steps that read each other's artefacts. One file per step in `steps`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.agent import Agent
from rlhf_ray.interpret.section import Section

Mapper = Callable[..., Iterable[Any]]
"""Like ``map``: applies a function to each item, in order, here or on other machines."""


@dataclass(frozen=True)
class Work:
    """What a step of the chain works with.

    Attributes:
        agent: the agent.
        environment: its environment's name.
        make_batch: makes that many copies of the environment.
        folders: the artefacts of the steps that this one reads, by name.
        out: folder for the step's own artefacts, new and empty.
        unfinished: folder for what a stopped step can go on from, for example a training's newest checkpoint; it may not exist. It
            is removed once the step is finished.
        seed: seeds every draw; use `rng`.
        effort: amount of work relative to the normal report: 0.1 for a quick look.
        mapper: runs a step's independent parts, for example one per sample.
        told: called with what a long step is doing.
    """

    agent: Agent
    environment: str
    make_batch: Callable[[int], EnvBatch]
    folders: Mapping[str, Path]
    out: Path
    unfinished: Path
    seed: int = 0
    effort: float = 1.0
    mapper: Mapper = map
    told: Callable[[str], None] = field(default=lambda text: None)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator for ``purpose``: the same draws whatever other steps drew."""
        return np.random.default_rng([self.seed, *purpose.encode()])


class ChainStep(Protocol):
    """One step: a module of `rlhf_ray.interpret.agent.steps` with these names.

    Attributes:
        NAME: the step's name, and its artefacts' folder.
        TITLE: heading in the report.
        AFTER: steps whose artefacts it reads.
    """

    NAME: str
    TITLE: str
    AFTER: Sequence[str]

    def unsuitable(self, work: Work) -> str | None:
        """Return why the step does not apply, in one sentence; None if it does. Steps after it that need it are left out too."""
        ...

    def run(self, work: Work) -> Section:
        """Write the artefacts to ``work.out`` and return what the report says."""
        ...
