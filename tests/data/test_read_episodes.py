"""Readers check what writers promise, in each format: whole episodes or one line that names the array and its shape."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pyarrow as pa
import pyarrow.ipc
import pytest

from rlhf_ray.data import other_formats, recordings
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Trajectory
from rlhf_ray.data.recording_writer import RecordingWriter, write_episodes
from rlhf_ray.data.recordings import EpisodeSource, Recording, load_demonstrations, load_transitions, open_episodes
from rlhf_ray.data.transitions import RecordedEpisode
from rlhf_ray.data.views import ActionView, action_view_of, view_of

OBSERVED, CHOICES = gym.spaces.Box(-9, 9, (2,), np.float32), gym.spaces.Discrete(3)


def trajectory(steps: int = 6, seed: int = 0) -> Trajectory:
    rng = np.random.default_rng(seed)
    seen = rng.normal(size=(steps + 1, 2)).astype(np.float32)
    return Trajectory(seen, rng.integers(3, size=steps), rng.normal(size=steps), True)


# Minari


def minari_set(
    out: Path, observations: gym.Space[Any], actions: gym.Space[Any], seen: Any, acted: Any, steps: int, count: int = 3
) -> Path:
    """Write a data set of equal episodes."""
    pytest.importorskip("minari", reason="the extra 'minari'")
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    (out / "data").parent.mkdir(parents=True)
    storage = MinariStorage.new(out / "data", observations, actions, None, data_format="hdf5")
    storage.update_metadata({"dataset_id": "made-up-v0", "minari_version": "0.5.3"})
    storage.update_episodes(
        EpisodeBuffer(
            observations=seen,
            actions=acted,
            rewards=list(np.arange(steps) * 0.5),
            terminations=[False] * steps,
            truncations=[False] * (steps - 1) + [True],
        )
        for _ in range(count)
    )
    return out


def change_array(file: Path, name: str, change: Any) -> None:
    import h5py

    with h5py.File(file / "data" / "main_data.hdf5", "a") as content:
        kept = change(content[name][:])
        del content[name]
        content.create_dataset(name, data=kept)


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("observations", lambda kept: kept[:-1], r"episode 1 has 6 observations, 6 actions"),
        ("observations", lambda kept: np.concatenate([kept, kept]), "episode 1 has 14 observations, 6 actions"),
        ("observations", lambda kept: kept[:, :1], r"episode 1 have observations of shape \(1,\)"),
        ("rewards", lambda kept: kept[:-2], "episode 1 has 7 observations, 6 actions and 4 rewards"),
        ("rewards", lambda kept: np.stack([kept, kept], 1), r"rewards has shape \[6, 2\]; it must have \[6\]"),
        ("actions", lambda kept: kept[:-1], "episode 1 has 7 observations, 5 actions"),
        ("actions", lambda kept: kept + 9, "episode 1 have actions from"),
        ("terminations", lambda kept: kept[:-1], "episode 1 has 5 terminations for 6 actions"),
        ("truncations", lambda kept: kept.astype(float) + 0.5, "truncations has the value 0.5"),
    ],
)
def test_a_minari_data_set_with_an_episode_that_does_not_fit_is_refused(tmp_path, name, change, said):
    of = trajectory()
    folder = minari_set(tmp_path / "m", OBSERVED, CHOICES, of.observations, of.actions, 6)
    change_array(folder, f"episode_1/{name}", change)
    for read in (load_transitions, load_demonstrations, lambda path: list(open_episodes(path).episodes)):
        with pytest.raises(SettingError, match=said):
            read(folder)
    source = open_episodes(folder)
    for to, out in (("recording", "r"), ("imitation", "i"), ("minari", "n"), ("demonstrations", "d.npz")):
        with pytest.raises(SettingError, match=said):
            write_episodes(source, tmp_path / out, to)  # type: ignore[arg-type]
    assert [entry.name for entry in tmp_path.iterdir()] == ["m"]


NESTED = gym.spaces.Dict(
    observation=gym.spaces.Box(-5, 5, (3,), np.float64),
    achieved_goal=gym.spaces.Dict(
        kettle=gym.spaces.Box(-5, 5, (2,), np.float32), burner=gym.spaces.Discrete(3, start=1)
    ),
    desired_goal=gym.spaces.Tuple([gym.spaces.Box(-5, 5, (2,), np.float32), gym.spaces.MultiBinary(2)]),
)


def batched(space: gym.Space[Any], values: list[Any]) -> Any:
    """Samples as Minari's buffer has them: arrays in the shape of the space."""
    if isinstance(space, gym.spaces.Dict):
        return {name: batched(part, [each[name] for each in values]) for name, part in space.spaces.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(batched(part, [each[i] for each in values]) for i, part in enumerate(space.spaces))
    return np.stack([np.asarray(each, space.dtype) for each in values])


@pytest.mark.parametrize(
    ("observations", "actions"),
    [
        (NESTED, gym.spaces.Box(-1, 1, (2,), np.float32)),
        (gym.spaces.Dict(a=OBSERVED, b=gym.spaces.MultiDiscrete([2, 3])), gym.spaces.Discrete(4, start=2)),
        (gym.spaces.Dict(picture=gym.spaces.Box(0, 255, (16, 20, 3), np.uint8), on=gym.spaces.MultiBinary(2)), CHOICES),
        (gym.spaces.Tuple([OBSERVED, gym.spaces.Box(-2, 2, (2, 2), np.float32)]), gym.spaces.MultiDiscrete([3, 2])),
    ],
    ids=["goals", "choices", "picture", "tuple"],
)
def test_a_minari_data_set_of_other_spaces_reads_as_the_environment_sees_them(tmp_path, observations, actions):
    observations.seed(1), actions.seed(1)  # type: ignore[func-returns-value]
    given, acted = [observations.sample() for _ in range(5)], [actions.sample() for _ in range(4)]
    folder = minari_set(tmp_path / "m", observations, actions, batched(observations, given), batched(actions, acted), 4)
    source = open_episodes(folder)
    view, acting = view_of(observations), action_view_of(actions) or ActionView(actions, np.asarray, np.asarray)
    assert (source.observation_space, source.action_space) == (view.space, acting.space)
    read = next(iter(source.episodes)).trajectory
    np.testing.assert_array_equal(read.observations, np.stack([view.see(each) for each in given]))
    np.testing.assert_array_equal([acting.act(each) for each in read.actions], np.stack(acted))
    assert read.observations.dtype == view.space.dtype
    write_episodes(source, tmp_path / "r", "recording")
    assert len(load_transitions(tmp_path / "r")) == 12
    if isinstance(actions, gym.spaces.Box | gym.spaces.Discrete):
        write_episodes(source, tmp_path / "i", "imitation")
        assert len(load_demonstrations(tmp_path / "i")) == 12


def test_a_space_without_a_view_is_refused_in_one_line(tmp_path):
    space = gym.spaces.Dict(a=OBSERVED, told=gym.spaces.Text(5))
    folder = minari_set(
        tmp_path / "m", space, CHOICES, {"a": np.zeros((3, 2), np.float32), "told": ["a"] * 3}, np.zeros(2, int), 2
    )
    with pytest.raises(SettingError, match=r"has observations of Dict\(.*told.*only Box, Discrete"):
        load_transitions(folder)


# imitation


def changed_folder(folder: Path, **changes: Any) -> Path:
    other_formats.write_imitation([trajectory(), trajectory(4, seed=1)], folder)
    file = folder / "data-00000-of-00001.arrow"
    with pa.OSFile(str(file), "rb") as source:
        columns = pa.ipc.open_stream(source).read_all().to_pydict()
    for name, change in changes.items():
        columns[name][1] = change(columns[name][1])
    table = pa.table(columns)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return folder


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"obs": lambda kept: kept[:-1]}, "episode 1 has 4 observations, 4 actions and 4 rewards"),
        ({"obs": lambda kept: [row[:1] for row in kept]}, r"episode 1 has observations of shape \[1\], and episode 0"),
        ({"rews": lambda kept: kept[:-1]}, "episode 1 has 5 observations, 4 actions and 3 rewards"),
        ({"acts": lambda kept: []}, "episode 1 has|observation differ|no lists|0 actions"),
    ],
)
def test_a_folder_of_imitation_that_does_not_fit_is_refused(tmp_path, changes, said):
    with pytest.raises(SettingError, match=said):
        load_transitions(changed_folder(tmp_path / "f", **changes))


