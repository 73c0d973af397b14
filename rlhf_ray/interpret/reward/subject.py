"""What a tool of the reward report gets (`Subject`) and is (`Tool`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.regions import Regions, regions_in
from rlhf_ray.interpret.section import Section
from rlhf_ray.reward.functions import RewardFunction


@dataclass(frozen=True)
class Subject:
    """What a tool looks at.

    Attributes:
        reward: the reward function.
        data: steps to look at, whole episodes where possible, with true rewards where they are known.
        gamma: discount of the agent that learns from the reward.
        seed: seeds every draw; use `rng`.
        environment: name for `rlhf_ray.envs.make_env`; None if unknown.
        regions: the observations' parts, from `rlhf_ray.interpret.reward.regions.regions_of`; by default grid cells and named
            features where the environment tells them, 8 x 8 patches of an image, or else features. None for tables.
        effort: number of samples, steps and restarts relative to the normal report: 0.1 for a quick look.
        edits: the user's own counterfactuals: a JSON file of edits, or a folder of edited images; None for automatic ones.
    """

    reward: RewardFunction
    data: Transitions
    gamma: float = 0.99
    seed: int = 0
    environment: str | None = None
    regions: Regions | None = None
    effort: float = 1.0
    edits: Path | None = None

    def __post_init__(self) -> None:
        if self.regions is None:
            object.__setattr__(self, "regions", regions_in(self.environment, self.reward))

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator for ``purpose``: the same draws whatever other tools drew."""
        return np.random.default_rng([self.seed, *purpose.encode()])


class Tool(Protocol):
    """A tool: one module in `rlhf_ray.interpret.reward.sections` with these names.

    Attributes:
        NAME: name in ``--tools`` and in the JSON.
        TITLE: heading in the report.
    """

    NAME: str
    TITLE: str

    def unsuitable(self, subject: Subject) -> str | None:
        """Return why the tool does not apply to ``subject``, in one sentence; None if it does."""
        ...

    def look(self, subject: Subject) -> Section:
        """Run the tool."""
        ...
