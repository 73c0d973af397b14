"""Steps of a study of an agent: what it achieves, its recording, its world model, its saliency; faults are told."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import action_size
from rlhf_ray.agents.own import FunctionAgent
from rlhf_ray.agents.recorded import load_episodes, record_inside
from rlhf_ray.cli import main
from rlhf_ray.data import recording_writer
from rlhf_ray.data.errors import BrokenAgentError
from rlhf_ray.data.recording_writer import RecordingWriter
from rlhf_ray.data.recordings import Recording
from rlhf_ray.envs import make_batch
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.agent.steps import attribution, header, recording, world_model
from rlhf_ray.interpret.agent.subject import AgentContext, AgentSubject
from rlhf_ray.interpret.agent.world_model.model import WorldShape, load_world
from rlhf_ray.study import kept
from rlhf_ray.study.section import Section
from tests.agents.made import network_agent
from tests.interpret.agent.lamps import AGENTS, STEPS, Lamps, planted
from tests.interpret.agent.worlds import ImageWorld
from tests.interpret.contexts import context_of


def found(agent: Agent, rule: str, folder: Path) -> Section:
    make = partial(Lamps, rule=rule)
    record_inside(agent, make(20), range(60), folder / "recording", acting={"greedy": 0.5, "epsilon": 0.5})
    return header.run(context_of(agent, make, folder, "header"))


def test_an_agent_that_follows_the_rule_earns_every_step(tmp_path: Path) -> None:
    section = found(AGENTS["a"], "a", tmp_path)
    beside, share, levels = section.checks
    assert (beside.passed, share.passed, levels.passed) == (True, True, True)
    assert section.values["returns"]["mean"] == STEPS
    assert beside.value == pytest.approx(STEPS / 2, abs=1.0)  # random actions are right at half of the steps
    assert section.values["ends"]["timeout"]["mean"] == 1.0


def test_an_agent_that_always_does_the_same_or_does_it_wrong_is_told(tmp_path: Path) -> None:
    for name, sign in (("same", 0.0), ("wrong", -1.0)):
        agent = planted(lambda seen, memory, sign=sign: sign * seen[:, 0] + (sign == 0.0), name)  # type: ignore[misc]
        (tmp_path / name).mkdir()
        beside, share, _ = found(agent, "a", tmp_path / name).checks
        assert (beside.passed is False) == (name == "wrong")
        assert (share.passed is None) == (name == "same")


def test_a_film_shows_every_frame_larger(tmp_path: Path) -> None:
    frames = np.random.default_rng(0).integers(0, 256, (7, 16, 20, 6)).astype(np.uint8)
    film = Image.open(io.BytesIO(header.draw_film(frames)))
    assert (film.n_frames, film.size) == (7, (160, 128))  # type: ignore[attr-defined]
    film.seek(3)
    assert np.array_equal(np.asarray(film.convert("RGB"))[::8, ::8], frames[3, ..., 3:])


MINIRUN, POLE = "rlhf_ray/MiniRun-v0", "CartPole-v1"


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
    section = recording.run(given := work(MINIRUN, "gru", 0.02))
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


torch.set_num_threads(1)


@pytest.mark.slow
def test_the_step_trains_and_measures_a_world_model(tmp_path, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(world_model, "FEWEST", 3)
    monkeypatch.setattr(
        WorldShape, "for_space", lambda space: WorldShape(memory=4, groups=1, classes=4, channels=8, shared=8)
    )
    batch = make_batch(MINIRUN, 8)
    agent = network_agent(batch.observation_space, batch.action_space, features=8)
    record_inside(agent, batch, range(24), tmp_path / "recording", max_steps=12)
    told: list[str] = []

    def work(name: str) -> AgentContext:
        needs = ("recording", "world_model")
        context = context_of(agent, partial(make_batch, MINIRUN), tmp_path, name, needs, 0.001, MINIRUN)
        return replace(context, say=told.append)

    training = work("world_model")
    assert world_model.STEP.why_not(training) is None
    made = world_model.run(training)
    world = load_world(tmp_path / "world_model", agent=agent)
    assert made.values["world"] == world.digest
    assert world.about["environment"] == MINIRUN
    assert told

    kept.save(made, tmp_path / "world_model", "", "")
    found = training.figures("world_model", world_model.WorldModel)
    assert found is not None
    quality = found.quality
    assert world_model.valid_horizon(training) == quality.valid_horizon
    assert not training.warnings
    assert len(quality.errors["model"].mean) == quality.steps + 1
    assert [picture.name for picture in made.pictures] == ["horizon", "strips", "training"]
    assert all(picture.image.startswith(b"\x89PNG") for picture in made.pictures)
    assert {check.name for check in made.checks if check.passed is not None}
    assert np.isfinite(quality.errors["copy_last"].mean[1])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("chain")
    batch = make_batch(MINIRUN, 8)
    agent = network_agent(batch.observation_space, batch.action_space, features=16)
    record_inside(
        agent, batch, list(range(24)), folder / "recording", acting={"greedy": 0.5, "epsilon": 0.5}, epsilon=0.5
    )
    memory = load_episodes(folder / "recording").memory.reshape(-1, agent.memory_size)
    (folder / "bases").mkdir()
    directions.fit("pca", memory, 3).save(folder / "bases" / "pca.npz")
    return agent, folder


@pytest.mark.slow
@pytest.mark.parametrize("simulated", [False, True])
def test_saliency_through_time_with_and_without_a_world_model(recorded, simulated, tmp_path, monkeypatch):
    torch.set_num_threads(1)
    monkeypatch.setattr(attribution, "FEWEST", 8)
    monkeypatch.setattr(attribution, "COMPONENTS", 1)
    monkeypatch.setattr(attribution, "METHODS", ("saliency", "integrated_gradients"))
    agent, folder = recorded
    names = ["recording"]
    if simulated:
        names.append("bases")
        world = ImageWorld(agent, action_size(agent.action_space))
        monkeypatch.setattr(attribution, "world_of", lambda context: world)
        monkeypatch.setattr(attribution, "valid_horizon", lambda context: 2)
    context = context_of(agent, partial(make_batch, MINIRUN), tmp_path, "attribution", (), 0.02, MINIRUN)
    context = replace(context, folders={name: folder / name for name in names})
    assert attribution.STEP.why_not(context) is None
    section = attribution.run(context)
    quantities = ["value", "advantage", "action", *["loading_0"] * simulated]
    assert section.values["valid_horizon"] == (2 if simulated else None)
    assert {picture.name for picture in section.pictures} >= {f"saliency_{name}" for name in quantities}
    faithful = section.values["faithful"]["by_map"]
    assert {"value/saliency", "value/integrated_gradients", "advantage/smoothgrad"} < set(faithful)
    assert {"deletion", "random_deletion"} < set(section.values["areas"]["value/saliency"])
    for picture in section.pictures[1:]:
        assert (picture.crossed_out is None) == faithful[f"{picture.name.removeprefix('saliency_')}/smoothgrad"]
