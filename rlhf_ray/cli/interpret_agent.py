"""`rlhf-ray interpret agent`: What goes on inside an agent?"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.studies import check_amounts, own_steps, print_lists, print_screen, run_shown, writable
from rlhf_ray.data.errors import SettingError
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
    """Run these steps only, and those that they read, for example --steps bases interventions
    (docs/agent_report.md), or module:Name of your own."""
    methods: tuple[str, ...] = ()
    """Use these attribution methods only, for example --methods saliency occlusion_donor (docs/agent_report.md); or module:Name of
    your own."""
    against: Path | None = None
    """Compare with another agent of the same environment (a run folder, a saved agent, module:Name): do they use the same features?
    The page is against_NAME/comparison.html in the report's folder."""
    effort: float = 1.0
    """Amount of work: 0.2 for a quick look, 3 for a thorough one."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_amounts(self.effort, self.seed)
        if self.against is not None and (self.steps or self.methods):
            raise SettingError("--steps and --methods are of one agent's report; leave them out with --against.")


def agent_command(words: list[str]) -> None:
    """Run `rlhf-ray interpret agent`."""
    command: InterpretAgent = parse_arguments(InterpretAgent, "rlhf-ray interpret agent", words)
    if command.against is not None:
        _compare(command, command.against)
        return
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


def _compare(command: InterpretAgent, against: Path) -> None:
    """Compare the agent with another one."""
    import re

    from rlhf_ray.data.places import run_path
    from rlhf_ray.envs.batches import BatchCreator
    from rlhf_ray.interpret.agent.comparison import AgentPair, comparison_study, write_comparison
    from rlhf_ray.interpret.agent.steps.recording import check_agent
    from rlhf_ray.interpret.agent.subject import AgentSubject
    from rlhf_ray.runs.agents import named_agent
    from rlhf_ray.study.verdict import MOST

    agent, environment, default_out = _load(command)
    other, _, _ = named_agent(against, environment)
    for one in (agent, other):
        check_agent(AgentSubject(one, environment))
    pair = AgentPair(agent, other, environment, BatchCreator(environment), command.seed, command.effort)
    name = re.sub(r"[^\w.-]+", "_", against.resolve().name if against.exists() else str(against))
    study = comparison_study(pair, writable(run_path(command.out or default_out / f"against_{name}")))
    with Lock(study.folder):
        sections = run_shown(study, (), processes=False)
        about = {"from": str(command.run), "against": str(against)}
        page, result = write_comparison(pair, sections, study.folder, about)
    sentences = [result.sentence, *(told.text for told in result.verdict.statements["uses"][:MOST])]
    failed = [told.text for told in result.verdict.failed[:MOST]]
    print_lists({"Do they use the same features?": sentences, "Failed checks": failed}, {"report": page})


def _load(command: InterpretAgent) -> tuple[Agent, str, Path]:
    """Load the agent; return it with its environment's name and the report's default folder."""
    from rlhf_ray.runs.agents import named_agent

    agent, environment, folder = named_agent(command.run, command.environment)
    return agent, environment, Path("agent_report") if folder is None else folder.path / "interpret" / "agent"
