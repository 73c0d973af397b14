"""`rlhf-ray record --inside`: an agent's internals, the same whoever plays, and refusals in one line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray import cli
from rlhf_ray.actors.episode_player import InsidePlayer
from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.recorded import InsidePlan, load_episodes
from rlhf_ray.data import recording_writer
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recordings import Recording
from rlhf_ray.envs.batches import GymBatch
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.policies import named_agent, newest_policy
from rlhf_ray.runs.record_inside import levels_of, record_inside_with

POLE = "CartPole-v1"


@pytest.fixture(scope="module")
def agent() -> NetworkAgent:
    batch = GymBatch(POLE, 1)
    torch.manual_seed(0)
    shape = PolicyShape(hidden=(8,), memory="gru", memory_units=6)
    spaces = batch.observation_space, batch.action_space
    return NetworkAgent(ActorCriticNetwork(*spaces, shape), *spaces)


@pytest.fixture(scope="module")
def saved(agent: NetworkAgent, tmp_path_factory: pytest.TempPathFactory) -> str:
    agent.save(tmp_path_factory.mktemp("agent") / "a")
    return str(tmp_path_factory.getbasetemp() / "agent0" / "a")


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def plan(**changes: Any) -> InsidePlan:
    settings: dict[str, Any] = {"acting": {"greedy": 0.5, "sampled": 0.5}, "copies": 4, "keep_states": True}
    return InsidePlan(POLE, levels_of(3, 20), **(settings | changes))


@pytest.mark.soak
def test_actors_record_the_same(
    ray_session: None, agent: NetworkAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 60)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    record_inside_with(plan(), agent, tmp_path / "alone")
    torch.set_num_threads(threads)
    record_inside_with(plan(), agent, tmp_path / "actors", actors=2)
    assert files(tmp_path / "actors") == files(tmp_path / "alone")
    assert len(Recording(tmp_path / "alone").chunks) > 2


@pytest.mark.slow
def test_a_killed_recording_continues_where_it_was(
    agent: NetworkAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 60)
    record_inside_with(plan(), agent, tmp_path / "whole")
    play, played = InsidePlayer.play, []

    def stopped(self: InsidePlayer, block: Any) -> Any:
        played.append(block.first)
        if len(played) == 4:
            raise KeyboardInterrupt
        return play(self, block)

    monkeypatch.setattr(InsidePlayer, "play", stopped)
    with pytest.raises(KeyboardInterrupt):
        record_inside_with(plan(), agent, tmp_path / "broken")
    kept = len(Recording(tmp_path / "broken").lengths)
    assert kept > 0
    record_inside_with(plan(), agent, tmp_path / "broken")
    assert played[4] > 0  # whole blocks on disk are not played again
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


def test_the_command_records_a_saved_agent(saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["record", saved, "--inside", "--environment", POLE, "--out", str(tmp_path / "r"), "--episodes", "10"]
    words += ["--mix", "greedy=0.5", "epsilon=0.5", "--layers", "encoder.0", "--states"]
    cli.main(words)
    assert "in 10 episodes of" in capsys.readouterr().out
    episodes = load_episodes(tmp_path / "r", agent=NetworkAgent.load(saved))
    assert episodes.activations["encoder.0"].shape == (10, int(episodes.lengths.max()), 8)
    assert len(episodes.env_states[0]) == episodes.lengths[0] + 1
    assert sorted(Recording(tmp_path / "r").policies) == ["epsilon"] * 5 + ["greedy"] * 5
    before = files(tmp_path / "r")
    cli.main(words)
    assert files(tmp_path / "r") == before
    assert len(np.unique(episodes.levels)) == 10


def test_the_command_records_a_runs_newest_policy(trained_run: RunFolder, tmp_path: Path) -> None:
    words = ["record", str(trained_run.path), "--inside", "--out", str(tmp_path / "r"), "--episodes", "2"]
    cli.main(words)
    agent, environment, _ = named_agent(trained_run.path, None)
    assert environment == Recording(tmp_path / "r").about["environment"] == trained_run.experiment().environment
    episodes = load_episodes(tmp_path / "r", agent=agent)
    assert episodes.truncated.all()  # Pendulum's time limit
    assert (episodes.rewards < 0).all()  # true rewards, not the learned reward model's
    policy, _ = newest_policy(trained_run)
    np.testing.assert_allclose(episodes.actions[0], policy.best(episodes.observations[0, :-1]), atol=1e-5)


@pytest.mark.parametrize("inside", [["--inside"], []])
def test_rewards_are_normalised_by_the_return_of_the_agents_own_discount(
    trained_run: RunFolder, tmp_path: Path, inside: list[str]
) -> None:
    run = tmp_path / "run"
    shutil.copytree(trained_run.path, run)
    config = json.loads((run / "config.json").read_text())
    assert config["ppo"]["gamma"] == 0.99
    config["ppo"]["gamma"] = 0.9
    (run / "config.json").write_text(json.dumps(config))
    cli.main(["record", str(run), *inside, "--out", str(tmp_path / "r"), "--episodes", "1"])
    assert Recording(tmp_path / "r").chunks[-1]["normaliser"]["gamma"] == 0.9


@pytest.mark.parametrize(
    ("source", "environment", "said"),
    [
        ("agent", "CartPole-v11", "--environment: There is no environment 'CartPole-v11'. The closest"),
        ("mine.py", POLE, r"no agent at mine.py; give a run folder, .* or module:Name of your own"),
    ],
)
def test_an_agent_or_environment_that_is_not_there_is_one_line(
    saved: str, source: str, environment: str, said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        named_agent(Path(saved) if source == "agent" else Path(source), environment)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--inside"], "name its environment with --environment"),
        (
            ["--inside", "--environment", POLE, "--mix", "expert=1"],
            "mix names 'expert'; internals are recorded with",
        ),
        (
            ["--inside", "--environment", POLE, "--layers", "decoder"],
            "layers has 'decoder'; the agent's layers are encoder.0",
        ),
        (["--inside", "--environment", POLE, "--env-steps", "100"], "with --inside, set --episodes"),
        (["--inside", "--environment", POLE, "--episodes", "0"], "episodes is 0; it must be 1 or more"),
        (["--inside", "--environment", "MountainCar-v0"], "but MountainCar-v0 has Box"),
        (["--states"], "--states is for recordings with an agent's internals; add --inside"),
    ],
)
def test_what_cannot_be_recorded_is_one_line(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit, match="2"):
        cli.main(["record", saved, "--out", str(tmp_path / "out"), *words])
    told = capsys.readouterr().err.strip()
    assert said in told
    assert "\n" not in told
    assert not (tmp_path / "out").exists()
