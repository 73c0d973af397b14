"""Runs a study: each step once, several at a time, and only if what it depends on has changed.

A step is kept as long as its files are whole and its code, users' own modules, the subject and the steps that it needs are the same
(`rlhf_ray.data.identity`). A step whose files were deleted or changed runs again, and so does everything that needs it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Generic, TypeVar

from rlhf_ray import __version__
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.errors import FaultyEnvironmentError, SettingError
from rlhf_ray.data.failures import debugging, explain
from rlhf_ray.data.identity import identify, own_code
from rlhf_ray.study import kept
from rlhf_ray.study.section import Check, Section
from rlhf_ray.study.step import S, Step, StepContext, find_step

T = TypeVar("T")

PACKAGE = Path(__file__).parents[1]
STUDIED = ("agents", "interpret", "measure", "study")
"""Packages whose code decides what steps find. What lies below them (networks, environments) is identified by the version."""
UNFINISHED = ".unfinished"
"""Folder with what stopped steps resume from."""

Submit = Callable[..., Future[Any]]
"""Starts a function with arguments, now or later, and returns its future."""
Say = Callable[[str, str], None]
"""Called with a step's name and what it is doing."""
Finished = Callable[[str, bool], None]
"""Called with a finished step's name, and whether it was kept from an earlier run."""

_say: Say = lambda name, text: None  # noqa: E731
"""Where this process's steps say what they are doing."""


def listen(say: Say) -> None:
    """Tell ``say`` what the steps that run in this process are doing. A pool's processes call it when they start."""
    global _say
    _say = say


@dataclass(frozen=True)
class Study(Generic[S]):
    """A question about a subject, and the steps that answer it."""

    subject: S  # what it examines
    # ``module:Name`` of each built-in step, by name, in the order of the page; each comes after those it needs
    catalogue: Mapping[str, str]
    folder: Path  # the folder of all artefacts
    own: tuple[str, ...] = ()  # ``module:Name`` of a user's own steps, which come last

    def steps(self, names: Iterable[str] | None = None) -> dict[str, Step[S]]:
        """Return the steps ``names`` and those that they need, by name, in the order of the page. None: all.

        Raises:
            SettingError: there is no such step, or two have one name.
        """
        catalogue = dict(self.catalogue)
        for source in self.own:
            if (name := find_step(source).name) in catalogue:
                raise SettingError(f"--steps has two steps with the name {name!r}; give yours another name.")
            catalogue[name] = source
        sources = {source: name for name, source in catalogue.items()}
        steps: dict[str, Step[S]] = {}
        queue = list(catalogue if names is None else (sources.get(name, name) for name in names))
        while queue:
            name = queue.pop()
            if name not in catalogue:
                raise SettingError(
                    f"--steps has {name!r}; the steps are {', '.join(catalogue)}, or module:Name of your own."
                )
            if name not in steps:
                steps[name] = find_step(catalogue[name])
                queue += [need for need in steps[name].needs if need in catalogue]
        return {name: steps[name] for name in catalogue if name in steps}

    def key(self, step: Step[S], code: str, needs: Sequence[str]) -> str:
        """Hash what a step is made from: its ``code``, the subject, and the identities ``needs`` of the artefacts that it reads."""
        subject = (self.subject.digest, self.subject.seed, self.subject.effort, step.options(self.subject))
        parts = (__version__, step.name, code, *subject, list(needs))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def run_study(
    study: Study[S],
    names: Iterable[str] | None = None,
    *,
    submit: Submit | None = None,
    finished: Finished = lambda name, kept: None,
) -> tuple[Section, ...]:
    """Run the steps ``names`` and those that they need. Finished steps are kept.

    Args:
        study: the subject and its steps.
        names: the steps; None: all.
        submit: starts steps, for example of a process pool; None: one after the other in this process.
        finished: called with each finished step's name, and whether it was kept.

    Returns:
        The sections, in the order of the page.
    """
    steps = study.steps(names)
    codes = {name: code_of(step.run) for name, step in steps.items()}  # before a step loads more modules
    done: dict[str, tuple[Section, str]] = {}  # with the artefacts' identity: empty if there are none
    running: dict[Future[Any], str] = {}
    waiting = list(steps)
    while waiting or running:
        for name in [ready for ready in waiting if all(need in done for need in _needs(steps, ready))]:
            waiting.remove(name)
            needs = [need for need in _needs(steps, name) if done[need][1]]
            key = study.key(steps[name], codes[name], [done[need][1] for need in needs])
            if (earlier := kept.load(study.folder / name, key)) is not None:
                done[name] = earlier
                finished(name, True)
                continue
            arguments = (study, name, key, needs)
            running[submit(run_step, *arguments) if submit else _now(run_step, *arguments)] = name
            if submit is None:
                break
        if not running:
            continue
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            name = running.pop(future)
            done[name] = future.result()
            finished(name, False)
    return tuple(done[name][0] for name in steps)


