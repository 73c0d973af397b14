"""`rlhf-ray interpret agent`: What goes on inside an agent?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.studies import check_amounts, own_steps, print_screen, run_shown, writable
from rlhf_ray.data.lock import Lock

if TYPE_CHECKING:
    from rlhf_ray.agents.agent import Agent


@dataclass(frozen=True)
class InterpretAgent:
    """Report what an agent remembers, sees and uses: a page, its JSON twin, and a panel to explore. Finished steps are kept."""

    run: tyro.conf.Positional[Path]
    """A run folder, whose newest policy is examined; a checkpoint; the folder of a saved agent (agent.json); a model of
    Stable-Baselines3 (.zip); or module:Name of your own agent."""
    environment: str | None = None
    """The environment. Default: the run's. Needed for any other agent."""
    out: Path | None = None
    """The report's folder. Default: interpret/agent in the run folder; for any other agent, agent_report."""
    steps: tuple[str, ...] = ()
    """Run these steps only, and those that they read, for example --steps bases effects
    (docs/agent_report.md), or module:Name of your own."""
    methods: tuple[str, ...] = ()
    """Use these attribution methods only, for example --methods saliency occlusion_donor (docs/agent_report.md); or module:Name of
    your own."""
    effort: float = 1.0
    """Amount of work: 0.2 for a quick look, 3 for a thorough one."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_amounts(self.effort, self.seed)


def agent_command(words: list[str]) -> None:
    """Run `rlhf-ray interpret agent`."""
    command: InterpretAgent = parse_arguments(InterpretAgent, "rlhf-ray interpret agent", words)
    from rlhf_ray.agents.agent import NetworkAgent
    from rlhf_ray.data.places import run_path
    from rlhf_ray.interpret.agent.report import agent_study, write_agent_report
    from rlhf_ray.interpret.agent.steps.recording import check_agent
    from rlhf_ray.interpret.agent.subject import AgentSubject
    from rlhf_ray.interpret.attribution import known_methods

    known_methods(command.methods)
    agent, environment, default_out = _load(command)
    subject = AgentSubject(agent, environment, command.seed, command.effort, methods=command.methods)
    check_agent(subject)
    study = agent_study(subject, writable(run_path(command.out or default_out)), own_steps(command.steps))
    about: dict[str, Any] = {"agent": agent.name, "digest": agent.digest, "environment": environment}
    about |= {"seed": command.seed, "effort": command.effort, "from": str(command.run)}
    with Lock(study.folder):
        sections = run_shown(
            study, command.steps, processes=isinstance(agent, NetworkAgent)
        )  # functions may not travel
        page, screen = write_agent_report(sections, study.folder, about)
    print_screen(screen, {"panel": page.parent / "panel" / "index.html", "report": page})


def _load(command: InterpretAgent) -> tuple[Agent, str, Path]:
    """Load the agent; return it with its environment's name and the report's default folder."""
    from rlhf_ray.runs.policies import named_agent

    agent, environment, folder = named_agent(command.run, command.environment)
    return agent, environment, Path("agent_report") if folder is None else folder.path / "interpret" / "agent"
