"""What the study of an agent examines."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_ray import envs
from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.agents.replay import site_of
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.identity import identify
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.envs.identity import identity_of
from rlhf_ray.interpret.agent.levels import contents
from rlhf_ray.interpret.attribution import known_methods
from rlhf_ray.study.step import StepContext

NO_RECORDING = "There is no recording of the agent."
COPIES = 64
"""Levels that are played at a time."""


@dataclass(frozen=True)
class AgentSubject:
    """An agent in an environment.

    Attributes:
        agent: the agent.
        environment: the environment's name.
        seed: seeds every draw.
        effort: amount of work relative to the normal report: 0.1 for a quick look.
        batches: makes that many copies of the environment; None: `rlhf_ray.envs.make_batch` does, by name.
        methods: attribution methods, by name, ``module:Name`` of a user's own, or as objects; empty: the usual ones.
    """

    agent: Agent
    environment: str
    seed: int = 0
    effort: float = 1.0
    batches: Callable[[int], EnvBatch] | None = None
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "methods", known_methods(self.methods))

    @cached_property
    def digest(self) -> str:
        """Identify agent and environment by their code and weights."""
        return identify(self.agent.digest, identity_of(self.environment), self.batches)

    @property
    def site_name(self) -> str:
        """What a report calls the place that is looked into (`site_of`)."""
        site = site_of(self.agent)
        return "memory" if site == MEMORY else f"layer {site}"

    @cached_property
    def action_names(self) -> Sequence[str]:
        """What each action does; empty if unknown."""
        batch = self.make_batch(1)
        try:
            return tuple(batch.action_names)
        finally:
            batch.close()

    @cached_property
    def edits(self) -> Mapping[str, str]:
        """What can be edited in a level, and what each edit does."""
        batch = self.make_batch(1)
        try:
            return dict(batch.edits)
        finally:
            batch.close()

    @cached_property
    def _contents(self) -> dict[int, bytes]:
        """What levels show, of those that were asked for."""
        return {}

    def play(self, levels: Sequence[int] | IntArray, **how: Any) -> Episodes:
        """Let the agent play levels; ``how``: see `rlhf_ray.agents.play.play`."""
        batch = self.make_batch(min(COPIES, len(levels)))
        try:
            return play(self.agent, batch, levels, **how)
        finally:
            batch.close()

    def groups(self, levels: Sequence[int] | IntArray) -> IntArray:
        """Return the group of each level ``[n]``: levels of one group have the same content, see `contents`."""
        seeds = np.asarray(levels, np.int64).tolist()
        if new := sorted(set(seeds) - self._contents.keys()):
            self._contents.update(zip(new, contents(self.agent, self.make_batch, new), strict=True))
        groups: IntArray = np.unique([self._contents[seed] for seed in seeds], return_inverse=True)[1].ravel()
        return groups

    def make_batch(self, n: int) -> EnvBatch:
        """Make ``n`` copies of the environment."""
        return envs.make_batch(self.environment, n) if self.batches is None else self.batches(n)

    def count(self, normal: int, fewest: int = 0) -> int:
        """Return how many of something to use with this effort: ``normal`` at effort 1, at least ``fewest``."""
        return max(fewest, round(normal * self.effort))


AgentContext = StepContext[AgentSubject]
"""What a step that examines an agent gets."""


def nothing_inside(context: AgentContext) -> str | None:
    """Return why a step has nothing to look into; None if there is something."""
    if "recording" not in context.folders:
        return NO_RECORDING
    try:
        site_of(context.subject.agent)
    except SettingError as error:
        return str(error)
    return None
