"""`rlhf-ray fit --from-rewards`: from a recording to a reward model, its table and its report; wrong input in one line."""

import json
import shutil

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray import cli
from rlhf_ray.data.demonstrations import Demonstrations
from rlhf_ray.data.recording_writer import write_episodes
from rlhf_ray.data.recordings import EpisodeSource
from rlhf_ray.reward.functions import load_reward
from tests.command_line import fails_with

SPACES = gym.spaces.Box(-4, 4, (3,), np.float32), gym.spaces.Discrete(2)
SMALL = ("--supervised.epochs", "2", "--reward-model.hidden", "8")


def steps_of(n=200, first_reward=None):
    rng = np.random.default_rng(0)
    states = rng.normal(size=(n // 20, 21, 3)).astype(np.float32)
    rewards = states[:, 1:, 0].reshape(-1).astype(float)
    rewards[0] = rewards[0] if first_reward is None else first_reward
    before, after = (of.reshape(-1, 3) for of in (states[:, :-1], states[:, 1:]))
    return Demonstrations(before, rng.integers(0, 2, n), after, rewards, np.zeros(n, bool), np.arange(n) % 20 == 19)


def record(steps, out):
    write_episodes(EpisodeSource(steps.episodes(), *SPACES, {"environment": "made up"}), out, "recording")


@pytest.fixture
def recording(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record(steps_of(), "recording")
    return tmp_path


def fails_in_a_line(capsys, *words):
    (said,) = fails_with(capsys, "fit", *words).splitlines()
    return said


def test_a_recording_becomes_a_reward_model_with_a_report(recording, capsys):
    cli.main(["fit", "--from-rewards", "recording", "--out", "model", *SMALL, "--reward-model.no-use-action"])
    printed = capsys.readouterr().out
    for text in ("mean squared error", "… of a constant", "rank correlation", "Calibration", "160 of 200 steps"):
        assert text in printed
    report = json.loads((recording / "model" / "fit.json").read_text())
    assert report["constant_error"] > 0
    assert report["test_episodes"] == 2
    assert load_reward("model").inputs == {"state", "next_state"}
    cli.main(["fit", "--from-rewards=recording", "--out=model", *SMALL, "--supervised.objective", "huber"])
    assert json.loads((recording / "model" / "fit.json").read_text())["objective"] == "huber"


def test_what_does_not_fit_is_said_in_one_line(recording, capsys):
    record(steps_of(first_reward=np.nan), "unknown")
    steps_of().save("demonstrations.npz")
    Demonstrations.load("demonstrations.npz").save("with_spaces.npz", SPACES)
    cli.main(["fit", "--from-rewards", "with_spaces.npz", *SMALL])
    assert load_reward("reward_model").observation_space == SPACES[0]
    shutil.rmtree("reward_model")
    assert "1 of 200 rewards that are NaN" in fails_in_a_line(capsys, "--from-rewards", "unknown")
    assert "name its environment with --environment" in fails_in_a_line(capsys, "--from-rewards", "demonstrations.npz")
    other = ("--from-rewards", "demonstrations.npz", "--environment", "CartPole-v1")
    assert "Use the environment they were recorded in" in fails_in_a_line(capsys, *other)
    assert "holds no recorded steps" in fails_in_a_line(capsys, "--from-rewards", "nothing")
    data = ("--from-rewards", "recording")
    assert "set supervised.epochs instead" in fails_in_a_line(capsys, *data, "--reward-model.updates", "7")
    assert "no training reward is zero" in fails_in_a_line(capsys, *data, "--supervised.balance", "sampler")
    assert "supervised.objective is 'guess'" in fails_in_a_line(capsys, *data, "--supervised.objective", "guess")
    (recording / "reward_model").mkdir()
    assert "is not a reward model" in fails_in_a_line(capsys, *data)
