"""Recordings of an agent's internals: nothing is lost, nothing is mixed up, and any part is read fast."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.play import play
from rlhf_ray.agents.recorded import SHARES, Windows, load_episodes, record_inside, split_of
from rlhf_ray.data import recording_writer
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.recording_writer import RecordingWriter
from rlhf_ray.data.recordings import Recording, load_transitions
from rlhf_ray.envs.batches import GymBatch
from tests.agents.made import network_agent

POLE, PENDULUM = "CartPole-v1", "Pendulum-v1"


ACTING = {"acting": {"greedy": 0.5, "epsilon": 0.5}, "epsilon": 0.3, "keep_states": True}


def agent_of(batch: GymBatch, memory: str = "gru", seed: int = 0) -> NetworkAgent:
    return network_agent(batch.observation_space, batch.action_space, memory, seed)


@pytest.fixture(scope="module")
def pole() -> GymBatch:
    return GymBatch(POLE, 4)


@pytest.fixture
def recorded(pole: GymBatch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """40 episodes, half of them with random actions, in several chunks."""
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 100)
    record_inside(agent_of(pole), pole, range(40), tmp_path / "r", **ACTING)  # type: ignore[arg-type]
    return tmp_path / "r"


@pytest.mark.parametrize("memory", ["none", "gru", "lstm"])
@pytest.mark.parametrize("name", [POLE, PENDULUM])
def test_every_agent_is_recorded_with_what_it_computed(name: str, memory: str, tmp_path: Path) -> None:
    batch = GymBatch(name, 2)
    agent = agent_of(batch, memory)
    layer = agent.layers[0]
    record_inside(agent, batch, [3, 4, 5], tmp_path / "r", max_steps=9, keep=[layer])
    loaded = load_episodes(tmp_path / "r", agent=agent)
    played = play(agent, batch, [3, 4, 5], max_steps=9, keep=[layer])
    for name, values in vars(played).items():
        if isinstance(values, np.ndarray):
            np.testing.assert_array_equal(getattr(loaded, name), values, err_msg=name)
    np.testing.assert_array_equal(loaded.activations[layer], played.activations[layer])
    assert loaded.levels.tolist() == [3, 4, 5]
    batch.close()


def test_no_frame_is_lost_and_rewards_are_raw(recorded: Path, pole: GymBatch) -> None:
    """The recording that this one replaces drops the first frame of each episode, and keeps normalised rewards only."""
    episodes = load_episodes(recorded)
    assert len(Recording(recorded)) == episodes.lengths.sum() == episodes.returns.sum()  # CartPole pays 1 per step
    env = gym.make(POLE)
    for i, (level, length) in enumerate(zip(episodes.levels, episodes.lengths, strict=True)):
        seen = [env.reset(seed=int(level))[0]]
        for action in episodes.actions[i, :length]:
            observation, _, terminated, truncated, _ = env.step(action)
            seen.append(observation)
        np.testing.assert_array_equal(episodes.observations[i, : length + 1], seen)
        assert (terminated, truncated) == (episodes.terminated[i], episodes.truncated[i])
    steps = load_transitions(recorded)
    assert set(steps.columns["policy"].tolist()) == {"greedy", "epsilon"}
    assert steps.columns["normalised_reward"].std() > 0
    assert (steps.rewards == 1).all()


def test_a_state_blob_gives_the_observation_and_the_rest_of_the_episode(recorded: Path) -> None:
    episodes = load_episodes(recorded, most=4)
    batch = GymBatch(POLE, 4)
    at = episodes.lengths // 2
    seen = batch.restore([episodes.env_states[i][t] for i, t in enumerate(at)])
    for k in range(int((episodes.lengths - at).min()) + 1):
        np.testing.assert_array_equal(seen, episodes.observations[np.arange(4), at + k])
        if k < int((episodes.lengths - at).min()):
            seen = batch.step(episodes.actions[np.arange(4), at + k]).observations
    batch.close()


def test_a_level_is_in_one_split(recorded: Path) -> None:
    parts = {name: set(load_episodes(recorded, split=name).levels.tolist()) for name in SHARES}  # type: ignore[arg-type]
    assert sum(map(len, parts.values())) == 40
    assert set.union(*parts.values()) == set(range(40))
    counts = np.array([sum(split_of(level) == name for level in range(20_000)) for name in SHARES]) / 20_000
    np.testing.assert_allclose(counts, list(SHARES.values()), atol=0.01)
    for name, levels in parts.items():
        found = Windows(recorded, 5, split=name)  # type: ignore[arg-type]
        assert set(found[range(len(found))].levels.tolist()) == levels


def test_another_agents_recording_is_refused(recorded: Path, pole: GymBatch, tmp_path: Path) -> None:
    other = agent_of(pole, seed=1)
    with pytest.raises(SettingError, match=r"not of agent \([0-9a-f]{16}\)") as raised:
        load_episodes(recorded, agent=other)
    assert "\n" not in str(raised.value)
    with pytest.raises(SettingError, match="a recording with agent="):
        record_inside(other, pole, range(40), recorded, **ACTING)  # type: ignore[arg-type]
    for broken in (
        lambda: load_episodes(recorded, split="held out"),  # type: ignore[arg-type]
        lambda: record_inside(other, pole, [], tmp_path / "x"),
        lambda: record_inside(other, pole, [1], tmp_path / "x", acting={"policy": 1.0}),
        lambda: Windows(recorded, 1),
    ):
        with pytest.raises(SettingError):
            broken()


def test_windows_are_parts_of_episodes(recorded: Path) -> None:
    episodes = load_episodes(recorded)
    length = int(np.sort(episodes.lengths)[20])
    source = Windows(recorded, length)
    every = source[range(len(source))]
    assert len(every) == np.maximum(1, episodes.lengths + 2 - length).sum()
    which = {level: i for i, level in enumerate(episodes.levels.tolist())}
    ends = 0
    for i, count in enumerate(every.lengths):
        episode = which[every.levels[i]]
        (start,) = np.flatnonzero((episodes.observations[episode] == every.observations[i, 0]).all(-1))
        for name in ("observations", "memory", "actions", "rewards", "logits", "values"):
            extra = int(name in ("observations", "memory"))
            ours, theirs = getattr(every, name)[i], getattr(episodes, name)[episode]
            np.testing.assert_array_equal(ours[: count + extra], theirs[start : start + count + extra])
            assert not ours[count + extra :].any()  # nothing of the next episode
        assert every.terminated[i] == (episodes.terminated[episode] and start + count == episodes.lengths[episode])
        ends += every.terminated[i]
    assert ends == episodes.terminated.sum()


def test_a_recording_without_an_agent_opens_but_holds_nothing_inside(recorded: Path, tmp_path: Path) -> None:
    whole = Recording(recorded)
    writer = RecordingWriter(
        tmp_path / "old", whole.observation_space, whole.action_space, {"environment": POLE, "policies": ["random"]}
    )
    some = list(whole)[:5]
    for each in some:
        writer.add(type(each)(each.trajectory, each.truncated, "random", each.level_seed))
    writer.finish()
    assert len(load_transitions(tmp_path / "old")) == sum(len(each.trajectory) for each in some)
    assert [each.level_seed for each in Recording(tmp_path / "old")] == [each.level_seed for each in some]
    with pytest.raises(SettingError, match="has no agent's internals"):
        load_episodes(tmp_path / "old")


def test_without_frames_nothing_else_changes(recorded: Path) -> None:
    whole, light = load_episodes(recorded), load_episodes(recorded, frames=False, most=10)
    assert light.observations.shape == (10, int(light.lengths.max()) + 1, 0)
    np.testing.assert_array_equal(light.logits, whole.logits[:10, : light.logits.shape[1]])
