"""Demonstrations: files written and read, by this and by another project, and what they may not be."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.data.demonstrations import Demonstrations, spaces_of_file
from rlhf_ray.data.recordings import load_demonstrations
from rlhf_ray.settings import SettingError
from tests.made_up import CHOICES, FORCES, VECTORS, some_fragments


def made_up(lengths: tuple[int, ...] = (4, 3), terminal: tuple[bool, ...] = (False, True), **without: None) -> Any:
    """Episodes of these lengths; whether each ended by itself. An observation tells its episode and step."""
    number = np.repeat(np.arange(len(lengths)), lengths)
    step = np.concatenate([np.arange(length) for length in lengths])
    last = np.concatenate([np.arange(length) == length - 1 for length in lengths])
    observations = np.stack([number, step, np.zeros(len(step))], 1).astype(np.float32)
    terminals = last & np.array(terminal)[number]
    values: dict[str, Any] = {
        "observations": observations,
        "actions": np.stack([step, -step], 1).astype(np.float32) / 10,
        "next_observations": observations + np.array([0, 1, 0], np.float32),
        "rewards": step.astype(np.float64),
        "terminals": terminals,
        "timeouts": last & ~terminals,
    }
    return Demonstrations(**(values | without))


def test_d4rls_hdf5_is_read_like_an_npz_of_the_same_arrays(tmp_path):
    h5py = pytest.importorskip("h5py")
    demonstrations = made_up()
    with h5py.File(tmp_path / "d.hdf5", "w") as file:
        for name, value in vars(demonstrations).items():
            file[name] = value
        file["metadata/algorithm"] = "SAC"
        file["infos/qpos"] = np.zeros((7, 3))
    loaded = Demonstrations.load(tmp_path / "d.hdf5")
    for name, value in vars(demonstrations).items():
        np.testing.assert_array_equal(getattr(loaded, name), value)
    with h5py.File(tmp_path / "d.hdf5", "a") as file:
        del file["actions"]
    with pytest.raises(SettingError, match=r"no array actions, but infos, metadata, next_observations, observations"):
        Demonstrations.load(tmp_path / "d.hdf5")
    content = (tmp_path / "d.hdf5").read_bytes()
    (tmp_path / "cut.hdf5").write_bytes(content[: len(content) // 2])
    with pytest.raises(SettingError, match=r"cut\.hdf5 holds no recorded steps"):
        Demonstrations.load(tmp_path / "cut.hdf5")


def test_spaces_are_kept_with_the_arrays(tmp_path):
    made_up().save(tmp_path / "with.npz", (VECTORS, FORCES))
    made_up().save(tmp_path / "without.npz")
    assert spaces_of_file(tmp_path / "with.npz") == (VECTORS, FORCES)
    assert spaces_of_file(tmp_path / "without.npz") == (None, None)
    arrays = dict(np.load(tmp_path / "with.npz")) | {"action_space": np.array("{}")}
    np.savez(tmp_path / "bad.npz", **arrays)
    with pytest.raises(SettingError, match="holds no spaces"):
        spaces_of_file(tmp_path / "bad.npz")


def test_observations_and_actions_are_enough_and_other_arrays_are_left_alone(tmp_path):
    np.savez(tmp_path / "d.npz", observations=np.zeros((5, 3)), actions=np.zeros((5, 2)), qpos=np.zeros(9))
    loaded = Demonstrations.load(tmp_path / "d.npz")
    assert len(loaded) == 5
    assert loaded.rewards is loaded.terminals is None
    with pytest.raises(SettingError, match="terminals, timeouts"):
        loaded.trajectories()


def test_episodes_become_trajectories_the_last_one_maybe_unfinished():
    first, second = made_up().trajectories()
    assert (len(first), first.terminated, len(second), second.terminated) == (4, False, 3, True)
    np.testing.assert_array_equal(second.observations[:, :2], [[1, 0], [1, 1], [1, 2], [1, 3]])
    np.testing.assert_array_equal(first.rewards, [0, 1, 2, 3])
    cut = Demonstrations(**{name: value[:6] for name, value in vars(made_up((4, 3), (True, True))).items()})
    assert [(len(t), t.terminated) for t in cut.trajectories()] == [(4, True), (2, False)]


def test_without_next_observations_the_last_step_is_left_out_and_no_episode_ends_by_itself():
    first, second = made_up(next_observations=None, rewards=None).trajectories()
    assert [(len(t.observations), len(t.actions), t.terminated) for t in (first, second)] == [(4, 3, 0), (3, 2, 0)]
    assert np.isnan(first.rewards).all()


def test_each_step_keeps_its_own_next_observation_where_rows_are_missing_or_in_another_order(caplog):
    whole = made_up((4, 3))
    unmarked = made_up((4, 3), terminals=np.arange(7) == 6, timeouts=None)  # type: ignore[arg-type]
    assert [len(piece) for piece in unmarked.trajectories()] == [4, 3]
    assert "After 1 of 7 steps" in caplog.text
    order = np.array([2, 6, 0, 1, 5, 3, 4])
    shuffled = Demonstrations(**{name: value[order] for name, value in vars(whole).items()})
    pieces = shuffled.trajectories()
    assert [len(piece) for piece in pieces] == [1, 1, 2, 1, 1, 1]
    after = np.concatenate([piece.observations[1:] for piece in pieces])
    np.testing.assert_array_equal(after, whole.next_observations[order])
    assert [piece.terminated for piece in pieces] == [False, True, False, False, False, False]
    caplog.clear()
    halves = made_up(next_observations=whole.next_observations.astype(np.float16))
    assert [len(piece) for piece in halves.trajectories()] == [4, 3]
    assert not caplog.text


def test_what_is_no_file_of_demonstrations_is_an_error_that_says_what_it_should_be(tmp_path):
    np.savez(tmp_path / "lacking.npz", observations=np.zeros((5, 3)))
    for name, n, m in (("uneven", 5, 4), ("empty", 0, 0)):
        np.savez(tmp_path / f"{name}.npz", observations=np.zeros((n, 3)), actions=np.zeros((m, 2)))
    np.savez(tmp_path / "objects.npz", observations=np.array([{}]), actions=np.array([{}]))
    np.save(tmp_path / "one.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("no")
    (tmp_path / "zero.npz").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    others = ("one.npy", "text.npz", "zero.npz")
    for name in ("lacking.npz", "uneven.npz", "empty.npz", "objects.npz", *others, "folder", "nothing"):
        why = r"\(it is no .npz file\)" if name in others else ".*"
        with pytest.raises(SettingError, match=rf"{name} holds no recorded steps {why}: .* with the arrays"):
            load_demonstrations(tmp_path / name)


def test_those_of_another_environment_are_refused():
    made_up().checked(VECTORS, FORCES, "d.npz")
    with pytest.raises(SettingError, match=r"d\.npz have observations of shape \(3,\) and actions of shape \(2,\)"):
        made_up().checked(VECTORS, CHOICES, "d.npz")
    with pytest.raises(SettingError, match="observations that are NaN or infinite"):
        made_up(observations=np.full((7, 3), np.nan)).checked(VECTORS, FORCES, "d.npz")
    choices = Demonstrations(np.zeros((3, 3), np.float32), np.array([0, 3, 4]))
    with pytest.raises(SettingError, match="actions from 0 to 4; the environment's are 0 to 3"):
        choices.checked(VECTORS, CHOICES, "d.npz")


@pytest.mark.parametrize("shape", [(3,), (3, 1)])
@pytest.mark.parametrize(
    "space", [gym.spaces.Discrete(5), gym.spaces.MultiDiscrete([5]), gym.spaces.Box(-9, 9, (1,))], ids=str
)
def test_actions_of_one_number_get_the_shape_of_the_space(shape, space, tmp_path):
    made = Demonstrations(np.zeros((3, 3), np.float32), np.array([0, 3, 4]).reshape(shape))
    made.save(tmp_path / "d.npz")
    actions = Demonstrations.load(tmp_path / "d.npz").checked(VECTORS, space, "d.npz").actions
    assert actions.shape == (3, *(space.shape or ()))
    assert actions.flatten().tolist() == [0, 3, 4]


def test_trajectories_that_imitation_saved_are_read(tmp_path):
    serialize = pytest.importorskip("imitation.data.serialize")
    from tests.queries.test_imitations_preference_cases import trajectories_of

    episodes = [trajectories_of(some_fragments(1, length, seed=length))[0] for length in (4, 3)]
    serialize.save(tmp_path / "theirs", episodes)
    loaded = load_demonstrations(tmp_path / "theirs")
    loaded.checked(VECTORS, FORCES, "theirs")
    for ours, theirs in zip(loaded.trajectories(), episodes, strict=True):
        np.testing.assert_allclose(ours.observations, theirs.obs)
        np.testing.assert_allclose(ours.actions, theirs.acts)
        np.testing.assert_allclose(ours.rewards, theirs.rews)
        assert ours.terminated == theirs.terminal
