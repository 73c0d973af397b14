"""Fitting without a run: from a preference store to a reward model's folder."""

from __future__ import annotations

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray import cli
from rlhf_ray.data.comparisons import pair_id, stable_uniform
from rlhf_ray.queries.fitting import fit
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.rllib.starting import check_reward
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.store import PreferenceStore
from tests.made_up import CHOICES, FORCES, VECTORS, some_comparisons

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


@pytest.mark.slow
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
    store = labels(tmp_path / "store", 10)
    for settings, steps in (
        ({"initial_updates": 7}, 32),  # 100 passes over 10 labels in batches of 32
        ({"initial_updates": 50}, 50),
        ({"initial_updates": 50, "initial_epochs": 3}, 1),
        ({"initial_updates": 7, "initial_epochs": 12, "batch_size": 4}, 30),
    ):
        _, report = fit(store, VECTORS, FORCES, RewardModelSettings(hidden=(8,), **settings))  # type: ignore[arg-type]
        assert report.gradient_steps == steps


def test_surf_gets_pairs_that_nobody_was_asked_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, given = labels(tmp_path / "store", 12), []
    real = RewardTrainer.fit

    def watched(self: RewardTrainer, updates: int, **rest: Any) -> Any:
        given.append(rest["unlabelled"])
        return real(self, updates, **rest)

    monkeypatch.setattr(RewardTrainer, "fit", watched)
    settings = dataclasses.replace(SETTINGS, methods=("surf",))
    for of in (SETTINGS, settings, settings):
        fit(store, VECTORS, FORCES, of, updates=1, seed=4)
    assert given[0] is None
    labelled = PreferenceStore(store).load()
    assert labelled is not None
    pairs, asked = given[1], labelled.pairs
    both = [*asked.left.ids(), *asked.right.ids()]
    assert len(pairs) == len(set(pairs.ids)) == 24 * 23 // 2 - 12  # all pairs of the fragments but those with an answer
    assert {*pairs.left.ids(), *pairs.right.ids()} == set(both)
    mirrored = [pair_id(right, left) for left, right in zip(asked.left.ids(), asked.right.ids(), strict=True)]
    assert not {*asked.ids, *mirrored} & {*pairs.ids}
    assert given[2].ids == pairs.ids


def test_without_spaces_it_makes_them_from_the_fragments(tmp_path: Path) -> None:
    reward, _ = fit(labels(tmp_path / "forces"), settings=SETTINGS, updates=3)
    held = PreferenceStore(tmp_path / "forces").load()
    assert held is not None
    largest = max(np.abs(side.actions).max() for side in (held.pairs.left, held.pairs.right))
    assert reward.action_space == gym.spaces.Box(-largest, largest, (2,), np.float32)
    assert reward.observation_space == gym.spaces.Box(-np.inf, np.inf, (3,), np.float32)
    reward, _ = fit(labels(tmp_path / "choices", actions=CHOICES), settings=SETTINGS, updates=3)
    assert reward.action_space == CHOICES


def test_actions_that_are_none_of_the_environments_are_one_line(tmp_path: Path) -> None:
    store = labels(tmp_path / "store", actions=gym.spaces.Discrete(3, start=-1))
    with pytest.raises(
        SettingError, match="integer actions from -1 to 1, but actions are numbered from 0: add 1 to them"
    ):
        fit(store)
    with pytest.raises(SettingError, match="store have actions from -1 to 1; the environment's are 0 to 2"):
        fit(store, VECTORS, gym.spaces.Discrete(3))


def test_a_reward_of_actions_that_are_all_the_same_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = some_comparisons(20, 6, seed=1)
    clips = [
        dataclasses.replace(side, actions=np.zeros_like(side.actions)) for side in (found.pairs.left, found.pairs.right)
    ]
    pairs = dataclasses.replace(found.pairs, left=clips[0], right=clips[1])
    PreferenceStore(tmp_path / "same").commit(dataclasses.replace(found, pairs=pairs), annotator="oracle")
    fit(tmp_path / "same", VECTORS, FORCES, dataclasses.replace(SETTINGS, use_action=False), updates=1)
    fit(labels(tmp_path / "different", 20), VECTORS, FORCES, SETTINGS, updates=1)
    assert not caplog.records
    fit(tmp_path / "same", VECTORS, FORCES, SETTINGS, updates=1)
    assert "reward_model.use_action" in caplog.text


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


def stored_decided(store: Path, share: float) -> int:
    """The number of held-out answers that are no ties."""
    snapshot = PreferenceStore(store).snapshot()
    return int(((stable_uniform(snapshot.ids, "held out") < share) & (snapshot.preferences != 0.5)).sum())


def test_the_command_says_that_answers_contradict_each_other(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    labels(tmp_path / "store", **PENDULUM)
    run = ["fit", str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--updates", "2"]
    for worse in (True, False):
        monkeypatch.setattr("rlhf_ray.cli.fit.below_chance", lambda accuracy, decided, worse=worse: worse)
        cli.main(run)
        assert ("worse than guessing" in capsys.readouterr().err) == worse


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
        decided = stored_decided(run.preferences, 0.25)
        assert f"({decided} answers)" in printed
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


def test_a_store_by_itself_has_no_environment_and_one_can_be_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, out = labels(tmp_path / "store", **PENDULUM), tmp_path / "reward"
    cli.main(["fit", str(store), "--out", str(tmp_path / "unknown"), "--updates", "5"])
    printed = capsys.readouterr()
    assert "150 labels" in printed.out
    assert printed.err.count("\n") == 1
    assert f"environment of {store} is unknown" in printed.err
    unknown = RewardEnsemble.load(tmp_path / "unknown")
    assert unknown.action_space.shape == (1,)
    assert unknown.action_space != PENDULUM["actions"]
    with pytest.raises(SettingError, match="or fit it again with --environment"):
        check_reward(unknown, PENDULUM["observations"], PENDULUM["actions"], unknown.settings, "unknown")
    assert "Pendulum-v9" in fails_with(capsys, store, "--out", out, "--environment", "Pendulum-v9")
    assert "FrozenLake" in fails_with(capsys, store, "--out", out, "--environment", "FrozenLake-v1")
    assert "observations of shape (3,)" in fails_with(capsys, store, "--out", out, "--environment", "MountainCar-v0")
    assert "not a preference store" in fails_with(capsys, tmp_path, "--out", out, "--environment", "Pendulum-v1")
    assert not out.exists()
    cli.main(["fit", str(store), "--out", str(out), "--environment", "Pendulum-v1", "--updates", "5"])
    printed = capsys.readouterr()
    assert "150 labels" in printed.out
    assert printed.err == ""
    cli.main(["fit", str(store), "--out", str(out), "--environment", "Pendulum-v1", "--updates", "6"])  # once more
    assert "is not a reward model" in fails_with(capsys, store, "--out", tmp_path, "--environment", "Pendulum-v1")
    assert int(RewardEnsemble.load(out).version) == 1
