"""The study of an agent with its real steps, on small agents: it runs, is kept, continues, and works over Ray."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_ray import envs
from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.interpret.agent.report import agent_study, write_agent_report
from rlhf_ray.interpret.agent.steps import recording, world_model
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.study import Section, Study, run_study
from rlhf_ray.study import run as running

MINIRUN = "rlhf_ray/MiniRun-v0"


def study_of(agent: NetworkAgent, environment: str, folder: Path, effort: float = 1.0) -> Study[AgentSubject]:
    return agent_study(AgentSubject(agent, environment, effort=effort), folder)


def untrained(environment: str, **shape: Any) -> NetworkAgent:
    env = envs.make_env(environment)
    spaces = env.observation_space, env.action_space
    env.close()
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return NetworkAgent(ActorCriticNetwork(*spaces, PolicyShape(**shape)), *spaces)


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


@pytest.mark.soak
def test_real_steps_run_once_and_again_if_their_files_are_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "FEWEST", 10)
    monkeypatch.setattr(world_model, "FEWEST", 3)
    study = study_of(untrained("CartPole-v1", hidden=(8,)), "CartPole-v1", tmp_path, effort=0.001)
    told: list[tuple[str, bool]] = []
    said: list[str] = []
    monkeypatch.setattr(running, "_say", lambda name, text: said.append(name))
    sections = run_study(study, ["world_model"], finished=lambda *each: told.append(each))
    assert not stopped(sections)
    assert told == [("recording", False), ("world_model", False)]
    assert list(dict.fromkeys(said)) == ["recording", "world_model"]
    told.clear()
    (tmp_path / "world_model" / "report" / "horizon.png").unlink()
    again = run_study(study, ["world_model"], finished=lambda *each: told.append(each))
    assert again[0].values == sections[0].values
    assert told == [("recording", True), ("world_model", False)]


def test_steps_without_what_they_need_are_left_out_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(context: Any) -> Section:
        raise OSError("no space left")

    monkeypatch.setattr(recording, "STEP", replace(recording.STEP, run=fail))
    sections = run_study(study_of(untrained("CartPole-v1", hidden=(8,)), "CartPole-v1", tmp_path))
    assert len(stopped(sections)) == 1
    assert "no space left" in stopped(sections)[0]
    assert all(section.skipped for section in sections if section.name != "recording")


@pytest.mark.soak
@pytest.mark.parametrize(
    ("environment", "shape"),
    [
        (MINIRUN, {"network": "small", "memory": "gru", "memory_units": 8}),
        ("Pendulum-v1", {"memory": "lstm", "memory_units": 8}),
        ("CartPole-v1", {}),
    ],
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
@pytest.mark.ray
def test_parts_of_a_step_in_a_pool_s_process_run_over_ray(tmp_path: Path) -> None:
    from rlhf_ray.runs.interpret import map_over_ray

    names, values = ("attribution",), {}
    agent = untrained(MINIRUN, network="small", memory="gru", memory_units=8)
    for mapper in (map, map_over_ray):
        with ProcessPoolExecutor(1, get_context("spawn")) as pool:
            study = study_of(agent, MINIRUN, tmp_path / mapper.__name__, effort=0.01)
            sections = run_study(study, names, submit=pool.submit, mapper=mapper)
        assert not stopped(sections)
        values[mapper.__name__] = sections[-1].values
    assert values["map_over_ray"] == values["map"]


@pytest.mark.soak
def test_an_interrupted_command_stops_at_once_and_continues(tmp_path: Path) -> None:
    untrained(MINIRUN, network="small", memory="gru", memory_units=8).save(tmp_path / "agent")
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
