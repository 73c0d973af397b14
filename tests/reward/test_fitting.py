"""Fitting without a run: from a preference store to a reward model's folder."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray import cli
from rlhf_ray.reward import RewardEnsemble, fit
from rlhf_ray.reward.fitting import default_updates
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.store import PreferenceStore
from tests.made_up import FORCES, VECTORS, some_comparisons

PENDULUM: dict[str, Any] = {
    "observations": gym.spaces.Box(-8.0, 8.0, (3,), np.float32),
    "actions": gym.spaces.Box(-2.0, 2.0, (1,), np.float32),
}
SETTINGS = RewardModelSettings(hidden=(16,), ensemble_size=2)


def labels(folder: Path, n: int = 150, **spaces: Any) -> Path:
    """A store of labels that the oracle gave."""
    PreferenceStore(folder).commit(some_comparisons(n, 6, seed=1, **spaces), annotator="oracle")
    return folder


def fails_with(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    with pytest.raises(SystemExit) as error:
        cli.main(["fit", *map(str, words)])
    assert error.value.code == 2
    printed = capsys.readouterr()
    return printed.out + printed.err


def test_a_fit_to_stored_labels_predicts_those_held_out_and_repeats_bit_for_bit(tmp_path: Path) -> None:
    store = labels(tmp_path / "store", 400)
    reward, report = fit(store, VECTORS, FORCES, SETTINGS, held_out_share=0.3, updates=400, seed=3)
    assert report.comparisons == 400
    assert report.gradient_steps == 400
    assert 80 < report.held_out < 160
    assert report.held_out_accuracy > 0.8
    again, _ = fit(PreferenceStore(store), VECTORS, FORCES, SETTINGS, held_out_share=0.3, updates=400, seed=3)
    for name, value in reward.state().items():
        np.testing.assert_array_equal(value, again.state()[name])
    other, _ = fit(store, VECTORS, FORCES, SETTINGS, held_out_share=0.3, updates=400, seed=4)
    assert any(not np.array_equal(value, other.state()[name]) for name, value in reward.state().items())


def test_unless_told_otherwise_it_passes_over_the_labels_a_number_of_times(tmp_path: Path) -> None:
    assert default_updates(320, RewardModelSettings(batch_size=32, initial_updates=5)) == 1000
    assert default_updates(8, RewardModelSettings(batch_size=32, initial_updates=200)) == 200
    _, report = fit(labels(tmp_path / "store", 10), VECTORS, FORCES, RewardModelSettings(initial_updates=7))
    assert report.gradient_steps == 32


def test_labels_that_are_missing_or_of_another_environment_are_an_error(tmp_path: Path) -> None:
    PreferenceStore(tmp_path / "empty")
    with pytest.raises(SettingError, match="has no active label"):
        fit(tmp_path / "empty", VECTORS, FORCES)
    with pytest.raises(ValueError, match="not a preference store"):
        fit(tmp_path / "nothing", VECTORS, FORCES)
    with pytest.raises(
        SettingError, match=r"observations of shape \(3,\) and actions of shape \(2,\).*environment has"
    ):
        fit(labels(tmp_path / "store", 2), PENDULUM["observations"], PENDULUM["actions"])


def test_the_command_fits_to_a_run_and_writes_a_reward_model(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = Experiment(
        seed=5, preferences=PreferenceSettings(held_out_share=0.25), reward_model=RewardModelSettings(hidden=(12,))
    )
    run = RunFolder.create(tmp_path / "run", experiment)
    labels(run.preferences, **PENDULUM)
    for store, out in ((run.path, tmp_path / "first"), (run.preferences, tmp_path / "second")):
        cli.main(["fit", str(store), "--out", str(out), "--updates", "60", "--reward-model.ensemble-size", "2"])
        printed = capsys.readouterr().out
        for words in (str(out), "2 networks", "150 labels", "60 gradient steps", "held-out accuracy 0."):
            assert words in printed
    first, second = (RewardEnsemble.load(tmp_path / name) for name in ("first", "second"))
    assert first.settings == RewardModelSettings(
        hidden=(12,), ensemble_size=2
    )  # the run's own, and one from the command
    assert first.observation_space.shape == (3,)
    for name, value in first.state().items():
        np.testing.assert_array_equal(value, second.state()[name])
    assert json.loads((tmp_path / "first" / "reward.json").read_text())["version"] == 1
    with (tmp_path / "first" / "curve.csv").open() as file:
        curve = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
    assert curve[0]["gradient_steps"] == 0
    assert curve[-1]["gradient_steps"] == 60
    assert curve[-1]["train_loss"] < curve[0]["train_loss"] == pytest.approx(0.69, abs=0.6)
    assert (tmp_path / "first" / "curve.png").read_bytes()[:4] == b"\x89PNG"


def test_a_store_by_itself_needs_the_environment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, out = labels(tmp_path / "store", **PENDULUM), tmp_path / "reward"
    assert "give it with --environment" in fails_with(capsys, store, "--out", out)
    assert "Pendulum-v9" in fails_with(capsys, store, "--out", out, "--environment", "Pendulum-v9")
    assert "FrozenLake" in fails_with(capsys, store, "--out", out, "--environment", "FrozenLake-v1")
    assert "observations of shape (3,)" in fails_with(capsys, store, "--out", out, "--environment", "MountainCar-v0")
    assert "not a preference store" in fails_with(capsys, tmp_path, "--out", out, "--environment", "Pendulum-v1")
    assert not out.exists()
    cli.main(["fit", str(store), "--out", str(out), "--environment", "Pendulum-v1", "--updates", "5"])
    assert "150 labels" in capsys.readouterr().out
    cli.main(["fit", str(store), "--out", str(out), "--environment", "Pendulum-v1", "--updates", "6"])  # once more
    assert "is not a reward model" in fails_with(capsys, store, "--out", tmp_path, "--environment", "Pendulum-v1")
    assert int(RewardEnsemble.load(out).version) == 1


def test_without_a_store_it_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert "STORE is" in fails_with(capsys)
    with pytest.raises(SystemExit) as error:
        cli.main(["fit", "--help"])
    assert error.value.code == 0
