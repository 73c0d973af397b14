"""How often annotators err: the estimate, and what using it does to the fitted reward."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.annotators import PRIOR, annotator_model
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import FORCES, VECTORS, some_comparisons

SMALL = RewardModelSettings(hidden=(8,), annotator_errors=True)
TRUE = (0.0, 0.1, 0.3)
NAMES = ("anna", "bert", "cora")


def answers(n: int, seed: int, rates: tuple[float, ...] = TRUE) -> Comparisons:
    """Comparisons by annotators in turn, who answer the opposite that often."""
    right = some_comparisons(n, 10, seed=seed)
    rng = np.random.default_rng(seed)
    whose = np.arange(n) % len(rates)
    wrong = rng.random(n) < np.array(rates)[whose]
    given = np.where(wrong, 1 - right.preferences, right.preferences).astype(np.float32)
    return Comparisons(right.pairs, given, tuple(NAMES[i] for i in whose))


def trainer_of(settings: RewardModelSettings, seed: int = 0, held_out_share: float = 0.1) -> RewardTrainer:
    return RewardTrainer(settings, VECTORS, FORCES, held_out_share=held_out_share, seed=seed)


@pytest.mark.parametrize("sureness", [0.5, 1.0, 6.0])
def test_the_estimate_is_near_however_sure_the_model_is_of_itself(sureness: float) -> None:
    rng = np.random.default_rng(0)
    n, rates = 6000, np.array(TRUE)
    whose = rng.integers(3, size=n)
    logits = rng.normal(0, 3, n)
    truth = rng.random(n) < 1 / (1 + np.exp(-logits))
    given = truth ^ (rng.random(n) < rates[whose])
    preferred = np.where(given, logits, -logits) * sureness
    unseen = rng.random((3, n)) < 0.4
    found, _ = annotator_model(
        np.where(unseen, preferred, 50.0), unseen, whose, 3
    )  # those that saw it find everything right
    assert np.abs(found - rates).max() < 0.03
    assert found.max() <= 0.5


def test_of_whom_nothing_is_known_the_prior_is_said() -> None:
    differences = np.zeros((2, 4))
    unseen = np.array([[True] * 4, [False] * 4])
    assert annotator_model(differences, unseen, np.zeros(4, np.int64), 1)[0] == pytest.approx(
        PRIOR
    )  # the model knows nothing
    found, _ = annotator_model(np.full((1, 300), 9.0), np.ones((1, 300), bool), np.zeros(300, np.int64), 2)
    assert found[0] < 0.01
    assert found[1] == PRIOR
    opposite, _ = annotator_model(
        np.concatenate([np.full((1, 300), 9.0), np.full((1, 100), -9.0)], 1),
        np.ones((1, 400), bool),
        np.repeat([0, 1], [300, 100]),
        2,
    )
    assert opposite[1] == pytest.approx(0.5)


def test_where_no_member_can_be_asked_all_are() -> None:
    settings = dataclasses.replace(SMALL, bootstrap=False)
    trainer = trainer_of(settings, held_out_share=0.0)
    trainer.add(answers(30, 0))
    rates = trainer.fit(20).error_rates
    assert set(rates) == set(NAMES)
    assert all(0 < rate <= 0.5 for rate in rates.values())


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.soak)])
def test_the_estimates_are_near_and_the_reward_better_than_without(seeds: int) -> None:
    unseen = some_comparisons(1000, 10, seed=1000)
    accuracies: dict[bool, list[float]] = {False: [], True: []}
    for seed in range(seeds):
        for errors, found in accuracies.items():
            trainer = trainer_of(RewardModelSettings(annotator_errors=errors), seed)
            trainer.add(answers(600, seed))
            for updates in (200, 60, 60, 60):
                report = trainer.fit(updates)
            left, right = (
                trainer.ensemble.fragment_returns(s).mean(0) for s in (unseen.pairs.left, unseen.pairs.right)
            )
            found.append(float(((left > right) == (unseen.preferences > 0.5)).mean()))
            if errors:
                estimate = np.array([report.error_rates[name] for name in NAMES])
                assert np.abs(estimate - TRUE).max() < 0.1
                assert (np.diff(estimate) > 0.02).all()
            else:
                assert report.error_rates == {}
    assert all(better > plain + 0.02 for plain, better in zip(*accuracies.values(), strict=True)), accuracies


def test_the_rates_of_a_fit_are_those_the_next_one_uses() -> None:
    gradients = []
    for rates in ({}, {"anna": PRIOR, "bert": PRIOR}, {"anna": 0.4}):
        trainer = trainer_of(SMALL, held_out_share=0.0)
        trainer.add(answers(20, 0, (0.0, 0.5)))
        trainer.error_rates = dict[str, float](rates)
        losses = trainer.fit(1).train_loss
        gradients.append(losses)
    assert gradients[0] == gradients[1] != gradients[2]
    noisy = trainer_of(RewardModelSettings(hidden=(8,), label_noise=2 * PRIOR), held_out_share=0.0)
    noisy.add(answers(20, 0, (0.0, 0.5)))
    assert noisy.fit(1).train_loss == pytest.approx(gradients[0], rel=1e-6)


def test_ties_tell_nothing_and_who_does_not_count_is_not_estimated() -> None:
    some = answers(30, 0)
    ties = np.where(np.array(some.annotators) == "cora", 0.5, some.preferences).astype(np.float32)
    trainer = trainer_of(SMALL)
    trainer.apply(Changes(1, Comparisons(some.pairs, ties, some.annotators), (), {"bert": 0.0}))
    assert set(trainer.fit(5).error_rates) == {"anna"}


def test_a_restored_trainer_has_the_rates() -> None:
    some = answers(30, 0)
    trainer, restored = trainer_of(SMALL), trainer_of(SMALL, seed=3)
    trainer.add(some)
    trainer.fit(5)
    restored.load_state(trainer.state(), Changes(1, some))
    assert restored.error_rates == trainer.error_rates != {}
    reports: list[Any] = [str(dataclasses.replace(one.fit(5), seconds=0.0)) for one in (trainer, restored)]
    assert reports[0] == reports[1]


def test_the_estimate_and_label_noise_exclude_each_other() -> None:
    with pytest.raises(SettingError, match=r"reward_model\.label_noise.*annotator_errors replaces it"):
        RewardModelSettings(annotator_errors=True, label_noise=0.1)


def test_rationality_is_found_next_to_errors() -> None:
    rng = np.random.default_rng(0)
    n, rates, betas = 9000, np.array([0.0, 0.1, 0.2]), np.array([0.5, 1.0, 2.0])
    whose = rng.integers(3, size=n)
    differences = rng.normal(0, 3, n)
    truth = rng.random(n) < 1 / (1 + np.exp(-betas[whose] * differences))
    given = truth ^ (rng.random(n) < rates[whose])
    preferred = np.where(given, differences, -differences)[None] * 3.0  # the model is too sure of itself
    errors, rationalities = annotator_model(preferred, np.ones((1, n), bool), whose, 4, rationality=True)
    assert np.abs(errors[:3] - rates).max() < 0.04
    assert rationalities[:3] / rationalities[1] == pytest.approx(betas, rel=0.4)
    assert errors[3] == PRIOR
    assert rationalities[3] == pytest.approx(1.0)  # nothing is known of the fourth


def test_a_fit_scales_the_log_odds_by_each_annotators_rationality() -> None:
    settings = dataclasses.replace(SMALL, annotator_errors=False, annotator_rationality=True, label_noise=0.0)
    trainer = trainer_of(settings)
    trainer.add(answers(60, 0))
    report = trainer.fit(20)
    assert set(report.rationalities) == set(NAMES)
    assert report.error_rates == {}
    trainer.rationalities = {"anna": 2.0, "bert": 0.5, "cora": 1.0}
    of_annotators = trainer._of_annotators()[1]
    assert isinstance(of_annotators, torch.Tensor)
    assert of_annotators[:4].tolist() == [2.0, 0.5, 1.0, 2.0]
    restored = trainer_of(settings)
    restored.load_state(trainer.state(), Changes(60, answers(60, 0)))
    assert restored.rationalities == trainer.rationalities
