"""Fitting without a run: from a preference store to a reward model's folder."""

import csv
import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from rlhf_ray import cli
from rlhf_ray.actors.ring_actors import RewardTrainerActor
from rlhf_ray.data.comparisons import Comparisons, pair_id, stable_uniform
from rlhf_ray.queries.fitting import fit
from rlhf_ray.queries.offline import label_recorded
from rlhf_ray.queries.pool import FragmentPool
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.rllib.starting import check_reward
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, PreferenceSettings, RewardModelSettings, SettingError
from rlhf_ray.store import PreferenceStore
from tests.command_line import fails_with
from tests.made_up import CHOICES, FORCES, VECTORS, some_comparisons, some_fragments

PENDULUM: dict[str, Any] = {
    "observations": gym.spaces.Box(-8.0, 8.0, (3,), np.float32),
    "actions": gym.spaces.Box(-2.0, 2.0, (1,), np.float32),
}
SETTINGS = RewardModelSettings(hidden=(16,), ensemble_size=2)


def labels(folder: Path, n: int = 150, **spaces: Any) -> Path:
    """A store of labels that the oracle gave."""
    PreferenceStore(folder).commit(some_comparisons(n, 6, seed=1, **spaces), annotator="oracle")
    return folder


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


def test_a_reward_of_actions_that_are_all_the_same_is_warned_of(tmp_path, caplog):
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


def test_the_command_says_that_answers_contradict_each_other(tmp_path, capsys, monkeypatch):
    labels(tmp_path / "store", **PENDULUM)
    run = ["fit", str(tmp_path / "store"), "--out", str(tmp_path / "out"), "--updates", "2"]
    for worse in (True, False):
        monkeypatch.setattr("rlhf_ray.cli.fit.below_chance", lambda accuracy, decided, worse=worse: worse)
        cli.main(run)
        assert ("worse than guessing" in capsys.readouterr().err) == worse


def test_the_command_fits_to_a_run_and_writes_a_reward_model(tmp_path, capsys):
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


def test_a_store_by_itself_has_no_environment_and_one_can_be_given(tmp_path, capsys):
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
    assert "Pendulum-v9" in fails_with(capsys, "fit", store, "--out", out, "--environment", "Pendulum-v9")
    assert "FrozenLake" in fails_with(capsys, "fit", store, "--out", out, "--environment", "FrozenLake-v1")
    assert "observations of shape (3,)" in fails_with(
        capsys, "fit", store, "--out", out, "--environment", "MountainCar-v0"
    )
    assert "not a preference store" in fails_with(capsys, "fit", tmp_path, "--out", out, "--environment", "Pendulum-v1")
    assert not out.exists()
    cli.main(["fit", str(store), "--out", str(out), "--environment", "Pendulum-v1", "--updates", "5"])
    printed = capsys.readouterr()
    assert "150 labels" in printed.out
    assert printed.err == ""
    cli.main(["fit", str(store), "--out", str(out), "--environment", "Pendulum-v1", "--updates", "6"])  # once more
    assert "is not a reward model" in fails_with(
        capsys, "fit", store, "--out", tmp_path, "--environment", "Pendulum-v1"
    )
    assert int(RewardEnsemble.load(out).version) == 1


SMALL = RewardModelSettings(hidden=(8,), ensemble_size=2)


def answered(folder: Path, *, wrong: float = 0.4) -> PreferenceStore:
    """Sixty pairs of ada, who is right, and of ben, who errs that often; ten pairs of both, some ties and soft answers."""
    store, given = PreferenceStore(folder), some_comparisons(70, 6, seed=3)
    given.preferences[5:8], given.preferences[8:11] = 0.5, 0.8
    flipped = np.random.default_rng(0).random(70) < wrong
    bens = Comparisons(given.pairs, np.where(flipped, 1 - given.preferences, given.preferences).astype(np.float32))
    store.commit(given[:40], annotator="ada")
    store.commit(bens[30:], annotator="ben")
    store.skip(some_comparisons(3, 6, seed=4).pairs, annotator="ada")
    return store


