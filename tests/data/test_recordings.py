"""Recordings: what is written is read bit for bit, whatever happens meanwhile, and nothing in a file is ever run."""

import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pytest

from rlhf_ray.data import recording_writer
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.recording_writer import RecordingWriter
from rlhf_ray.data.recordings import Recording, load_transitions
from rlhf_ray.data.transitions import RecordedEpisode, RewardNormaliser, Transitions
from tests.made_up import CHOICES, FORCES, VECTORS, Planted

PICTURES = gym.spaces.Box(0, 255, (5, 4, 3), np.uint8)
SPACES: list[tuple[gym.Space[Any], gym.Space[Any]]] = [
    (VECTORS, FORCES),
    (PICTURES, CHOICES),
    (gym.spaces.Discrete(9), CHOICES),
]
ARRAYS = ("observations", "actions", "next_observations", "terminated", "rewards", "episodes", "steps")


def some_episodes(observations: gym.Space[Any], actions: gym.Space[Any]) -> list[RecordedEpisode]:
    """Episodes of 1 to 6 steps that end in each way."""
    observations.seed(0)
    actions.seed(1)
    rng = np.random.default_rng(0)
    return [
        RecordedEpisode(
            Trajectory(
                np.stack([np.array(observations.sample()) for _ in range(steps + 1)]),
                np.stack([np.array(actions.sample()) for _ in range(steps)]),
                rng.normal(size=steps),
                terminated=number % 3 == 0,
            ),
            truncated=number % 3 == 1,
            policy=("random", "expert")[number % 2],
            level_seed=1000 + number,
            states={"x": rng.normal(size=steps + 1), "cells": rng.integers(9, size=(steps + 1, 2, 2))},
        )
        for number, steps in enumerate((3, 1, 6, 2, 4))
    ]


def written(path: Path, spaces: Any, environment: str = "made up") -> list[RecordedEpisode]:
    """Write `some_episodes` to ``path``."""
    episodes = some_episodes(*spaces)
    writer = RecordingWriter(path, *spaces, {"environment": environment, "policies": ["random", "expert"]})
    for episode in episodes:
        writer.add(episode)
    writer.finish()
    return episodes


def same(one: Any, other: Any) -> None:
    np.testing.assert_array_equal(one, other)
    assert np.asarray(one).dtype == np.asarray(other).dtype


def same_episodes(mine: Any, theirs: Any, truncated: bool = True) -> None:
    for one, other in zip(mine, theirs, strict=True):
        for name in ("observations", "actions", "rewards"):
            same(getattr(one.trajectory, name), getattr(other.trajectory, name))
        assert one.trajectory.terminated == other.trajectory.terminated
        assert not truncated or one.truncated == other.truncated


@pytest.mark.parametrize("spaces", SPACES, ids=["vectors", "images", "numbers"])
def test_what_is_recorded_is_read_bit_for_bit(tmp_path, spaces, monkeypatch):
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 4)
    episodes = written(tmp_path / "r", spaces)
    recording = Recording(tmp_path / "r")
    assert (recording.observation_space, recording.action_space) == spaces
    assert len(recording.chunks) == 3
    assert recording.complete
    same_episodes(recording, episodes)
    for ours, theirs in zip(recording, episodes, strict=True):
        assert (ours.policy, ours.level_seed) == (theirs.policy, theirs.level_seed)
        for name, values in theirs.states.items():
            same(ours.states[name], values)
    steps = load_transitions(tmp_path / "r")
    lengths = [len(episode.trajectory) for episode in episodes]
    ends = np.cumsum(lengths) - 1
    same(steps.observations, np.concatenate([each.trajectory.observations[:-1] for each in episodes]))
    same(steps.next_observations, np.concatenate([each.trajectory.observations[1:] for each in episodes]))
    assert steps.episodes.tolist() == np.repeat(range(5), lengths).tolist()
    assert steps.steps.tolist() == [step for length in lengths for step in range(length)]
    assert np.flatnonzero(steps.terminated).tolist() == [ends[0], ends[3]]
    assert np.flatnonzero(steps.columns["truncated"]).tolist() == [ends[1], ends[4]]
    assert steps.columns["policy"].tolist() == np.repeat(["random", "expert"] * 2 + ["random"], lengths).tolist()
    same(steps.columns["next_state.cells"], np.concatenate([each.states["cells"][1:] for each in episodes]))
    part = load_transitions(tmp_path / "r", most=7)
    assert len(part) == 7
    same(part.next_observations, steps.next_observations[:7])


def test_the_files_are_arrow_that_anything_opens(tmp_path):
    written(tmp_path / "r", (VECTORS, FORCES))
    polars = pytest.importorskip("polars")
    with pa.memory_map(str(tmp_path / "r" / "chunk-000000.arrow")) as file:
        table = polars.from_arrow(
            pa.ipc.open_file(file).read_all().drop_columns(["observation", "action", "state.cells"])
        )
    assert table.filter(~polars.col("final")).group_by("policy").len().sort("policy").rows() == [
        ("expert", 3),
        ("random", 13),
    ]
    assert table.filter("final")["reward"].is_nan().all()


