"""Steps of a study run alone, as tests do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.subject import AgentContext, AgentSubject
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import StepContext


def context_of(
    agent: Any,
    environment: str,
    batches: Callable[[int], EnvBatch],
    folders: Mapping[str, Path],
    out: Path,
    unfinished: Path,
    seed: int = 0,
    effort: float = 1.0,
) -> AgentContext:
    """Return what a step gets that examines ``agent``."""
    return StepContext(AgentSubject(agent, environment, seed, effort, batches), folders, out, unfinished)


def run_step(module: Any, subject: Any) -> Section:
    """Run the step of ``module`` on ``subject``."""
    return module.run(StepContext(subject))


def why_not(module: Any, subject: Any) -> str | None:
    """Return why the step of ``module`` does not apply to ``subject``."""
    return module.why_not(StepContext(subject))
