"""Runs the chain: each step once, several at a time, and only if what it depends on has changed.

::

    NAME/               the artefacts of a step
    NAME/step.json      what it was made from, its files, and what the report says of it (with its pictures beside it)

A step is kept as long as its files are whole and the settings, the agent and the steps that it reads are the same. A step whose
files were deleted or changed is made again, and so is everything that reads it.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlhf_ray import __version__, envs
from rlhf_ray.data.atomic import whole_folder, write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import debugging, explain
from rlhf_ray.interpret.agent.agent import Agent
from rlhf_ray.interpret.agent.chain import Mapper, Work
from rlhf_ray.interpret.agent.steps import NAMES, step
from rlhf_ray.interpret.report import files
from rlhf_ray.interpret.section import Check, Section

FORMAT = "rlhf_ray.agent_chain/2"
REPORT = "report"
"""Folder with a step's section, inside the step's folder."""
MADE = "step.json"
UNFINISHED = ".unfinished"
"""Folder with what stopped steps go on from."""

Submit = Callable[..., Future[Any]]
"""Starts a function with arguments, now or later, and returns its future."""
Say = Callable[[str, str], None]
"""Called with a step's name and what it is doing."""

_say: Say = lambda name, text: None  # noqa: E731
"""Where this process's steps say what they are doing."""


def listen(say: Say) -> None:
    """Tell ``say`` what the steps that run in this process are doing. A pool's processes call it when they start."""
    global _say
    _say = say


@dataclass(frozen=True)
class Chain:
    """What a chain depends on.

    Attributes:
        agent: the agent.
        environment: its environment's name.
        folder: the folder of all artefacts.
        seed: seeds every draw.
        effort: amount of work relative to the normal report.
    """

    agent: Agent
    environment: str
    folder: Path
    seed: int = 0
    effort: float = 1.0

    def key(self, name: str, made: Sequence[str]) -> str:
        """Hash what a step is made from: settings, agent, and the identities ``made`` of the steps that it reads."""
        parts = (FORMAT, __version__, name, self.agent.digest, self.environment, self.seed, self.effort, list(made))
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


@dataclass
class _State:
    """Steps of a chain that are done.

    Attributes:
        sections: what the report says, by step.
        made: identity of the artefacts of each finished step; empty for a step that was left out or failed.
    """

    sections: dict[str, Section] = field(default_factory=dict)
    made: dict[str, str] = field(default_factory=dict)


def run_chain(
    chain: Chain,
    names: Sequence[str] = NAMES,
    *,
    submit: Submit | None = None,
    mapper: Mapper = map,
    told: Callable[[str, bool], None] = lambda name, kept: None,
) -> tuple[Section, ...]:
    """Run the steps ``names`` and those that they read. Finished steps are kept.

    Args:
        chain: what to look at.
        names: the steps.
        submit: starts steps, for example of a process pool; None: one after the other in this process.
        mapper: like ``map``, for a step's independent parts, for example over Ray.
        told: called with each finished step's name, and whether it was kept.

    Returns:
        The sections, in the order of `NAMES`.
    """
    wanted = with_needed(names)
    state = _State()
    running: dict[Future[Any], tuple[str, str]] = {}
    waiting = list(wanted)
    while waiting or running:
        for name in [each for each in waiting if all(of in state.made for of in _reads(each, wanted))]:
            waiting.remove(name)
            reads = [of for of in _reads(name, wanted) if state.made[of]]
            key = chain.key(name, [state.made[of] for of in reads])
            if (kept := _kept(chain.folder / name, key)) is not None:
                state.sections[name], state.made[name] = kept
                told(name, True)
                continue
            arguments = (chain, name, key, reads, mapper)
            running[submit(run_step, *arguments) if submit else _now(run_step, *arguments)] = name, key
            if submit is None:
                break
        if not running:
            continue
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            name, _ = running.pop(future)
            state.sections[name], state.made[name] = future.result()
            told(name, False)
    return tuple(state.sections[name] for name in NAMES if name in state.sections)


def with_needed(names: Iterable[str]) -> tuple[str, ...]:
    """Return ``names`` and all steps that they read, in the order of `NAMES`."""
    found: set[str] = set()
    queue = list(names)
    while queue:
        name = queue.pop()
        if name not in found:
            found.add(name)
            queue += [of for of in step(name).AFTER if of in NAMES]
    return tuple(name for name in NAMES if name in found)


def run_step(chain: Chain, name: str, key: str, reads: Sequence[str], mapper: Mapper) -> tuple[Section, str]:
    """Make a step's artefacts. Returns its section, and the artefacts' identity: empty if there are none.

    An error becomes a failed check of the section: one bad step must not cost the others' results.
    """
    found = step(name)
    folder = chain.folder / name
    folders = {of: chain.folder / of for of in reads}
    unfinished = chain.folder / UNFINISHED / f"{name}-{key[:16]}"

    def work(out: Path) -> Work:
        return Work(
            chain.agent,
            chain.environment,
            lambda n: envs.make_batch(chain.environment, n),
            folders,
            out,
            unfinished,
            chain.seed,
            chain.effort,
            mapper,
            lambda text: _say(name, text),
        )

    _say(name, name.replace("_", " "))
    try:
        if (reason := found.unsuitable(work(folder))) is not None:
            shutil.rmtree(folder, ignore_errors=True)
            return Section(name, found.TITLE, skipped=reason), ""
        with whole_folder(folder) as new:
            section = found.run(work(new))
            made = uuid.uuid4().hex
            files.save(section, new / REPORT, key)
            about = {"format": FORMAT, "key": key, "made": made, "files": _contents(new)}
            write_text(new / MADE, json.dumps(about, indent=1) + "\n")
        for old in unfinished.parent.glob(f"{name}-*"):  # also of other settings and agents
            shutil.rmtree(old, ignore_errors=True)
        return files.as_saved(section), made
    except Exception as error:
        if debugging():
            raise
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise SettingError(
                f"--out is {chain.folder}: {error.strerror}; free some space or give another folder. Finished steps are "
                "kept, and the same command continues."
            ) from error
        check = Check(f"the step {name} ran", False, says=f"It stopped with an error: {explain(error)}")
        return Section(name, found.TITLE, checks=[check]), ""


def _reads(name: str, wanted: Sequence[str]) -> list[str]:
    return [of for of in step(name).AFTER if of in wanted]


def _now(function: Callable[..., Any], *arguments: Any) -> Future[Any]:
    """Run at once; a stand-in for a pool's ``submit``."""
    future: Future[Any] = Future()
    future.set_result(function(*arguments))
    return future


def _kept(folder: Path, key: str) -> tuple[Section, str] | None:
    """Return a finished step's section and identity; None if there is none with this key, or its files are not whole."""
    try:
        about = json.loads((folder / MADE).read_text())
        if about["key"] != key or _contents(folder) != about["files"]:
            return None
        section = files.load(folder / REPORT, key)
        return None if section is None else (section, str(about["made"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def _contents(folder: Path) -> dict[str, str]:
    """Return a hash of each file of a step, by its path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MADE:
            with path.open("rb") as file:
                found[path.relative_to(folder).as_posix()] = hashlib.file_digest(file, "blake2b").hexdigest()[:32]
    return found
