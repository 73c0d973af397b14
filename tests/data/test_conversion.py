"""Recorded episodes between our formats, imitation's and Minari's."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray.cli import fit_rewards
from rlhf_ray.cli.convert import run
from rlhf_ray.data.recording_writer import write_episodes
from rlhf_ray.data.recordings import Recording, load_demonstrations, load_transitions, open_episodes
from rlhf_ray.settings import SettingError
from tests.data.test_recordings import same_episodes, written
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS

SPACES: list[tuple[gym.spaces.Box, gym.Space[Any]]] = [(VECTORS, FORCES), (IMAGES, CHOICES)]


@pytest.mark.parametrize("spaces", SPACES, ids=["vectors", "images"])
def test_a_recording_becomes_a_minari_data_set_and_comes_back(tmp_path, spaces, monkeypatch):
    minari = pytest.importorskip("minari", reason="the extra 'minari'")
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    episodes = written(tmp_path / "r", spaces, "Pendulum-v1")
    out = tmp_path / "datasets" / "pendulum" / "made-up-v3"
    run([str(tmp_path / "r"), str(out), "--to", "minari"])
    dataset = minari.load_dataset("pendulum/made-up-v3")
    assert (dataset.spec.dataset_id, dataset.total_episodes, dataset.total_steps) == ("pendulum/made-up-v3", 5, 16)
    assert (dataset.observation_space, dataset.action_space) == spaces
    for ours, theirs in zip(episodes, dataset.iterate_episodes(), strict=True):
        np.testing.assert_array_equal(theirs.observations, ours.trajectory.observations)
        np.testing.assert_array_equal(theirs.actions, ours.trajectory.actions)
        assert theirs.rewards.tolist() == ours.trajectory.rewards.tolist()
        assert (theirs.terminations[-1], theirs.truncations[-1]) == (ours.trajectory.terminated, ours.truncated)
    for path in (out, out / "data"):
        same_episodes(episodes, open_episodes(path).episodes)
    run([str(out), str(tmp_path / "back")])
    back = Recording(tmp_path / "back")
    same_episodes(episodes, back)
    assert (back.about["environment"], back.observation_space, back.action_space) == ("Pendulum-v1", *spaces)
    steps = load_transitions(out)
    assert steps.columns["truncated"].tolist() == [i in (3, 15) for i in range(16)]
    assert len(load_demonstrations(out)) == 16
    assert fit_rewards._spaces(str(out), None) == spaces


def test_a_minari_data_set_whose_spaces_are_unknown_makes_no_environment(tmp_path):
    pytest.importorskip("minari", reason="the extra 'minari'")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "metadata.json").write_text(
        '{"data_format": "hdf5", "env_spec": "{\\"id\\": \\"evil:Env-v0\\"}"}'
    )
    with pytest.raises(SettingError, match="its metadata has no spaces"):
        open_episodes(tmp_path)


def test_a_recording_goes_to_imitation_and_back(tmp_path):
    serialize = pytest.importorskip("imitation.data.serialize", reason="the extra 'imitation'")
    space = gym.spaces.Box(-np.array([1, 1, 8], np.float32), np.array([1, 1, 8], np.float32))
    episodes = written(tmp_path / "r", (space, gym.spaces.Box(-2, 2, (1,))), "Pendulum-v1")
    out = tmp_path / "folder"
    for made, to in ((written(tmp_path / "i", SPACES[1], "Pendulum-v1"), tmp_path / "images"), (episodes, out)):
        run([str(tmp_path / ("r" if to == out else "i")), str(to), "--to", "imitation"])
        for ours, theirs in zip(made, serialize.load_with_rewards(str(to)), strict=True):
            np.testing.assert_array_equal(theirs.obs, ours.trajectory.observations)
            np.testing.assert_array_equal(theirs.acts, ours.trajectory.actions)
            np.testing.assert_array_equal(theirs.rews, ours.trajectory.rewards)
            assert (theirs.terminal, len(theirs.infos)) == (ours.trajectory.terminated, len(ours.trajectory))
        same_episodes(made, open_episodes(to).episodes, truncated=False)
    with pytest.raises(SettingError, match="spaces of the episodes are unknown"):
        run([str(out), str(tmp_path / "back")])
    with pytest.raises(SettingError, match=r"the environment has Box"):
        run([str(out), str(tmp_path / "back"), "--environment", "CartPole-v1"])
    run([str(out), str(tmp_path / "back"), "--environment", "Pendulum-v1"])
    same_episodes(episodes, Recording(tmp_path / "back"), truncated=False)


def test_outs_that_do_not_fit_the_format_are_refused(tmp_path):
    written(tmp_path / "r", SPACES[0], "Pendulum-v1")
    source = open_episodes(tmp_path / "r")
    with pytest.raises(SettingError, match=r"demonstrations is an .npz file"):
        write_episodes(source, tmp_path / "d", "demonstrations")
    with pytest.raises(SettingError, match="recording is a folder"):
        write_episodes(source, tmp_path / "d.npz", "recording")
    with pytest.raises(SettingError, match="exists"):
        write_episodes(source, tmp_path / "r", "imitation")
    write_episodes(source, tmp_path / "d.npz", "demonstrations")
    assert len(load_demonstrations(tmp_path / "d.npz")) == 16
