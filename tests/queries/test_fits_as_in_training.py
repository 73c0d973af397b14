"""That an offline fit, and the fits while recorded behaviour is labelled, use the rows, weights and likelihood of a training's."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rlhf_ray import cli
from rlhf_ray.actors.ring_actors import RewardTrainerActor
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.queries.fitting import fit
from rlhf_ray.queries.offline import label_recorded
from rlhf_ray.queries.pool import FragmentPool
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from tests.made_up import FORCES, VECTORS, some_comparisons, some_fragments

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


SETTINGS: list[dict[str, Any]] = [
    {},
    {"label_noise": 0.0},
    {"annotator_rationality": True, "label_noise": 0.2},
    {"methods": ("rime", "rune")},
    {"window": 30},
    {"bootstrap": False, "largest_log_odds": 2.0, "discount": 0.9},
    {"adaptive_l2": True, "early_stopping": 3},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
@pytest.mark.parametrize("weights", [{}, {"ada": 1.0, "ben": 0.25}, {"ben": 0.0}], ids=str)
def test_a_fit_is_bit_for_bit_the_one_of_a_training(
    tmp_path: Path, settings: dict[str, Any], weights: dict[str, float]
) -> None:
    store = answered(tmp_path / "store")
    for name, weight in weights.items():
        store.weigh(name, weight)
    of = dataclasses.replace(SMALL, **settings)
    version, expected = as_in_training(store, of, 30, 0.2)
    reward, report = fit(store, VECTORS, FORCES, of, held_out_share=0.2, updates=30, seed=5)
    for name, value in reward.state().items():
        np.testing.assert_array_equal(value, version[name], err_msg=name)
    assert str(dataclasses.replace(report, seconds=0.0)) == str(dataclasses.replace(expected, seconds=0.0))


def test_fits_while_behaviour_is_labelled_use_weights_and_leave_out_what_was_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_the_command_says_what_it_used_and_found_of_each_annotator(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = answered(tmp_path / "store")
    words = ["fit", str(store.path), "--out", str(tmp_path / "reward"), "--updates", "20"]
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
