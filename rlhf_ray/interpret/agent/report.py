"""The report about an agent, a study: ``report.html``, its twin ``report.json``, a panel, and a folder for each step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_ray.interpret.agent.steps import CATALOGUE
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.study.page import Look, write_page
from rlhf_ray.study.run import Study
from rlhf_ray.study.section import Section
from rlhf_ray.study.verdict import StudyVerdict, reconcile, without

LOOK = Look(Path(__file__).parent / "agent.html", "rlhf_ray.agent_report/1")
KINDS = {
    "uses": "It uses",
    "holds": "It holds or sees, but is not shown to need",
    "ignores": "It ignores, as far as was tested",
}
"""Kinds of statements, and what the page calls them."""
FIRST = ("story", "interventions", "counterfactuals", "attribution")
"""Sections whose statements come first: what was changed in the environment says more than what a gradient says."""


def agent_study(subject: AgentSubject, folder: Path, own: Sequence[str] = ()) -> Study[AgentSubject]:
    """Return the study of an agent. ``own``: ``module:Name`` of the user's own steps."""
    return Study(subject, CATALOGUE, folder, tuple(own))


def agent_verdict(sections: Sequence[Section]) -> StudyVerdict:
    """Put the statements together. A concept that interventions show to be needed is not said to be only held."""
    needed = {statement.about for section in sections for statement in section.statements if statement.kind == "uses"}
    return reconcile(without(sections, "holds", needed - {""}), tuple(KINDS), FIRST)


def write_agent_report(sections: Sequence[Section], out: Path, about: dict[str, Any]) -> tuple[Path, StudyVerdict]:
    """Write the report; return the page's path and the verdict.

    Args:
        sections: what the steps found.
        out: the report's folder. A panel in it is linked.
        about: facts: agent, digest, environment, seed, effort, …
    """
    verdict = agent_verdict(sections)
    panel = "panel/index.html" if (out / "panel" / "index.html").exists() else None
    return write_page(LOOK, out, about, verdict, sections, panel=panel), verdict
