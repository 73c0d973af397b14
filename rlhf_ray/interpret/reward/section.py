"""What a tool reports: a section with checks, statements, tables and pictures. The report puts sections together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.regions import Regions
from rlhf_ray.reward.functions import RewardFunction

Kind = Literal["rewards", "ignores", "warning"]


@dataclass(frozen=True)
class Statement:
    """One sentence of the verdict.

    Attributes:
        kind: "rewards": what the reward seems to depend on; "ignores": what it does not; "warning": why to distrust the reward or
            a tool.
        text: the sentence, in plain words, with its figures.
        weight: orders the statements of one kind in a section, the largest first.
    """

    kind: Kind
    text: str
    weight: float = 0.0


@dataclass(frozen=True)
class Check:
    """One check of a tool or of the reward.

    Attributes:
        name: what is checked.
        passed: whether it passed; None if it could not be made.
        value: the measured value; None without one.
        bound: what it has to be, in words, for example ``"> 0.5"``.
        says: what it means that the check failed (or could not be made); empty if it passed.
    """

    name: str
    passed: bool | None
    value: float | None = None
    bound: str = ""
    says: str = ""


@dataclass(frozen=True)
class Table:
    """A table: column heads, rows of texts and numbers, and a caption."""

    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]
    caption: str = ""


@dataclass(frozen=True)
class Picture:
    """A picture.

    Attributes:
        name: file name without ending, unique within the section.
        image: the image, PNG.
        caption: what it shows.
        crossed_out: why not to trust it; None if all its checks passed. The picture itself is already drawn crossed out.
    """

    name: str
    image: bytes
    caption: str
    crossed_out: str | None = None


@dataclass(frozen=True)
class Section:
    """What one tool found.

    Attributes:
        name: the tool's name.
        title: heading in the report.
        statements: sentences for the verdict.
        checks: the checks that the tool made.
        tables: tables.
        pictures: pictures.
        values: all figures, for the report's JSON twin: numbers, texts, lists and dicts.
        skipped: why the tool does not apply; None if it ran.
    """

    name: str
    title: str
    statements: Sequence[Statement] = ()
    checks: Sequence[Check] = ()
    tables: Sequence[Table] = ()
    pictures: Sequence[Picture] = ()
    values: dict[str, Any] = field(default_factory=dict)
    skipped: str | None = None


@dataclass(frozen=True)
class Subject:
    """What a tool looks at.

    Attributes:
        reward: the reward function.
        data: steps to look at, whole episodes where possible, with true rewards where they are known.
        gamma: discount of the agent that learns from the reward.
        seed: seeds every draw; use `rng`.
        environment: name for `rlhf_ray.envs.make_env`; None if unknown.
        regions: the observations' parts; None for tables.
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
