"""The report about an agent, a study: ``report.html``, its twin ``report.json``, a panel, and a folder for each step."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rlhf_ray.data.lock import Lock
from rlhf_ray.interpret.agent.steps import CATALOGUE
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.study import Screen, Section, Study, run_study, screen_of, write_page

PICTURES = ("film", "frames", "saliency_action", "saliency_value")
"""Pictures for the first screen, of which it shows the first two that there are."""


def agent_study(subject: AgentSubject, folder: Path, own: Sequence[str] = ()) -> Study[AgentSubject]:
    """Return the study of an agent. ``own``: ``module:Name`` of the user's own steps."""
    return Study(subject, CATALOGUE, folder, tuple(own))


def write_agent_report(sections: Sequence[Section], out: Path, about: dict[str, Any]) -> tuple[Path, Screen]:
    """Write the report of what the steps found to ``out``; return the page's path and what it shows first.

    ``about`` are facts: agent, digest, environment, seed, effort, …
    """
    heading = f"{about['agent']} · {about['environment']}"
    screen = screen_of("agent report", heading, "", sections, PICTURES)
    return write_page(out, about, sections, screen), screen


def report_agent(subject: AgentSubject, out: Path, steps: Sequence[str] | None = None) -> Path:
    """Examine an agent in this process and write the report; return its page.

    ``steps`` are those to run, by name or ``module:Name`` of your own; None: all.
    """
    agent = subject.agent
    with Lock(out):
        about = {"agent": agent.name, "digest": agent.digest, "environment": subject.environment}
        study = agent_study(subject, out, [name for name in steps or () if ":" in name])
        sections = run_study(study, steps)
        return write_agent_report(sections, out, about | {"seed": subject.seed, "effort": subject.effort})[0]
