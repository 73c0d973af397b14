"""`rlhf-ray interpret`: what it refuses, in one line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray import study
from rlhf_ray.cli.interpret import preprocess, reward
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_env
from rlhf_ray.reward.functions.loading import load_reward
from rlhf_ray.reward.functions.shaped import ShapedReward


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    path = tmp_path_factory.mktemp("steps") / "steps.npz"
    seen = np.linspace(-1, 1, 33, dtype=np.float32).reshape(11, 3)
    ends = {"terminals": np.zeros(10, bool), "timeouts": np.arange(10) == 9}
    np.savez(path, observations=seen[:-1], next_observations=seen[1:], actions=np.zeros((10, 1), np.float32), **ends)
    return path


def positive_only(observations, actions, next_observations, terminated):
    """A reward that fails where the zeros that it is tried on don't."""
    if (observations < 0).any():
        raise ValueError("negative")
    return observations[:, 0]


def nowhere_else(observations, actions, next_observations, terminated):
    return np.where(observations[:, 0] == 0, 0.0, np.nan)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--gamma", "0"], "--gamma is 0.0"),
        (["--gamma", "1.5"], "--gamma is 1.5"),
        (["--seed", "-1"], "--seed is -1"),
        (["--out", __file__], "--out is .*test_interpret.py is not a folder"),
        (["--environment", "Nothing-v0"], "There is no environment 'Nothing-v0'"),
        (["--environment", "CartPole-v1"], "CartPole-v1, which has observations"),
        (["--model", f"{__name__}:positive_only"], "does not work on the steps in .*: ValueError: negative"),
        (["--model", f"{__name__}:nowhere_else"], "NaN or infinite"),
        (["--edits", "nofile.json"], "--edits is nofile.json, which does not exist"),
        (["--edits", __file__], "are not valid JSON"),
        (["--edits", str(Path(__file__).parent)], "no images. Give edits in a JSON file"),
        (["--model", "no_such_module:f"], "reward is 'no_such_module:f', but there is no module"),
    ],
)
def test_refuses(words, said, steps, tmp_path):
    first = {
        "--model": f"{__name__}:positive_only",
        "--data": str(steps),
        "--environment": "Pendulum-v1",
        "--out": str(tmp_path / "out"),
    }
    if words[0] == "--edits":
        first["--model"] = f"{__name__}:first"
    first[words[0]] = words[1]
    with pytest.raises(SettingError, match=said) as raised:
        reward([*[word for pair in first.items() for word in pair]])
    assert "\n" not in str(raised.value)
    assert not (tmp_path / "out").exists()


def test_names_the_remedy_for_a_model_in_place_of_a_run(tmp_path):
    (tmp_path / "reward.json").write_text("{}")
    with pytest.raises(SettingError, match=f"give --model {tmp_path}"):
        reward([str(tmp_path)])


def test_says_that_an_interrupted_report_continues(steps, tmp_path, monkeypatch):
    def stop(*arguments, **keywords):
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "run_study", stop)
    words = ["--data", str(steps), "--environment", "Pendulum-v1", "--out", str(tmp_path / "out")]
    with pytest.raises(KeyboardInterrupt, match="the same command continues"):
        reward(["--model", f"{__name__}:first", *words])


def first(observations, actions, next_observations, terminated):
    return observations[:, 0]


def test_a_table_is_preprocessed_in_its_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    env = make_env("rlhf_ray/EmptyMaze4-v0", shaping="dense")
    np.savez(tmp_path / "dense.npz", table=env.unwrapped.ground_truth().table)
    words = [str(tmp_path / "dense.npz"), "--environment", "rlhf_ray/EmptyMaze4-v0", "--out", str(tmp_path / "out")]
    preprocess([*words, "--options.objective", "sparse_log"])
    assert "optimal actions unchanged in every state" in capsys.readouterr().out
    assert json.loads((tmp_path / "out" / "certificate.json").read_text())["mean_size_after"] < 0.0625
    shaped = load_reward(tmp_path / "out")
    assert isinstance(shaped, ShapedReward)
    assert shaped.gamma == 0.99
    with pytest.raises(SettingError, match="no table of its states"):
        preprocess([*words[:2], "CartPole-v1", *words[3:]])
    with pytest.raises(SettingError, match="either --data"):
        preprocess(words[:1])
