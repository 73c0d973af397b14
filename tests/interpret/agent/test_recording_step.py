"""The chain's first step: enough episodes of both kinds, checked, continued after a stop; faults are told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.agents.recorded import load_episodes
from rlhf_ray.cli import main
from rlhf_ray.data import recording_writer
from rlhf_ray.data.errors import BrokenAgentError
from rlhf_ray.data.recording_writer import RecordingWriter
from rlhf_ray.data.recordings import Recording
from rlhf_ray.envs import make_batch
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.steps import recording
from rlhf_ray.interpret.agent.subject import AgentContext, AgentSubject
from tests.agents.made import network_agent
from tests.interpret.contexts import context_of

RUN, POLE = "rlhf_ray/MiniRun-v0", "CartPole-v1"


def on(context: AgentContext, **changes: Any) -> AgentContext:
    """Return the context with a changed subject."""
    return replace(context, subject=replace(context.subject, **changes))


@pytest.fixture
def work(tmp_path: Path) -> Callable[..., AgentContext]:
    def make(environment: str, memory: Any, effort: float) -> AgentContext:
        batch = make_batch(environment, 1)
        agent = network_agent(batch.observation_space, batch.action_space, memory)
        return context_of(agent, partial(make_batch, environment), tmp_path, needs=(), effort=effort)

    return make


def test_it_records_and_says_what(work: Callable[..., AgentContext]) -> None:
    section = recording.run(given := work(RUN, "gru", 0.02))
    episodes = load_episodes(given.out, agent=given.subject.agent)
    assert [check.passed for check in section.checks] == [True, True]
    assert (int(episodes.lengths.sum()), len(episodes)) == (
        sum(section.values["acting"][name]["steps"] for name in ("greedy", "epsilon")),
        sum(section.values["splits"].values()),
    )
    assert len(episodes) >= recording.FEWEST
    assert sum(section.values["acting"]["greedy"]["causes"].values()) == round(0.4 * len(episodes))
    assert len(episodes.env_states) == len(episodes)
    assert [picture.name for picture in section.pictures] == ["frames"]
    for name in ("train", "validation", "test"):
        assert len(load_episodes(given.out, split=name)) == section.values["splits"][name]  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_stopped_step_goes_on_to_the_same_bytes(
    work: Callable[..., AgentContext], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = work(POLE, "none", 0.02)
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 100)
    recording.run(given)
    assert load_episodes(given.out).activations  # without memory, a layer to look into
    episodes = load_episodes(given.out)
    whole = {each.name: each.read_bytes() for each in given.out.iterdir()}
    again = replace(given, out=given.out.with_name("again"), unfinished=given.unfinished.with_name("again_begun"))
    again.out.mkdir()
    add, added = RecordingWriter.add, []

    def stopped(self: RecordingWriter, episode: Any) -> None:
        added.append(episode)
        if len(added) == 30:
            raise KeyboardInterrupt
        add(self, episode)

    monkeypatch.setattr(RecordingWriter, "add", stopped)
    with pytest.raises(KeyboardInterrupt):
        recording.run(again)
    kept = len(Recording(again.unfinished).lengths)
    recording.run(again)
    assert 0 < kept == len(episodes) + 30 - len(added)
    assert {each.name: each.read_bytes() for each in again.out.iterdir()} == whole


class Jittered:
    """CartPole whose resets draw anew: no level is the same twice."""

    def __init__(self, batch: EnvBatch):
        self.batch, self.resets = batch, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.batch, name)

    def reset(self, levels: Any) -> Any:
        self.resets += 1
        return self.batch.reset([level // 2 + self.resets for level in levels])


def test_an_environment_that_does_not_repeat_itself_is_told(work: Callable[..., AgentContext]) -> None:
    given = work(POLE, "gru", 0.01)
    section = recording.run(on(given, batches=lambda n: Jittered(make_batch(POLE, n))))  # type: ignore[arg-type,return-value]
    repeats, remembers = section.checks
    assert repeats.passed is False
    assert "seed everything" in repeats.remedy
    assert section.values["wrong_frames"] > 0
    assert remembers.passed


def acting(decide: Callable[[torch.Tensor], torch.Tensor]) -> FunctionAgent:
    batch = make_batch(POLE, 1)
    return FunctionAgent(
        lambda seen, memory: (decide(seen), seen[:, 0]), batch.observation_space, batch.action_space, name="planted"
    )


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_an_agent_that_answers_otherwise_when_asked_again_is_told(
    work: Callable[..., AgentContext], noise: float
) -> None:
    def decide(seen: torch.Tensor) -> torch.Tensor:
        return torch.stack([-seen[:, 2], seen[:, 2]], 1) + noise * torch.randint(0, 2, (len(seen), 2))

    section = recording.run(on(work(POLE, "none", 0.01), agent=acting(decide)))
    assert section.checks[1].passed == (noise == 0)
    assert section.values["worst_logit"] == pytest.approx(noise, abs=1e-5)  # one draw in hundreds differs by all of it


@pytest.mark.parametrize(
    ("decide", "message"),
    [
        (lambda seen: torch.full((len(seen), 2), torch.nan), "returns NaN at step 0, with no intervention"),
        (
            lambda seen: torch.stack([torch.full((len(seen),), torch.inf), seen[:, 0]], 1),
            "infinite numbers for the inputs",
        ),
        (lambda seen: torch.stack([torch.full((len(seen),), -torch.inf), seen[:, 0]], 1), None),
    ],
    ids=["NaN", "infinite", "masked action"],
)
def test_an_agent_of_nan_is_refused_before_any_step(decide: Any, message: str | None, capsys: Any) -> None:
    subject = AgentSubject(acting(decide), POLE)
    if message is None:
        recording.check_agent(subject)
        return
    with pytest.raises(BrokenAgentError, match=message) as refusal:
        recording.check_agent(subject)
    assert "\n" not in str(refusal.value)


def test_the_command_leaves_with_1_and_one_line(tmp_path: Path, monkeypatch: Any, capsys: Any) -> None:
    (tmp_path / "nan_agent.py").write_text(
        "import torch\nfrom rlhf_ray.agents.own import FunctionAgent\n"
        "def agent(observation_space, action_space):\n"
        "    return FunctionAgent(lambda seen, memory: (seen[:, :2] / 0 * 0, seen[:, 0]), observation_space, action_space)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit) as left:
        main(["interpret", "agent", "nan_agent:agent", "--environment", POLE])
    assert left.value.code == 1
    assert len(capsys.readouterr().err.strip().splitlines()) == 1
