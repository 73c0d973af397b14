"""A step of a study, what it gets, and how it is found by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry
from rlhf_ray.study.kept import read_figures
from rlhf_ray.study.section import Section


class StudySubject(Protocol):
    """What a study examines: a reward on data, an agent in an environment, two agents.

    Attributes:
        seed: seeds every draw.
        effort: amount of work relative to the normal study: 0.1 for a quick look.
        digest: hash of what a step's result depends on, besides the code, the seed and the effort.
    """

    @property
    def seed(self) -> int: ...  # noqa: D102

    @property
    def effort(self) -> float: ...  # noqa: D102

    @property
    def digest(self) -> str: ...  # noqa: D102


S = TypeVar("S", bound=StudySubject)
F = TypeVar("F")


@dataclass(frozen=True)
class StepContext(Generic[S]):
    """What a step gets.

    Attributes:
        subject: what the study examines.
        folders: the artefacts of the steps that this one needs, by name; without those that were left out or failed.
        out: folder for the step's own artefacts, new and empty.
        unfinished: folder for what a stopped step can resume from, for example a training's newest checkpoint; it may not exist.
            It is removed once the step is finished.
        say: called with what a long step is doing.
        warnings: reasons to distrust the step that its section says besides its own; see `warn`.
    """

    subject: S
    folders: Mapping[str, Path] = field(default_factory=dict)
    out: Path = Path()
    unfinished: Path = Path()
    say: Callable[[str], None] = lambda text: None
    warnings: list[str] = field(default_factory=list)

    def warn(self, text: str) -> None:
        """Let the step's section say ``text`` as a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def figures(self, step: str, kind: type[F]) -> F | None:
        """Return the figures of a step that this one needs, of class ``kind``; None if it was left out, failed or was skipped."""
        folder = self.folders.get(step)
        return None if folder is None else read_figures(folder, kind)

    def rng(self, purpose: str) -> np.random.Generator:
        """Return the generator for ``purpose``: the same draws whatever other steps drew."""
        return np.random.default_rng([self.subject.seed, *purpose.encode()])


@dataclass(frozen=True)
class Step(Generic[S]):
    """One step of a study.

    Attributes:
        name: its name on the command line and in the JSON, and its artefacts' folder.
        title: heading on the page.
        run: examines the subject, writes artefacts to ``context.out``, returns what the page says.
        needs: steps whose artefacts it reads.
        why_not: returns why the step does not apply, in one sentence; None if it does.
        options: identifies what of the subject's options the step reads and the subject's digest does not hold.
    """

    name: str
    title: str
    run: Callable[[StepContext[S]], Section]
    needs: tuple[str, ...] = ()
    why_not: Callable[[StepContext[S]], str | None] = lambda context: None
    options: Callable[[S], str] = lambda subject: ""


def find_step(source: str) -> Step[Any]:
    """Import the step at ``module:Name``.

    Raises:
        SettingError: there is none.
    """
    step = STEPS.find(source)
    if not isinstance(step, Step):
        raise SettingError(f"--steps has {source!r}, which is {type(step).__name__}; it must be a rlhf_ray.study.Step.")
    return step


STEPS: Registry[Any] = Registry("--steps", Step, {})
