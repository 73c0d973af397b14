"""What the study of an agent examines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_ray import envs
from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play, site_of
from rlhf_ray.agents.recorded import Split, load_episodes
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.identity import identify
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.envs.registry import identity_of
from rlhf_ray.interpret.attribution import known_methods
from rlhf_ray.study.step import StepContext

NO_RECORDING = "There is no recording of the agent."
NOT_HELD_OUT = (
    "No recorded level is held out: figures are of levels that something was fitted to. Record more episodes."
)
COPIES, TOGETHER, COMPARED = 64, 32, 200
"""Levels that are played at a time; and where frames are compared; steps that are: longer episodes would not fit the memory."""
ACTING = (0.0, 1.0)
"""Shares of random actions that levels are compared under: the agent may stand still, random actions may end episodes early."""
FEW = 30
"""Distinct levels below which a report warns: a percentile bootstrap's 95 % interval of fewer covers clearly less than 95 %."""
EPISODES, FEWEST = 300, 20
"""Episodes that most steps read: at effort 1, and at least."""


@dataclass(frozen=True)
class AgentSubject:
    """An agent in an environment."""

    agent: Agent  # the agent
    environment: str  # the environment's name
    seed: int = 0  # seeds every draw
    effort: float = 1.0  # amount of work relative to the normal report: 0.1 for a quick look
    # makes that many copies of the environment; None: `rlhf_ray.envs.make_batch` does, by name
    batches: Callable[[int], EnvBatch] | None = None
    # attribution methods, by name, ``module:Name`` of a user's own, or as objects; empty: the usual ones
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
        with closing(self.make_batch(1)) as batch:
            return tuple(batch.action_names)

    @cached_property
    def _contents(self) -> dict[int, bytes]:
        """What levels show, of those that were asked for."""
        return {}

    def play(self, levels: Sequence[int] | IntArray, **how: Any) -> Episodes:
        """Let the agent play levels; ``how``: see `rlhf_ray.agents.play.play`."""
        with closing(self.make_batch(min(COPIES, len(levels)))) as batch:
            return play(self.agent, batch, levels, **how)

    def groups(self, levels: Sequence[int] | IntArray) -> IntArray:
        """Return the group of each level ``[n]``: those of one group show the same, see `ACTING`, and count once."""
        seeds = np.asarray(levels, np.int64).tolist()
        if new := sorted(set(seeds) - self._contents.keys()):
            self._contents.update(zip(new, self._look(new), strict=True))
        return np.asarray(np.unique([self._contents[seed] for seed in seeds], return_inverse=True)[1].ravel())

    def _look(self, levels: Sequence[int]) -> list[bytes]:
        """Digest what each level shows: the same for the same frames and rewards under the same actions."""
        digests = [hashlib.sha256() for _ in levels]
        with closing(self.make_batch(min(TOGETHER, max(len(levels), 1)))) as batch:
            for first in range(0, len(levels), batch.n):
                some = np.asarray(levels)[first : first + batch.n]
                same = np.zeros(len(some), np.int64)  # the number that seeds each episode's random actions
                for epsilon in ACTING:
                    played = play(self.agent, batch, some, epsilon=epsilon, max_steps=COMPARED, indices=same)
                    for row, length in enumerate(played.lengths):
                        digests[first + row].update(played.observations[row, : length + 1].tobytes())
                        digests[first + row].update(played.rewards[row, :length].astype(np.float64).tobytes())
        return [digest.digest() for digest in digests]

    def make_batch(self, n: int) -> EnvBatch:
        """Make ``n`` copies of the environment."""
        return envs.make_batch(self.environment, n) if self.batches is None else self.batches(n)

    def count(self, normal: int, fewest: int = 0) -> int:
        """Return how many of something to use with this effort: ``normal`` at effort 1, at least ``fewest``."""
        return max(fewest, round(normal * self.effort))


AgentContext = StepContext[AgentSubject]
"""What a step that examines an agent gets."""


def nothing_recorded(context: AgentContext) -> str | None:
    """Return why a step has no episodes to read; None if there are some."""
    return None if "recording" in context.folders else NO_RECORDING


def nothing_inside(context: AgentContext) -> str | None:
    """Return why a step has nothing to look into; None if there is something."""
    if "recording" not in context.folders:
        return NO_RECORDING
    try:
        site_of(context.subject.agent)
    except SettingError as error:
        return str(error)
    return None


def recorded(context: AgentContext) -> Episodes:
    """Load recorded episodes of the split for training, fewer with less effort."""
    return split_episodes(context, "train", max(FEWEST, round(EPISODES * min(1.0, context.subject.effort))))


def split_episodes(context: AgentContext, split: Split, most: int) -> Episodes:
    """Load at most ``most`` recorded episodes of a split; of all levels, with a warning, if it has none."""
    folder, agent = context.folders["recording"], context.subject.agent
    try:
        return load_episodes(folder, split=split, most=most, agent=agent)
    except SettingError:
        episodes = load_episodes(folder, most=most, agent=agent)  # raises if the fault is not the split
        context.warn(NOT_HELD_OUT)
        return episodes