@pytest.mark.parametrize("kind", ["folder", "minari", "d.npz"])
def test_choices_saved_as_a_column_are_read_as_flat_ones(tmp_path, kind):
    flat = trajectory(9, 0)
    column, file = replace(flat, actions=flat.actions[:, None]), tmp_path / kind
    if kind == "folder":
        other_formats.write_imitation([column], file)
    elif kind == "minari":
        # Minari's actions are numbered from 1 here, ours from 0.
        theirs, seen = gym.spaces.Discrete(3, start=1), gym.spaces.Box(-9, 9, (2,), np.float32)
        minari_set(file, seen, theirs, flat.observations, column.actions + 1, 9, count=1)
    else:
        flags = {"terminals": np.arange(9) == 8, "next_observations": flat.observations[1:]}
        np.savez(file, observations=flat.observations[:-1], actions=column.actions, **flags)
    steps = load_transitions(file)
    assert steps.actions.shape == (9,)
    assert steps.actions.tolist() == flat.actions.tolist()


# Arrays of ours


def d4rl() -> dict[str, Any]:
    """Episodes of 4, 3 and 2 steps: a timeout, a terminal, and one cut short."""
    rng = np.random.default_rng(0)
    seen = rng.normal(size=(10, 2))
    return {
        "observations": seen[:-1],
        "actions": rng.normal(size=(9, 1)),
        "next_observations": seen[1:],
        "rewards": np.arange(9.0),
        "terminals": np.arange(9) == 6,
        "timeouts": np.arange(9) == 3,
    }