def as_in_training(
    store: PreferenceStore, settings: RewardModelSettings, updates: int, share: float
) -> tuple[dict[str, Any], Any]:
    """The version and the report of a training's first fit to all that the store holds, at the end of the training."""
    actor = RewardTrainerActor(settings, PreferenceSettings(held_out_share=share), VECTORS, FORCES, seed=5)
    made, version, _ = actor.fit(updates, 1, store.since(0), progress=1.0)
    return version, made.report


OPTIONS: list[dict[str, Any]] = [
    {},
    {"label_noise": 0.0},
    {"annotator_rationality": True, "label_noise": 0.2},
    {"methods": ("rime", "rune")},
    {"window": 30},
    {"bootstrap": False, "largest_log_odds": 2.0, "discount": 0.9},
    {"adaptive_l2": True, "early_stopping": 3},
]


@pytest.mark.parametrize("settings", OPTIONS, ids=str)
@pytest.mark.parametrize("weights", [{}, {"ada": 1.0, "ben": 0.25}, {"ben": 0.0}], ids=str)
def test_a_fit_is_bit_for_bit_the_one_of_a_training(tmp_path, settings, weights):
    store = answered(tmp_path / "store")
    for name, weight in weights.items():
        store.weigh(name, weight)
    of = dataclasses.replace(SMALL, **settings)
    version, expected = as_in_training(store, of, 30, 0.2)
    reward, report = fit(store, VECTORS, FORCES, of, held_out_share=0.2, updates=30, seed=5)
    for name, value in reward.state().items():
        np.testing.assert_array_equal(value, version[name], err_msg=name)
    assert str(dataclasses.replace(report, seconds=0.0)) == str(dataclasses.replace(expected, seconds=0.0))


def test_fits_while_behaviour_is_labelled_use_weights_and_leave_out_what_was_taken_back(tmp_path, monkeypatch):
    store, seen = PreferenceStore(tmp_path / "store"), []
    store.commit(some_comparisons(12, 5, seed=9), annotator="ben")
    store.weigh("ben", 0.0)
    real = RewardTrainer.fit

    def watched(self: RewardTrainer, updates: int, **rest: Any) -> Any:
        seen.append((dict(self.comparisons.weights), {name for _, name in self.comparisons.keys}, rest["progress"]))
        return real(self, updates, **rest)

    monkeypatch.setattr(RewardTrainer, "fit", watched)
    preferences = PreferenceSettings(comparisons=60, rounds=2, selection="disagreement")
    drawn, draw = list[int](), FragmentPool.unlabelled
    monkeypatch.setattr(
        FragmentPool, "unlabelled", lambda self, count, number: (drawn.append(number), draw(self, count, number))[1]
    )
    label_recorded(some_fragments(60), store, preferences, dataclasses.replace(SMALL, methods=("surf",)))
    assert drawn == [1, 2]  # the versions that are made, as in a ring
    assert [progress for _, _, progress in seen] == [0.0, 0.5]
    assert seen[0][:2] == ({"ben": 0.0}, {"oracle", "ben"})


def test_the_command_says_what_it_used_and_found_of_each_annotator(tmp_path, capsys):
    store = answered(tmp_path / "store")
    words = [
        "fit",
        str(store.path),
        "--out",
        str(tmp_path / "reward"),
        "--updates",
        "20",
        "--reward-model.network",
        "mlp",
    ]
    store.weigh("ben", 0.5)
    cli.main(words)
    printed = capsys.readouterr().out
    assert "how many of the answers are wrong (" in printed  # 20 gradient steps make a poor reward model
    assert "  ada: 40 labels, error rate 0." in printed
    assert "  ben: 40 labels, weight 0.5, error rate 0." in printed
    store.weigh("ben", 0.0)
    cli.main(words)
    assert "  ben: 40 labels, weight 0: left out" in capsys.readouterr().out
    assert RewardEnsemble.load(tmp_path / "reward").settings.label_noise is None
    metrics = (tmp_path / "reward" / "fit.json").read_text()
    assert '"held_out_calibration_error"' in metrics
    assert '"weights": {\n    "ben": 0.0\n  }' in metrics
