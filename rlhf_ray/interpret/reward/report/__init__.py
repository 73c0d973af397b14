"""The report about a reward: runs the tools, keeps each finished section, writes ``report.html`` and its twin ``report.json``.

::

    report.html            one self-contained page: the verdict first, then the evidence
    report.json            the same, for programs
    sections/NAME/         each finished section: section.json and its pictures; a rerun continues from them
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray import __version__
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.failures import debugging, explain
from rlhf_ray.data.plain import plain
from rlhf_ray.interpret.report import files
from rlhf_ray.interpret.reward.report.page import page
from rlhf_ray.interpret.reward.report.verdict import RewardVerdict, verdict
from rlhf_ray.interpret.reward.sections import NAMES, tool
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.section import Check, Section

FORMAT = "rlhf_ray.reward_report/1"

Runner = Callable[[Subject, Sequence[str]], Iterator[Section]]
"""Runs the named tools and yields each section when it is finished, in any order."""


@dataclass(frozen=True)
class Report:
    """A written report.

    Attributes:
        page: path of ``report.html``.
        verdict: what the page says first.
        sections: the sections, in the order of the page.
    """

    page: Path
    verdict: RewardVerdict
    sections: tuple[Section, ...]


def run_tool(subject: Subject, name: str) -> Section:
    """Run one tool. An error in a tool becomes a failed check of its section: one bad tool must not cost the others' results."""
    found = tool(name)
    if (reason := found.unsuitable(subject)) is not None:
        return Section(name, found.TITLE, skipped=reason)
    try:
        return found.look(subject)
    except Exception as error:
        if debugging():
            raise
        check = Check("the tool ran", False, says=f"It stopped with an error: {explain(error)}")
        return Section(name, found.TITLE, checks=[check])


def one_after_another(subject: Subject, names: Sequence[str]) -> Iterator[Section]:
    """Run the tools in this process."""
    for name in names:
        yield run_tool(subject, name)


def write_report(
    subject: Subject,
    out: Path | str,
    *,
    names: Sequence[str] = NAMES,
    about: dict[str, Any] | None = None,
    runner: Runner = one_after_another,
    told: Callable[[str, bool], None] = lambda name, kept: None,
) -> Report:
    """Run the tools on ``subject`` and write the report.

    Args:
        subject: the reward and the steps to look at.
        out: folder of the report, created if missing. Sections that an earlier, stopped call finished for the same subject are
            kept.
        names: the tools to run.
        about: what the page says about where reward and data come from.
        runner: runs the tools.
        told: called with each finished section's name, and whether it was kept from an earlier call.

    Returns:
        The report.
    """
    out = Path(out)
    (out / "sections").mkdir(parents=True, exist_ok=True)
    mark = fingerprint(subject)
    done = {name: kept for name in names if (kept := files.load(out / "sections" / name, mark)) is not None}
    for name in done:
        told(name, True)
    for section in runner(subject, [name for name in names if name not in done]):
        if not any(check.name == "the tool ran" for check in section.checks):  # try again next time
            files.save(section, out / "sections" / section.name, mark)
        done[section.name] = files.as_saved(section)
        told(section.name, False)
    sections = tuple(done[name] for name in names)
    found = verdict(sections)
    facts: dict[str, Any] = {
        "reward": subject.reward.name,
        "environment": subject.environment,
        "steps": len(subject.data),
    }
    facts |= {"episodes": len(np.unique(subject.data.episodes)), "seed": subject.seed, "effort": subject.effort}
    facts |= {"gamma": subject.gamma, **(about or {})}
    twin = {
        "format": FORMAT,
        "about": facts,
        "verdict": found.values(),
        "sections": [files.values(s) for s in sections],
    }
    write_text(out / "report.json", json.dumps(plain(twin), indent=1) + "\n")
    write_text(out / "report.html", page(facts, found, sections))
    return Report(out / "report.html", found, sections)


def fingerprint(subject: Subject) -> str:
    """Hash what a section depends on: data, predicted rewards, seed and settings."""
    data = subject.data
    digest = hashlib.sha256()
    arrays = [data.observations, data.actions, data.next_observations, data.terminated, data.rewards, data.episodes]
    for array in [*arrays, *data.columns.values(), subject.reward.of(data)]:
        digest.update(repr((array.shape, array.dtype.str)).encode())
        digest.update(array.astype("U").tobytes() if array.dtype == object else np.ascontiguousarray(array).tobytes())
    settings = (
        FORMAT,
        __version__,
        subject.reward.name,
        subject.gamma,
        subject.seed,
        subject.environment,
        subject.effort,
    )
    digest.update(repr(settings).encode())
    if subject.regions is not None:
        digest.update(repr(subject.regions.names).encode() + np.packbits(subject.regions.masks).tobytes())
    if subject.edits is not None:
        files_of = sorted(subject.edits.rglob("*")) if subject.edits.is_dir() else [subject.edits]
        for file in files_of:
            digest.update(file.name.encode() + (file.read_bytes() if file.is_file() else b""))
    return digest.hexdigest()