def test_normalised_rewards_are_divided_by_the_deviation_of_the_discounted_return():
    rng = np.random.default_rng(0)
    episodes = [rng.normal(3, 2, size=200) for _ in range(20)]
    normalise, returns = RewardNormaliser(gamma=0.9), []
    for rewards in episodes:
        normalised, ret = normalise(rewards), 0.0
        for reward in rewards:
            ret = 0.9 * ret + reward
            returns.append(ret)
    assert normalise.variance == pytest.approx(np.var(returns), rel=1e-3)
    np.testing.assert_allclose(normalised[-1], rewards[-1] / np.std(returns), rtol=1e-3)
    assert np.isnan(normalise(np.array([np.nan, 1.0]))).tolist() == [True, False]


class Killing:
    """Kills the process instead of call number ``after``."""

    def __init__(self, call: Callable[..., None], after: int):
        self.call, self.left = call, after

    def __call__(self, *arguments: Any) -> None:
        if not self.left:
            os.kill(os.getpid(), 9)
        self.left -= 1
        self.call(*arguments)


def test_a_writer_killed_at_any_write_continues_to_the_same_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(recording_writer, "CHUNK_STEPS", 4)
    spaces = (VECTORS, FORCES)
    written(tmp_path / "whole", spaces)
    whole = {file.name: file.read_bytes() for file in (tmp_path / "whole").iterdir()}
    killed = 0
    while True:
        folder, child = tmp_path / "killed", os.fork()
        if child == 0:
            os.replace = Killing(os.replace, after=killed)  # type: ignore[assignment]
            written(folder, spaces)
            os._exit(0)
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0:
            break
        writer = RecordingWriter(folder, *spaces, {"environment": "made up", "policies": ["random", "expert"]})
        for episode in some_episodes(*spaces)[len(Recording(folder).lengths) :]:
            writer.add(episode)
        writer.finish()
        assert {file.name: file.read_bytes() for file in folder.iterdir()} == whole
        shutil.rmtree(folder)
        killed += 1
    assert killed == 8  # the first manifest, three chunks and their manifests, and the last manifest


def test_a_folder_with_something_else_is_left_alone(tmp_path):
    written(tmp_path / "r", (VECTORS, FORCES))
    with pytest.raises(SettingError, match="environment='made up', not 'another'; repeat its command"):
        RecordingWriter(tmp_path / "r", VECTORS, FORCES, {"environment": "another", "policies": ["random", "expert"]})
    with pytest.raises(SettingError, match="another action_space"):
        RecordingWriter(tmp_path / "r", VECTORS, CHOICES, {})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(SettingError, match="exists and is not a recording"):
        RecordingWriter(tmp_path / "mine", VECTORS, FORCES, {})


def test_damage_is_one_line_that_names_the_file(tmp_path):
    written(tmp_path / "r", (VECTORS, FORCES))
    chunk = (tmp_path / "r" / "chunk-000000.arrow").read_bytes()
    flipped = bytearray(chunk)
    flipped[len(chunk) // 2] ^= 1
    manifest = json.loads((tmp_path / "r" / "manifest.json").read_text())
    outside = [manifest["chunks"][0] | {"file": "../r/chunk-000000.arrow"}]
    damages = [("chunk-000000.arrow", content) for content in (bytes(flipped), chunk[:100], b"", None)]
    changed = [json.dumps(manifest | {"chunks": chunks}).encode() for chunks in ([{}], outside)]
    damages += [("manifest.json", content) for content in (b"{", b"[]", *changed)]
    said = []
    for name, content in damages:
        folder = tmp_path / "damaged"
        shutil.copytree(tmp_path / "r", folder)
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
        with pytest.raises(SettingError, match="chunk" if content is changed[1] else name) as raised:
            load_transitions(folder)
        shutil.rmtree(folder)
        said.append(str(raised.value))
    assert all("checksum" in each for each in said[:2])
    assert "outside of the recording" in said[-1]
    assert not any("\n" in each for each in said)


def test_a_pickle_in_a_file_is_never_run(tmp_path):
    hit = tmp_path / "hit"
    evil = np.array([Planted(hit)] * 3, dtype=object)
    arrays: dict[str, Any] = {"observations": np.ones((3, 2)), "actions": np.ones(3), "timeouts": np.arange(3) == 2}
    np.savez(tmp_path / "other.npz", **arrays, others=evil)
    assert len(load_transitions(tmp_path / "other.npz")) == 2
    np.savez(tmp_path / "acts.npz", **(arrays | {"actions": evil}))
    (tmp_path / "plain.npz").write_bytes(pickle.dumps(Planted(hit)))
    for name in ("acts.npz", "plain.npz"):
        with pytest.raises(SettingError, match=rf"{name} holds no") as raised:
            load_transitions(tmp_path / name)
        assert "\n" not in str(raised.value)
    assert not hit.exists()
    np.load(tmp_path / "other.npz", allow_pickle=True)["others"]
    assert hit.exists()  # or this test could not fail


def test_demonstrations_load_as_steps(tmp_path):
    episodes = [each.trajectory for each in some_episodes(VECTORS, FORCES)]
    Demonstrations.of(episodes).save(tmp_path / "d.npz")
    steps = load_transitions(tmp_path / "d.npz", most=9)
    for name in ARRAYS:
        same(getattr(steps, name), getattr(Transitions.of_trajectories(episodes), name)[:9])
    assert np.flatnonzero(steps.columns["truncated"]).tolist() == [3]