def run_step(study: Study[S], name: str, key: str, needs: Sequence[str]) -> tuple[Section, str]:
    """Run a step and keep it. Returns its section, and its artefacts' identity: empty if there are none.

    An error becomes a failed check of the section, and the step runs again next time: one bad step must not cost the others'
    results.
    """
    step = study.steps([name])[name]
    folder = study.folder / name
    unfinished = study.folder / UNFINISHED / f"{name}-{key[:16]}"

    def context(out: Path) -> StepContext[S]:
        folders = {need: study.folder / need for need in needs}
        return StepContext(study.subject, folders, out, unfinished, lambda text: _say(name, text))

    _say(name, name.replace("_", " "))
    try:
        if (reason := step.why_not(context(folder))) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            return Section(name, step.title, skipped=reason), ""
        with whole_folder(folder) as new:
            section = run_alone(step, context(new))
            identity = uuid.uuid4().hex
            kept.save(section, new, key, identity)
        for old in unfinished.parent.glob(f"{name}-*"):  # also of other subjects
            shutil.rmtree(old, ignore_errors=True)
        return kept.as_saved(section), identity
    except Exception as error:
        if debugging() or isinstance(error, FaultyEnvironmentError):  # no step can tell anything of such an environment
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SettingError(
                f"--out is {study.folder}: {error.strerror}; free some space or give another folder. Finished steps are "
                "kept, and the same command continues."
            ) from error
        return _failed(name, step.title, error), ""


def run_here(subject: T, steps: Mapping[str, Callable[[T], Section]]) -> tuple[Section, ...]:
    """Run quick steps, functions of a subject by their sections' names, here, and keep nothing. An error becomes a failed check."""
    sections = []
    for name, run in steps.items():
        try:
            sections.append(run(subject))
        except Exception as error:
            if debugging():
                raise
            sections.append(_failed(name, name.replace("_", " ").capitalize(), error))
    return tuple(sections)


def _failed(name: str, title: str, error: Exception) -> Section:
    check = Check(f"the step {name} ran", False, remedy=f"It stopped with an error: {explain(error)}")
    return Section(name, title, [check])


def run_alone(step: Step[S], context: StepContext[S]) -> Section:
    """Run a step; its section also notes what the step warned of."""
    section = step.run(context)
    return replace(section, notes=(*section.notes, *context.warnings)) if context.warnings else section


def code_of(function: Callable[..., Any]) -> str:
    """Hash what a step's function does: itself, users' own modules, and all modules of `STUDIED`: an edit there runs all again."""
    return hashlib.sha256((identify(function) + own_code() + _studied(PACKAGE)).encode()).hexdigest()


@cache
def _studied(package: Path) -> str:
    """Hash the packages' files, once in a process."""
    digest = hashlib.sha256()
    for path in sorted(path for name in STUDIED for path in (package / name).rglob("*.py")):
        digest.update(path.relative_to(package).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()


def _needs(steps: Mapping[str, Step[Any]], name: str) -> list[str]:
    return [need for need in steps[name].needs if need in steps]


def _now(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Run at once; a stand-in for a pool's ``submit``."""
    future: Future[Any] = Future()
    future.set_result(function(*arguments))
    return future
