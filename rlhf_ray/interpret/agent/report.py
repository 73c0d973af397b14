"""The report about an agent, a study: ``report.html``, its twin ``report.json``, a panel, and a folder for each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rlhf_ray.interpret.agent.steps import CATALOGUE, recording
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.study.figures import figures_from
from rlhf_ray.study.page import Look, write_page
from rlhf_ray.study.run import Study
from rlhf_ray.study.screen import Screen, first_screen
from rlhf_ray.study.section import Section
from rlhf_ray.study.verdict import Relations, StudyVerdict, reconcile

LOOK = Look(Path(__file__).parent / "agent.html", "rlhf_ray.agent_report/2")
RELATIONS = Relations.read(Path(__file__).parent / "verdict.toml")
KINDS = ("uses", "holds", "ignores")
FIRST = ("story", "interventions", "counterfactuals", "attribution")
"""Sections whose statements come first: what was changed in the environment says more than what a gradient says."""


def agent_study(subject: AgentSubject, folder: Path, own: Sequence[str] = ()) -> Study[AgentSubject]:
    """Return the study of an agent. ``own``: ``module:Name`` of the user's own steps."""
    return Study(subject, CATALOGUE, folder, tuple(own))


def agent_verdict(sections: Sequence[Section]) -> StudyVerdict:
    """Put the statements together."""
    return reconcile(sections, KINDS, FIRST, RELATIONS)


def write_agent_report(sections: Sequence[Section], out: Path, about: dict[str, Any]) -> tuple[Path, Screen]:
    """Write the report; return the page's path and what it says first.

    Args:
        sections: what the steps found.
        out: the report's folder. A panel in it is linked.
        about: facts: agent, digest, environment, seed, effort, …
    """
    verdict = agent_verdict(sections)
    panel = "panel/index.html" if (out / "panel" / "index.html").exists() else None
    heading = f"{about['agent']} · {about['environment']}{_true_return(sections)}"
    asked = any(section.name in RELATIONS.not_asked and section.skipped is None for section in sections)
    relations = RELATIONS if asked else replace(RELATIONS, nothing="No intervention or edit was made.")
    screen = first_screen(heading, verdict, sections, relations)
    return write_page(LOOK, out, about, verdict, sections, screen, panel=panel), screen


def _true_return(sections: Sequence[Section]) -> str:
    """Return what the agent's greedy episodes earn on average, for the heading; nothing without a recording."""
    values = next((section.values for section in sections if section.name == recording.WORDS.name), {})
    if not values:
        return ""
    return f" · true return {figures_from(recording.RecordedEpisodes, values).acting['greedy'].mean_return:.3g}"
