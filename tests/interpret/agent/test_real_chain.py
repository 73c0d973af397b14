"""The study of an agent with its real steps, on small agents: it runs, is kept, and continues."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray import envs
from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.interpret.agent.report import agent_study, write_agent_report
from rlhf_ray.interpret.agent.steps import recording
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.study import Section, Study, run_study
from tests.agents.made import network_agent

MINIRUN = "rlhf_ray/MiniRun-v0"


def study_of(agent: NetworkAgent, environment: str, folder: Path, effort: float = 1.0) -> Study[AgentSubject]:
    return agent_study(AgentSubject(agent, environment, effort=effort), folder)


def untrained(environment: str, **shape: Any) -> NetworkAgent:
    env = envs.make_env(environment)
    env.close()
    return network_agent(env.observation_space, env.action_space, **shape)


def stopped(sections: tuple[Section, ...]) -> list[str]:
    """Return the errors of steps that did not run through."""
    ran = [(f"the step {section.name} ran", check) for section in sections for check in section.checks]
    return [check.remedy for name, check in ran if check.name == name and check.passed is False]


def infinite(values: Any, at: str = "") -> list[str]:
    """Return where figures are NaN or infinite."""
    if isinstance(values, dict):
        return [found for key, each in values.items() for found in infinite(each, f"{at}/{key}")]
    if isinstance(values, list | tuple):
        return [found for key, each in enumerate(values) for found in infinite(each, f"{at}/{key}")]
    return [at] if isinstance(values, float) and not math.isfinite(values) else []


def test_steps_without_what_they_need_are_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(context: Any) -> Section:
        raise OSError("no space left")

    monkeypatch.setattr(recording, "STEP", replace(recording.STEP, run=fail))
    sections = run_study(study_of(untrained("CartPole-v1", memory="none"), "CartPole-v1", tmp_path))
    assert len(stopped(sections)) == 1
    assert "no space left" in stopped(sections)[0]
    assert all(section.skipped for section in sections if section.name != "recording")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("environment", "shape"), [(MINIRUN, {}), ("Pendulum-v1", {"memory": "lstm"}), ("CartPole-v1", {"memory": "none"})]
)
def test_the_whole_chain_runs_on_an_untrained_agent(environment: str, shape: dict[str, Any], tmp_path: Path) -> None:
    agent = untrained(environment, **shape)
    sections = run_study(study_of(agent, environment, tmp_path, effort=0.01))
    assert not stopped(sections)
    assert not [found for section in sections for found in infinite(section.values, section.name)]
    page, _ = write_agent_report(sections, tmp_path, {"agent": agent.name, "environment": environment, "seed": 0})
    assert page.exists()
    assert (tmp_path / "panel" / "index.html").exists()


@pytest.mark.soak
def test_an_interrupted_command_stops_at_once_and_continues(tmp_path: Path) -> None:
    untrained(MINIRUN).save(tmp_path / "agent")
    words = ["interpret", "agent", str(tmp_path / "agent"), "--environment", MINIRUN, "--out", str(tmp_path / "out")]
    command = [sys.executable, "-m", "rlhf_ray", *words, "--effort", "0.01", "--steps", "world_model"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=dict(os.environ))
    limit = time.monotonic() + 300
    while not (tmp_path / "out" / "recording").exists() and time.monotonic() < limit:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert "finished steps are kept" in errors
    assert "Traceback" not in errors
    made = (tmp_path / "out" / "recording" / "step.json").read_text()
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out" / "recording" / "step.json").read_text() == made
    assert (tmp_path / "out" / "report.html").exists()
