"""Both reports in one call each, as `rlhf_ray.explain` makes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlhf_ray.agents.agent import Agent
from rlhf_ray.data.lock import Lock
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.functions import RewardFunction


def of_reward(
    reward: RewardFunction,
    steps: Transitions,
    out: Path,
    env: str | None,
    only: Sequence[str] | None,
    effort: float,
    seed: int,
) -> Path:
    """Write a reward's report to ``out``; return its page. See `rlhf_ray.explain`."""
    from rlhf_ray.interpret.reward.report import report_reward
    from rlhf_ray.interpret.reward.subject import Subject

    with Lock(out):
        return report_reward(Subject(reward, steps, environment=env, effort=effort, seed=seed), out, only).page


def of_agent(agent: Agent, env: str, out: Path, only: Sequence[str] | None, effort: float, seed: int) -> Path:
    """Write an agent's report to ``out``; return its page. See `rlhf_ray.explain`."""
    from rlhf_ray.interpret.agent.report import agent_study, write_agent_report
    from rlhf_ray.interpret.agent.subject import AgentSubject
    from rlhf_ray.study.run import run_study

    with Lock(out):
        study = agent_study(AgentSubject(agent, env, seed, effort), out, [name for name in only or () if ":" in name])
        about = {"agent": agent.name, "digest": agent.digest, "environment": env, "seed": seed, "effort": effort}
        return write_agent_report(run_study(study, only), out, about)[0]