@pytest.mark.parametrize("shape", [lambda values: values[:, None], lambda values: values.astype(np.float32)])
def test_columns_and_numbers_mean_what_flat_arrays_mean(tmp_path, shape):
    arrays = d4rl()
    for name in ("rewards", "terminals", "timeouts"):
        arrays[name] = shape(arrays[name])
    np.savez(tmp_path / "d.npz", **arrays)
    found = load_demonstrations(tmp_path / "d.npz").trajectories()
    assert [(len(each), each.terminated) for each in found] == [(4, False), (3, True), (2, False)]
    assert np.concatenate([each.rewards for each in found]).tolist() == list(range(9))
    steps = load_transitions(tmp_path / "d.npz")
    assert steps.terminated.shape == steps.rewards.shape == (9,)
    assert steps.columns["truncated"].tolist() == [i == 3 for i in range(9)]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rewards": np.zeros((9, 2))}, r"rewards has shape \[9, 2\]; it must have \[9\]"),
        ({"terminals": np.zeros((9, 1, 3), bool)}, r"terminals has shape \[9, 1, 3\]"),
        ({"timeouts": np.full(9, 0.3)}, "timeouts has the value 0.3"),
        ({"timeouts": np.full(9, np.nan)}, "timeouts has the value nan"),
        ({"rewards": np.array(["a"] * 9)}, "rewards holds <U1, not numbers"),
        ({"observations": np.zeros(())}, "observations is a single number"),
        ({"rewards": np.zeros(8)}, "arrays of one length"),
        ({"next_observations": np.zeros((9, 3))}, r"next_observations has shape \[9, 3\], and observations \[9, 2\]"),
        ({"actions": np.zeros((9, 1), complex)}, "actions holds complex128"),
    ],
)
def test_arrays_of_other_shapes_are_named(tmp_path, changes, said):
    np.savez(tmp_path / "d.npz", **{**d4rl(), **changes})
    with pytest.raises(SettingError, match=said):
        load_transitions(tmp_path / "d.npz")


# Our recordings


def test_steps_without_a_next_observation_are_no_steps(tmp_path):
    np.savez(tmp_path / "d.npz", observations=np.ones((3, 2)), actions=np.ones(3), terminals=np.ones(3, bool))
    with pytest.raises(SettingError, match="no step whose next observation is known"):
        load_transitions(tmp_path / "d.npz")


def test_a_recording_whose_manifest_tells_of_other_episodes_is_refused(tmp_path):
    writer = RecordingWriter(tmp_path, OBSERVED, CHOICES, {})
    for seed in range(2):
        writer.add(RecordedEpisode(trajectory(seed=seed)))
    writer.finish()
    file = tmp_path / recordings.MANIFEST
    kept = json.loads(file.read_text())
    for change, said in (
        ({"lengths": [5, 7]}, "its episodes are not those of the manifest"),
        ({"lengths": [6]}, "lengths and policies don't fit"),
        ({"lengths": [13], "policies": [""]}, "its episodes are not those of the manifest"),
    ):
        file.write_text(json.dumps({**kept, "chunks": [{**kept["chunks"][0], **change}]}))
        with pytest.raises(SettingError, match=said):
            list(Recording(tmp_path))


def test_a_trajectory_of_another_length_is_no_trajectory():
    with pytest.raises(ValueError, match="needs one observation more"):
        Trajectory(np.zeros((4, 2)), np.zeros(4), np.zeros(4), False)


# Half-made folders


def test_an_error_midway_leaves_nothing(tmp_path):
    pytest.importorskip("minari", reason="the extra 'minari'")

    class Failing:
        def __iter__(self) -> Any:
            yield RecordedEpisode(trajectory())
            raise KeyboardInterrupt

    source = EpisodeSource(Failing(), OBSERVED, CHOICES, {})
    for to in ("recording", "minari", "imitation"):
        with pytest.raises(KeyboardInterrupt):
            write_episodes(source, tmp_path / "out", to)  # type: ignore[arg-type]
        assert not list(tmp_path.iterdir())
