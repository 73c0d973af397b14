"""`rlhf-ray record`: mixtures of policies, recorded by one process or several, with the same result after any interruption."""

from __future__ import annotations

import functools
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray import cli
from rlhf_ray.actors.episode_player import EpisodePlayer, InsidePlayer
from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.recorded import InsidePlan, load_episodes
from rlhf_ray.data import recording_writer
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recordings import Recording, load_transitions
from rlhf_ray.envs.batches import GymBatch
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.interpret import load_steps, transitions_of
from rlhf_ray.runs.policies import named_agent, newest_policy
from rlhf_ray.runs.record import RecordingPlan, _played, levels_of, record, record_inside_with
from rlhf_ray.store import PreferenceStore
from tests.command_line import fails_with
from tests.made_up import some_comparisons

NAME, POLE = "record_test/Walk-v0", "CartPole-v1"
INSIDE = ("AGENT", "--inside", "--environment", POLE)


class Walk(gym.Env[Any, Any]):
    """Walk right to 5 for a reward of 1; the expert does. Truncated after 12 steps by gymnasium."""

    observation_space = gym.spaces.Box(-20, 20, (1,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(-2, 3))
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.at += 2 * int(action) - 1
        return self._seen(), float(self.at == 5), self.at == 5, False, {"moved": int(action), "said": "words"}

    def describe(self) -> dict[str, Any]:
        return {"at": self.at, "cells": np.array([self.at, 5])}

    def expert(self, rng: np.random.Generator) -> int:
        return 1

    def _seen(self) -> Any:
        return np.array([self.at], np.float32)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Registers an environment for one test, and returns its name; `Walk` is registered."""

    def register(kind: type[Walk], steps: int | None = 12) -> str:
        spec = gym.envs.registration.EnvSpec(f"record_test/{kind.__name__}-v0", kind, max_episode_steps=steps)
        monkeypatch.setitem(gym.registry, spec.id, spec)
        return spec.id

    assert register(Walk) == NAME
    return register


def files(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def test_steps_are_mixed_by_weight_and_nothing_of_an_episode_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mixture = ["--mix", "expert=0.6", "random=0.3", "epsilon=0.1", "--epsilon", "0.5"]
    cli.main(["record", NAME, "--out", str(tmp_path / "r"), *mixture, "--env-steps", "2000"])
    said = capsys.readouterr().out
    assert "episodes of 60% expert, 30% random, 10% epsilon, mean true return" in said
    assert "succeeded" not in said  # the environment doesn't say
    steps = load_transitions(tmp_path / "r")
    assert 2000 <= len(steps) < 2012
    shares = {name: count / len(steps) for name, count in Counter(steps.columns["policy"].tolist()).items()}
    assert shares == pytest.approx({"expert": 0.6, "random": 0.3, "epsilon": 0.1}, abs=0.006)
    assert steps.actions[steps.columns["policy"] == "expert"].all()
    assert 0.4 < steps.actions[steps.columns["policy"] == "random"].mean() < 0.6
    assert 0.6 < steps.actions[steps.columns["policy"] == "epsilon"].mean() < 0.9
    ends = np.append(np.diff(steps.episodes) > 0, True)
    assert (ends == steps.terminated | steps.columns["truncated"]).all()
    assert not (steps.terminated & steps.columns["truncated"]).any()
    assert (steps.steps[steps.columns["truncated"]] == 11).all()
    assert (steps.next_observations[steps.terminated] == 5).all()  # the final observation
    assert (steps.next_observations[:-1][~ends[:-1]] == steps.observations[1:][~ends[:-1]]).all()
    np.testing.assert_array_equal(steps.rewards, steps.terminated)
    np.testing.assert_array_equal(steps.columns["next_state.at"], steps.next_observations[:, 0])
    np.testing.assert_array_equal(steps.columns["state.cells"][:, 0], steps.observations[:, 0])
    np.testing.assert_array_equal(steps.columns["next_state.moved"], steps.actions)
    assert np.isnan(steps.columns["state.moved"][steps.steps == 0]).all()
    assert len(np.unique(steps.columns["level_seed"])) == steps.episodes[-1] + 1
    assert steps.columns["normalised_reward"][steps.terminated].min() > 1.5  # the true reward stays 1
    cli.main(["record", NAME, "--out", str(tmp_path / "r"), *mixture, "--env-steps", "2000"])
    assert "is already complete" in capsys.readouterr().out


def test_an_interrupted_recording_continues_to_the_same_bytes_and_no_other_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 30)
    plan = RecordingPlan(NAME, {"expert": 1.0, "random": 1.0}, seed=3, episodes=40)
    record(plan, tmp_path / "whole")
    play, played = EpisodePlayer.play, 0

    @functools.wraps(play)  # actors call it by its name
    def interrupted(self: EpisodePlayer, policy: str, number: int) -> Any:
        nonlocal played
        played += 1
        if played % 9 == 0:
            raise KeyboardInterrupt
        return play(self, policy, number)

    monkeypatch.setattr(EpisodePlayer, "play", interrupted)
    interruptions = 0
    while played < 200:
        try:
            record(plan, tmp_path / "broken")
            break
        except KeyboardInterrupt:
            interruptions += 1
            with pytest.raises(SettingError, match=r"with seed=3, not 4; repeat its command to continue it"):
                record(RecordingPlan(NAME, plan.mix, seed=4, episodes=40), tmp_path / "broken")
    assert interruptions > 2
    assert files(tmp_path / "broken") == files(tmp_path / "whole")


@pytest.mark.slow
def test_actors_record_the_same(ray_session: None, tmp_path: Path) -> None:
    plan = RecordingPlan(NAME, {"expert": 0.5, "random": 0.3, "epsilon": 0.2}, env_steps=300)
    record(plan, tmp_path / "alone")
    record(plan, tmp_path / "actors", actors=2)
    assert files(tmp_path / "actors") == files(tmp_path / "alone")


@pytest.mark.parametrize("seed", range(5))
def test_episodes_come_in_turn_however_wrongly_their_lengths_were_guessed(seed: int) -> None:
    rng, played, asked = np.random.default_rng(seed), list[tuple[str, int]](), list[tuple[str, int]]()
    lengths = {name: rng.integers(1, 40, 300) ** 2 // 20 + 1 for name in ("expert", "random", "epsilon")}
    plan = RecordingPlan(NAME, {"expert": 0.5, "random": 0.2, "epsilon": 0.3}, env_steps=2_000)

    def get(which: tuple[str, int]) -> Any:
        played.append(which)
        return SimpleNamespace(trajectory=range(lengths[which[0]][which[1]]))

    executor: Any = SimpleNamespace(ready=lambda reference: True, get=get)
    actors: Any = [SimpleNamespace(call=lambda method, *which: (asked.append(which), which)[1])]
    steps, episodes = Counter[str](random=100), Counter[str](random=7)  # of before
    expected = []
    found = sum(len(each.trajectory) for each in _played(plan, executor, actors, 2, steps, episodes))
    while steps.total() < 2_000:
        name = min(plan.mix, key=lambda name: steps[name] / plan.mix[name])
        expected.append((name, episodes[name]))
        steps[name] += lengths[name][episodes[name]]
        episodes[name] += 1
    assert played == expected
    assert found == steps.total() - 100
    assert len(asked) == len(set(asked)) <= len(played) + 2 * 2  # few in vain


def test_the_share_of_episodes_that_succeeded_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], registered: Callable[..., str]
) -> None:
    class Told(Walk):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            *step, info = super().step(action)
            return *step, info | {"is_success": True if self.at == 5 else None}  # type: ignore[return-value]

    mixture = ["--mix", "expert=0.6", "random=0.4", "--episodes", "10"]
    for out in ("r", "d.npz"):
        cli.main(["record", registered(Told), "--out", str(tmp_path / out), *mixture])
    reached = sum(
        any(seen == 5 for seen in episode.trajectory.observations[1:, 0]) for episode in Recording(tmp_path / "r")
    )
    assert 0 < reached < 10
    assert capsys.readouterr().out.count(f", {reached * 10} % of episodes succeeded\n") == 2


def test_one_file_of_demonstrations(tmp_path: Path) -> None:
    cli.main(["record", NAME, "--out", str(tmp_path / "d.npz"), "--episodes", "5"])  # an environment's expert
    demonstrations = Demonstrations.load(tmp_path / "d.npz")
    assert demonstrations.terminals.sum() == 5
    assert demonstrations.actions.all()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([NAME, "--mix", "expert"], "--mix has 'expert'; write POLICY=SHARE"),
        ([NAME, "--mix", "expret=1"], "mix names the policy 'expret'; choose from policy, expert, random, epsilon"),
        ([NAME, "--mix", "random=0"], "mix gives random the weight 0; it must be above 0"),
        ([NAME, "--mix", "policy=1"], "'policy', which only a run has"),
        ([POLE, "--mix", "expert=1"], "CartPole-v1 has no scripted expert"),
        ([NAME, "--episodes", "0"], "episodes is 0; it must be 1 or more"),
        ([NAME, "--episodes", "1", "--env-steps", "1"], "not both"),
        ([NAME, "--epsilon", "2"], "epsilon is 2.0; it must be between 0 and 1"),
        (["Walk-v7"], "'Walk-v7' is neither a preset"),
        (["AGENT", "--inside"], "name its environment with --environment"),
        ([*INSIDE, "--mix", "expert=1"], "mix names 'expert'; internals are recorded with"),
        ([*INSIDE, "--layers", "decoder"], "layers has 'decoder'; the agent's layers are encoder.0"),
        ([*INSIDE, "--env-steps", "100"], "with --inside, set --episodes"),
        ([*INSIDE, "--episodes", "0"], "episodes is 0; it must be 1 or more"),
        ([*INSIDE, "--environment", "MountainCar-v0"], "but MountainCar-v0 has Box"),
        (["AGENT", "--states"], "--states is for recordings with an agent's internals; add --inside"),
    ],
)
def test_what_cannot_be_recorded_is_one_line(
    saved: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    words = [saved if word == "AGENT" else word for word in words]
    (told,) = fails_with(capsys, "record", *words, "--out", tmp_path / "out").splitlines()
    assert said in told
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_procgen_levels_are_recorded(tmp_path: Path) -> None:
    pytest.importorskip("procgen")
    record(RecordingPlan("procgen/coinrun-easy", {"expert": 1.0}, episodes=2), tmp_path / "r")
    steps = load_transitions(tmp_path / "r")
    assert len(set(steps.columns["level_seed"].tolist())) == 2
    assert (steps.columns["next_state.prev_level_complete"] == 1).sum() == (steps.rewards > 0).sum()
    assert Recording(tmp_path / "r").observation_space == gym.spaces.Box(0, 255, (64, 64, 3), np.uint8)


def test_labelled_clips_of_a_run_are_steps(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SettingError, match="has no labelled clips; record steps with"):
        load_steps(tmp_path)
    comparisons = some_comparisons(3)
    PreferenceStore(tmp_path / "preferences").commit(comparisons, annotator="oracle")
    steps = load_steps(tmp_path)
    left, right = comparisons.pairs.left, comparisons.pairs.right
    assert len(steps) == 6 * left.length
    np.testing.assert_array_equal(steps.rewards, np.concatenate([left.rewards.ravel(), right.rewards.ravel()]))
    assert len(transitions_of(left[np.array([0, 0, 1])])) == 2 * left.length  # each clip once
    assert len(load_steps(tmp_path, most=7)) == 7
    with pytest.raises(SettingError, match="is a run folder"):
        load_transitions(tmp_path)


@pytest.mark.parametrize(
    ("mix", "env_steps", "lengths"),
    [
        ({"random": 1.0}, 31, [31]),
        ({"random": 1.0, "expert": 1.0}, 31, [16, 15]),
        ({"random": 0.75, "expert": 0.25}, 40, [10, 10, 10, 10]),
    ],
)
def test_an_environment_without_an_end_is_recorded_for_exactly_as_many_steps_as_asked_for(
    mix: dict[str, float], env_steps: int, lengths: list[int], tmp_path: Path, registered: Callable[..., str]
) -> None:
    class Endless(Walk):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
            observation, reward, _, _, info = super().step(action % 2 if abs(self.at) < 15 else int(self.at < 0))
            return observation, reward, False, False, info

    plan = RecordingPlan(registered(Endless, None), mix, env_steps=env_steps)
    assert record(plan, tmp_path / "whole") == env_steps
    found = list(Recording(tmp_path / "whole"))
    assert [len(episode.trajectory) for episode in found] == lengths
    assert all(episode.truncated and not episode.trajectory.terminated for episode in found)
    assert all(len(episode.states["at"]) == len(episode.trajectory) + 1 for episode in found)
    steps = {name: sum(len(each.trajectory) for each in found if each.policy == name) for name in mix}
    wanted = {name: env_steps * weight / sum(mix.values()) for name, weight in mix.items()}
    assert all(abs(steps[name] - wanted[name]) < 1 for name in mix)
    with_an_end = RecordingPlan(NAME, {"random": 1.0}, env_steps=31)
    assert record(with_an_end, tmp_path / "limited") >= 31  # to the end of the last episode


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


def inside_plan(**changes: Any) -> InsidePlan:
    settings: dict[str, Any] = {"acting": {"greedy": 0.5, "sampled": 0.5}, "copies": 4, "keep_states": True}
    return InsidePlan(POLE, levels_of(3, 20), **(settings | changes))


@pytest.mark.soak
def test_actors_record_the_same_internals(
    ray_session: None, agent: NetworkAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 60)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    record_inside_with(inside_plan(), agent, tmp_path / "alone")
    torch.set_num_threads(threads)
    record_inside_with(inside_plan(), agent, tmp_path / "actors", actors=2)
    assert files(tmp_path / "actors") == files(tmp_path / "alone")
    assert len(Recording(tmp_path / "alone").chunks) > 2


@pytest.mark.slow
def test_a_killed_recording_continues_where_it_was(
    agent: NetworkAgent, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 60)
    record_inside_with(inside_plan(), agent, tmp_path / "whole")
    play, played = InsidePlayer.play, []

    def stopped(self: InsidePlayer, block: Any) -> Any:
        played.append(block.first)
        if len(played) == 4:
            raise KeyboardInterrupt
        return play(self, block)

    monkeypatch.setattr(InsidePlayer, "play", stopped)
    with pytest.raises(KeyboardInterrupt):
        record_inside_with(inside_plan(), agent, tmp_path / "broken")
    kept = len(Recording(tmp_path / "broken").lengths)
    assert kept > 0
    record_inside_with(inside_plan(), agent, tmp_path / "broken")
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
