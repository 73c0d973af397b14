"""The report about an agent: ``report.html`` and its twin ``report.json``, made of the chain's sections."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.plain import plain
from rlhf_ray.interpret.report import files
from rlhf_ray.interpret.report.page import render
from rlhf_ray.interpret.report.said import Said, checks, statements
from rlhf_ray.interpret.section import Section

FORMAT = "rlhf_ray.agent_report/1"
FIRST = ("story", "interventions", "counterfactuals", "attribution")
"""Sections whose statements come first: what was changed in the environment says more than what a gradient says."""


@dataclass(frozen=True)
class AgentVerdict:
    """What the report says first.

    Attributes:
        uses: what actions and values depend on, by intervention.
        holds: what can be read off the agent but is not needed, as far as was tested.
        ignores: what it does not react to.
        warnings: reasons to distrust the agent or a tool.
        failed: failed checks.
        unchecked: checks that could not be made.
    """

    uses: tuple[Said, ...]
    holds: tuple[Said, ...]
    ignores: tuple[Said, ...]
    warnings: tuple[Said, ...]
    failed: tuple[Said, ...]
    unchecked: tuple[Said, ...]

    @classmethod
    def of(cls, sections: Sequence[Section]) -> AgentVerdict:
        """Put the sections' statements and checks together."""
        ordered = sorted(sections, key=lambda each: FIRST.index(each.name) if each.name in FIRST else len(FIRST))
        needed = _needed(sections)
        held = [replace(of, statements=[each for each in of.statements if each.about not in needed]) for of in ordered]
        return cls(
            uses=statements(ordered, "uses"),
            holds=statements(held, "holds"),
            ignores=statements(ordered, "ignores"),
            warnings=statements(sections, "warning"),
            failed=checks(sections, False),
            unchecked=checks(sections, None),
        )


def _needed(sections: Sequence[Section]) -> set[str]:
    """Return the concepts that interventions show to be needed: the verdict doesn't say of them that they are only held."""
    effects = [each for of in sections if of.name == "interventions" for each in of.values.get("effects", ())]
    return {str(each["concept"]) for each in effects if each["changes"] and each["concept"]}


def write_agent_report(sections: Sequence[Section], out: Path, about: dict[str, Any]) -> tuple[Path, AgentVerdict]:
    """Write the report; return the page's path and the verdict.

    Args:
        sections: what the steps found.
        out: the report's folder. A panel in it is linked.
        about: facts: agent, digest, environment, seed, effort, …
    """
    verdict = AgentVerdict.of(sections)
    twin = {
        "format": FORMAT,
        "about": about,
        "verdict": {kind: [vars(said) for said in of] for kind, of in vars(verdict).items()},
        "sections": [files.values(section) for section in sections],
    }
    write_text(out / "report.json", json.dumps(plain(twin), indent=1) + "\n")
    panel = "panel/index.html" if (out / "panel" / "index.html").exists() else None
    page = render(Path(__file__).parent / "agent.html", about, sections, verdict=verdict, panel=panel)
    write_text(out / "report.html", page)
    return out / "report.html", verdict
