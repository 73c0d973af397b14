"""Tests of `rlhf-ray interpret preprocess`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from rlhf_ray.cli.interpret import preprocess
from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs import make_env
from rlhf_ray.reward.functions.loading import load_reward
from rlhf_ray.reward.functions.shaped import ShapedReward


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
