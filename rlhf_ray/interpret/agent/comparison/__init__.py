"""Two agents side by side: do they use the same features? `rlhf-ray interpret agent RUN --against OTHER`."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from rlhf_ray import __version__
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.failures import debugging, explain
from rlhf_ray.data.plain import plain
from rlhf_ray.interpret.agent.comparison import alike, concepts, objects, played, saliency
from rlhf_ray.interpret.agent.comparison.pair import AgentPair
from rlhf_ray.interpret.agent.comparison.verdict import Answer, answer
from rlhf_ray.interpret.report import files
from rlhf_ray.interpret.report.page import render
from rlhf_ray.interpret.section import Check, Section

FORMAT = "rlhf_ray.agent_comparison/1"
PARTS: Sequence[ModuleType] = (played, alike, concepts, objects, saliency)
"""The parts, in the order of the page: each is a module of this package with ``NAME``, ``TITLE``, ``look``."""

__all__ = ["PARTS", "AgentPair", "Answer", "compare", "write_comparison"]


def compare(
    pair: AgentPair, out: Path | None = None, told: Callable[[str, bool], None] = lambda name, kept: None
) -> tuple[Section, ...]:
    """Compare two agents.

    An error becomes a failed check of its section: one bad part must not cost the others' results.

    Args:
        pair: the agents, and what they are compared on.
        out: folder that keeps finished parts; the same call with the same agents makes only what is missing.
        told: called with each part's name, and whether it was kept.
    """
    sections = []
    for part in PARTS:
        folder = None if out is None else out / part.NAME
        kept = None if folder is None else files.load(folder, _key(pair, part.NAME))
        section = kept or _look(pair, part)
        if folder is not None and kept is None:
            shutil.rmtree(folder, ignore_errors=True)
            if all(check.passed is not False for check in section.checks):  # a failed part is tried again
                folder.parent.mkdir(parents=True, exist_ok=True)
                files.save(section, folder, _key(pair, part.NAME))
        sections.append(section)
        told(part.NAME, kept is not None)
    return tuple(sections)


def write_comparison(
    pair: AgentPair, sections: Sequence[Section], out: Path, about: dict[str, Any]
) -> tuple[Path, Answer]:
    """Write ``comparison.html`` and its twin ``comparison.json``; return the page's path and the answer."""
    found = answer(sections, pair.names)
    facts = {
        "first": pair.names[0], "first_digest": pair.first.digest, "second": pair.names[1], "second_digest": pair.second.digest,
        "environment": pair.environment, "seed": pair.seed, "effort": pair.effort, **about,
    }  # fmt: skip
    out.mkdir(parents=True, exist_ok=True)
    twin = {
        "format": FORMAT,
        "about": facts,
        "answer": found.to_json(),
        "sections": [files.values(each) for each in sections],
    }
    write_text(out / "comparison.json", json.dumps(plain(twin), indent=1) + "\n")
    page = render(Path(__file__).parents[1] / "report" / "comparison.html", facts, sections, answer=found)
    write_text(out / "comparison.html", page)
    return out / "comparison.html", found


def _look(pair: AgentPair, part: ModuleType) -> Section:
    try:
        return files.as_saved(part.look(pair))
    except Exception as error:
        if debugging():
            raise
        check = Check("the part ran", False, says=f"It stopped with an error: {explain(error)}")
        return Section(part.NAME, part.TITLE, checks=[check])


def _key(pair: AgentPair, name: str) -> str:
    parts = (
        FORMAT,
        __version__,
        name,
        pair.first.digest,
        pair.second.digest,
        *pair.names,
        pair.environment,
        pair.seed,
        pair.effort,
    )
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
