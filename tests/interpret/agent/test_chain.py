"""The chain: steps run once, and again only if what they depend on has changed."""

from __future__ import annotations

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.agent import runner
from rlhf_ray.interpret.agent.agent import NetworkAgent
from rlhf_ray.interpret.agent.report import AgentVerdict
from rlhf_ray.interpret.agent.runner import Chain, run_chain
from rlhf_ray.interpret.section import Section, Statement
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape

READS = {"recording": (), "bases": ("recording",), "clusters": ("recording",), "story": ("bases",)}


@pytest.fixture
def agent() -> NetworkAgent:
    spaces = gym.spaces.Box(-1.0, 1.0, (3,)), gym.spaces.Discrete(2)
    return NetworkAgent(ActorCriticNetwork(*spaces, PolicyShape(hidden=(4,))), *spaces)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the steps by ones that copy what they read; returns the names of those that run."""
    names: list[str] = []

    def step(name: str) -> Any:
        def run(work: Any) -> Section:
            names.append(name)
            if name == "clusters" and work.effort == 0.5:
                raise ValueError("too little")
            if name == "clusters" and work.effort == 0.125:
                raise OSError(errno.ENOSPC, "No space left on device")
            texts = [(folder / "out.txt").read_text() for folder in work.folders.values()]
            (work.out / "out.txt").write_text(f"{name}({','.join(texts)})")
            return Section(name, name.title(), values={"effort": work.effort})

        unsuitable = lambda work: "no memory" if name == "clusters" and work.effort == 0.25 else None  # noqa: E731
        return SimpleNamespace(NAME=name, TITLE=name.title(), AFTER=READS[name], unsuitable=unsuitable, run=run)

    monkeypatch.setattr(runner, "step", step)
    monkeypatch.setattr(runner, "NAMES", tuple(READS))
    return names


def run(agent: NetworkAgent, folder: Path, ran: list[str], **settings: Any) -> list[str]:
    ran.clear()
    sections = run_chain(Chain(agent, "CartPole-v1", folder, **settings), tuple(READS))
    assert [section.name for section in sections] == list(READS)
    return sorted(ran)


def test_a_rerun_does_nothing_and_a_deleted_artefact_remakes_only_what_depends_on_it(
    agent: NetworkAgent, ran: list[str], tmp_path: Path
) -> None:
    assert run(agent, tmp_path, ran) == sorted(READS)
    assert (tmp_path / "story" / "out.txt").read_text() == "story(bases(recording()))"
    assert run(agent, tmp_path, ran) == []
    (tmp_path / "bases" / "out.txt").unlink()
    assert run(agent, tmp_path, ran) == ["bases", "story"]
    (tmp_path / "recording" / "out.txt").write_text("damaged")
    assert run(agent, tmp_path, ran) == sorted(READS)
    assert run(agent, tmp_path, ran) == []


def test_another_agent_seed_or_effort_makes_everything_again(
    agent: NetworkAgent, ran: list[str], tmp_path: Path
) -> None:
    run(agent, tmp_path, ran)
    assert run(agent, tmp_path, ran, seed=1) == sorted(READS)
    assert run(agent.fresh(5), tmp_path, ran, seed=1) == sorted(READS)


def test_a_failed_step_costs_no_other_and_is_tried_again(agent: NetworkAgent, ran: list[str], tmp_path: Path) -> None:
    chain = Chain(agent, "CartPole-v1", tmp_path, effort=0.5)
    sections = {section.name: section for section in run_chain(chain, tuple(READS))}
    assert [check.passed for check in sections["clusters"].checks] == [False]
    assert "too little" in sections["clusters"].checks[0].says
    assert sections["story"].values == {"effort": 0.5}
    assert not list(tmp_path.glob(".tmp-*"))
    assert run(agent, tmp_path, ran, effort=0.5) == ["clusters"]


def test_a_full_disk_stops_the_chain_and_finished_steps_are_kept(
    agent: NetworkAgent, ran: list[str], tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match=f"--out is {tmp_path}: No space left on device; free some space"):
        run_chain(Chain(agent, "CartPole-v1", tmp_path, effort=0.125), tuple(READS))
    assert (tmp_path / "recording" / "out.txt").exists()
    assert not (tmp_path / "clusters").exists()


def test_a_step_that_does_not_apply_is_left_out(agent: NetworkAgent, ran: list[str], tmp_path: Path) -> None:
    chain = Chain(agent, "CartPole-v1", tmp_path, effort=0.25)
    sections = {section.name: section for section in run_chain(chain, tuple(READS))}
    assert sections["clusters"].skipped == "no memory"
    assert "clusters" not in ran


def test_asked_for_steps_bring_those_that_they_read(ran: list[str]) -> None:
    assert runner.with_needed(["story"]) == ("recording", "bases", "story")


def test_the_verdict_does_not_call_only_held_what_an_intervention_shows_to_be_needed() -> None:
    held = [Statement("holds", f"The memory holds “{name}”.", 1.0, name) for name in ("cue", "x")]
    effects = [{"concept": name, "changes": name == "cue"} for name in ("cue", "x", "")]
    ignored = [Statement("ignores", "It does not react to y.")]
    verdict = AgentVerdict.of(
        [Section("concepts", "", [*held, *ignored]), Section("interventions", "", values={"effects": effects})]
    )
    assert [each.text for each in verdict.holds] == ["The memory holds “x”."]
    assert [each.text for each in verdict.ignores] == ["It does not react to y."]
