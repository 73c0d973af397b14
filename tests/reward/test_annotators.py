"""How often annotators err: the estimate, and what using it does to the fitted reward."""

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.measure.error_rates import Drift
from rlhf_ray.reward import annotators
from rlhf_ray.reward.annotators import PRIOR, ErrorRate, Estimates, annotator_model, likelihood_rates
from rlhf_ray.reward.likelihood import log_likelihood_loss, log_likelihood_slope
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import more_right, right_about, some_comparisons
from tests.reward.fits import trainer_of

SMALL = RewardModelSettings(hidden=(8,))
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


def model_of(differences: Any, unseen: Any, whose: Any, annotators: int, **of: Any) -> Estimates:
    """The estimates of annotators 0, 1, …; those of whom ``whose`` has no answer gave one that no member can judge."""
    silent = np.setdiff1d(np.arange(annotators), np.asarray(whose, np.int64))
    keys = [(str(answer), str(int(number))) for answer, number in enumerate([*whose, *silent])]
    nothing = ((0, 0), (0, len(silent)))
    return annotator_model(
        np.pad(np.asarray(differences, float), nothing), np.pad(np.asarray(unseen, bool), nothing), keys, **of
    )


def by_name(found: Estimates) -> list[ErrorRate]:
    return [found.error_rates[name] for name in sorted(found.error_rates)]


def rates_of(found: Estimates) -> Any:
    return np.array([each.rate for each in by_name(found)])


@pytest.mark.parametrize("sureness", [0.5, 1.0, 6.0])
def test_the_estimate_is_near_however_sure_the_model_is_of_itself(sureness: float) -> None:
    rng = np.random.default_rng(0)
    n, rates = 6000, np.array([0.0, 0.1, 0.3, 0.9])
    whose = rng.integers(4, size=n)
    logits = rng.normal(0, 3, n)
    truth = rng.random(n) < 1 / (1 + np.exp(-logits))
    given = truth ^ (rng.random(n) < rates[whose])
    preferred = np.where(given, logits, -logits) * sureness
    unseen = rng.random((3, n)) < 0.4
    # Members that saw an answer find it right.
    found = model_of(np.where(unseen, preferred, 50.0), unseen, whose, 4)
    assert np.abs(rates_of(found) - rates).max() < 0.03
    assert all(each.low - 0.005 <= rate <= each.high for each, rate in zip(by_name(found), rates, strict=True))
    assert [each.wrong > 0.99 for each in by_name(found)] == [False, False, False, True]
    assert found.wrong.rate == pytest.approx((given != truth).mean(), abs=0.03)


def test_it_is_the_posterior_computed_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    # If the model is sure of every comparison, the posterior of a rate is that of a coin, computed here cell by cell.
    monkeypatch.setattr(annotators, "TEMPERATURES", np.array([0.02]))
    n, wrong = 120, 18
    differences = np.where(np.arange(n) < wrong, -50.0, 50.0)[None]
    found = model_of(differences, np.ones((1, n)), np.zeros(n), 1).error_rates["0"]
    rates = (np.arange(100) + 0.5) / 100
    prior = 0.9 * stats.beta(1, 10).pdf(rates) / stats.beta(1, 10).pdf(rates).sum() + 0.1 / 100
    posterior = stats.binom(n, rates).pmf(wrong) * prior
    posterior /= posterior.sum()
    assert found.rate == pytest.approx(float(posterior @ rates), abs=2e-3)
    inside = (rates > found.low) & (rates < found.high)
    assert 0.95 <= posterior[inside].sum() < 0.98
    assert found.answers == n


def test_answers_multiplied_together_have_the_likelihood_of_each_alone() -> None:
    rng = np.random.default_rng(2)
    chances = rng.beta(0.1, 0.1, (21, 300)).clip(1e-6, 1 - 1e-6)
    whose = rng.choice([0, 2, 3], 300)  # the second has none
    rates = annotators.RATES[None, :, None]
    each = np.log(rates * (1 - chances[:, None]) + (1 - rates) * chances[:, None])
    expected = np.stack([each[:, :, whose == number].sum(2) for number in range(5)], 2)
    assert annotators._log_likelihoods(chances, whose, 5) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(("errors", "most"), [(0.0, 0.04), (0.1, 0.06), (0.2, 0.06), (0.3, 0.08)])
def test_of_two_hundred_answers_the_rate_is_found(errors: float, most: float) -> None:
    rng = np.random.default_rng(1)
    apart = []
    for _ in range(20):
        logits = rng.normal(0, 1, 120)  # judged: out of bag or held out
        right = rng.random(120) < 1 / (1 + np.exp(-np.abs(logits) / 0.15))  # the model's own mistakes
        given = (logits > 0) ^ ~right ^ (rng.random(120) < errors)
        found = model_of(np.where(given, logits, -logits)[None], np.ones((1, 120)), np.zeros(120), 1)
        apart.append(found.wrong.rate - errors)
    assert abs(np.mean(apart)) < most / 2
    assert np.sqrt(np.mean(np.square(apart))) < most


@pytest.mark.parametrize("errors", [0.0, 0.1])
@pytest.mark.parametrize(("common", "own"), [(1.0, 1.1), (1.0, 2.0)])
def test_a_poor_reward_model_does_not_blame_the_annotator(common: float, own: float, errors: float) -> None:
    # A member's difference is the right one, plus errors of all members and of its own: a third or more of the signs are wrong.
    rng = np.random.default_rng(3)
    said = []
    for _ in range(20):
        right = rng.normal(0, 1, 200)
        members = right + common * rng.normal(0, 1, 200) + own * rng.normal(0, 1, (3, 200))
        given = (right > 0) ^ (rng.random(200) < errors)
        unseen = (rng.random((3, 200)) < 0.2) | (rng.random(200) < 0.1)
        said.append(model_of(np.where(given, members, -members), unseen, np.zeros(200), 1))
    inside = [each.wrong.low <= errors + 0.005 and errors <= each.wrong.high for each in said]
    assert np.mean(inside) >= 0.9, [str(each.wrong) for each in said]
    # Fits assume more than is said.
    assert np.mean([each.assumed["0"] - each.wrong.rate for each in said]) > 0.05


def test_of_whom_nothing_is_known_the_prior_is_said() -> None:
    unseen = np.array([[True] * 4, [False] * 4])
    found = model_of(np.zeros((2, 4)), unseen, np.zeros(4), 1)
    assert rates_of(found) == pytest.approx(0.1, abs=0.02)  # the model knows nothing; nobody else could be right
    found = model_of(np.full((1, 300), 9.0), np.ones((1, 300)), np.zeros(300), 2)
    assert rates_of(found) == pytest.approx([0.0, 0.1], abs=0.01)
    assert found.error_rates["0"].low == 0.0
    assert (found.error_rates["1"].answers, found.error_rates["1"].low) == (0, 0.0)


def test_an_annotator_with_swapped_keys_is_inverted_not_ignored() -> None:
    differences = np.concatenate([np.full((1, 300), 9.0), np.full((1, 100), -9.0)], 1)
    found = model_of(differences, np.ones((1, 400)), np.repeat([0, 1], [300, 100]), 2)
    assert found.error_rates["1"].rate > 0.95
    assert found.error_rates["1"].wrong > 0.999
    assert found.wrong.rate == pytest.approx(0.25, abs=0.03)
    assert set(found.suspicions) == {(str(answer), "1") for answer in range(300, 400)}
    assert min(found.suspicions.values()) > 0.9


def test_where_no_member_can_judge_nothing_is_said() -> None:
    assert model_of(np.ones((2, 5)), np.zeros((2, 5)), np.zeros(5), 1) == Estimates()
    trainer = trainer_of(dataclasses.replace(SMALL, bootstrap=False), answers(30, 0))
    report = trainer.fit(20)
    assert (report.wrong, report.error_rates, report.suspicions) == (None, {}, {})
    assert not any(name.startswith("error_rate") for name in report.metrics())


@pytest.mark.slow
def test_the_estimates_are_near_and_the_reward_better_than_without() -> None:
    unseen = some_comparisons(1000, 10, seed=1000)
    right: dict[bool, list[Any]] = {False: [], True: []}
    estimates = []
    for seed in range(3):
        for errors, found in right.items():
            trainer = trainer_of(
                RewardModelSettings(label_noise=None if errors else 0.0, weight_decay=0.01),
                answers(600, seed),
                held_out_share=0.1,
                seed=seed,
            )
            for updates in (200, 60, 60, 60):
                report = trainer.fit(updates)
            found.append(right_about(unseen, trainer.ensemble))
            if errors:
                estimates.append([report.error_rates[name].rate for name in NAMES])
    mean = np.mean(estimates, 0)
    assert np.abs(mean - TRUE).max() < 0.1
    assert (np.diff(mean) > 0).all()
    assert more_right(right[True], right[False])


def test_the_rates_of_a_fit_are_those_the_next_one_uses() -> None:
    gradients = []
    for rates in ({}, {"anna": PRIOR, "bert": PRIOR}, {"anna": 0.4}):
        trainer = trainer_of(SMALL, answers(20, 0, (0.0, 0.5)))
        trainer.annotators = Estimates(assumed=dict[str, float](rates))
        losses = trainer.fit(1).train_loss
        gradients.append(losses)
    assert gradients[0] == gradients[1] != gradients[2]
    noisy = trainer_of(dataclasses.replace(SMALL, label_noise=2 * PRIOR), answers(20, 0, (0.0, 0.5)))
    report = noisy.fit(1)
    assert report.train_loss == pytest.approx(gradients[0], rel=1e-6)
    said = report.metrics()
    assumed = {name: rate for name, rate in said.items() if name.startswith("error_rate_assumed/")}
    assert assumed == dict.fromkeys(("error_rate_assumed/anna", "error_rate_assumed/bert"), PRIOR)
    assert said["error_rate/anna"] != PRIOR


def test_no_rate_in_the_likelihood_is_sure() -> None:
    rates = likelihood_rates(np.array([0.005, 0.99, 0.7], np.float32))
    assert rates.min() == pytest.approx(0.005)
    sure = torch.tensor([200.0, -200.0, 200.0], requires_grad=True)
    log_likelihood_loss(sure, torch.ones(3), 2 * torch.as_tensor(rates)).sum().backward()
    slopes = log_likelihood_slope(sure.detach(), torch.ones(3), 2 * torch.as_tensor(rates))
    assert sure.grad is not None
    assert bool(torch.isfinite(sure.grad).all() and torch.isfinite(slopes).all())


def test_a_reward_model_knows_the_noise_of_its_answers() -> None:
    for settings, noise in ((SMALL, None), (dataclasses.replace(SMALL, label_noise=0.2), 0.2)):
        trainer = trainer_of(settings, answers(60, 0), held_out_share=0.1)
        assert float(trainer.ensemble.label_noise) == 0.0
        trainer.fit(20)
        rates = likelihood_rates(trainer.comparisons.by_annotator(trainer.annotators.assumed, PRIOR))
        expected = float(2 * np.minimum(rates, 1 - rates).mean()) if noise is None else noise
        assert float(trainer.ensemble.label_noise) == pytest.approx(expected, rel=1e-5)


def test_ties_tell_nothing_and_who_does_not_count_is_not_estimated() -> None:
    some = answers(30, 0)
    ties = np.where(np.array(some.annotators) == "cora", 0.5, some.preferences).astype(np.float32)
    trainer = trainer_of(SMALL, held_out_share=0.1)
    trainer.comparisons.apply(Changes(1, Comparisons(some.pairs, ties, some.annotators), (), {"bert": 0.0}))
    assert set(trainer.fit(5).error_rates) == {"anna"}


def test_a_restored_trainer_has_the_rates() -> None:
    some = answers(30, 0)
    trainer, restored = (trainer_of(SMALL, held_out_share=0.1, seed=seed) for seed in (0, 3))
    trainer.comparisons.add(some)
    trainer.fit(5)
    restored.load_state(trainer.state(), Changes(1, some))
    assert restored.annotators == trainer.annotators != Estimates()
    reports: list[Any] = [str(dataclasses.replace(one.fit(5), seconds=0.0)) for one in (trainer, restored)]
    assert reports[0] == reports[1]


def drifting(n: int, start: float, end: float, seed: int) -> Drift:
    """A lone annotator's drift, whose error rate goes from ``start`` to ``end``."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1, n)
    wrong = rng.random(n) < np.linspace(start, end, n)
    return model_of(np.where(wrong, -1, 1)[None] * np.abs(logits), np.ones((1, n)), np.zeros(n), 1).drifts["0"]


def test_a_rise_of_the_error_rate_is_a_drift() -> None:
    found = [drifting(300, 0.0, 0.5, seed) for seed in range(20)]
    assert sum(drift.clear for drift in found) >= 12
    assert np.mean([drift.first.rate for drift in found]) == pytest.approx(0.0, abs=0.08)
    assert np.mean([drift.newest.rate for drift in found]) == pytest.approx(0.5, abs=0.12)
    assert model_of(np.ones((1, 59)), np.ones((1, 59)), np.zeros(59), 1).drifts == {}


def test_of_a_drift_the_rates_are_the_posterior_computed_another_way() -> None:
    rng = np.random.default_rng(3)
    right = rng.uniform(0.01, 0.99, 80)
    drift = annotators._drift(right)
    rates = (np.arange(20) + 0.5) / 20
    prior = 0.9 * (1 - rates) ** 9 / ((1 - rates) ** 9).sum() + 0.1 / 20
    total, first, rose = 0.0, 0.0, 0.0
    for (i, a), (j, b) in itertools.product(enumerate(rates), repeat=2):
        errors = [a + (b - a) * t / 79 for t in range(80)]
        likelihood = math.exp(sum(math.log((1 - e) * s + e * (1 - s)) for e, s in zip(errors, right, strict=True)))
        weight = likelihood * prior[i] * prior[j]
        total, first, rose = total + weight, first + weight * a, rose + weight * (j - i >= 2)
    assert drift.first.rate == pytest.approx(first / total)
    assert drift.rose == pytest.approx(rose / total)


def test_of_two_camps_neither_side_is_turned_round() -> None:
    rng = np.random.default_rng(4)
    logits = np.abs(rng.normal(0, 1, 200))
    for theirs, assumed in ((94, 0.5), (40, 0.85)):
        whose = (rng.permutation(200) < theirs).astype(int)
        found = model_of(np.where(whose == 1, -logits, logits)[None], np.ones((1, 200)), whose, 2)
        assert found.error_rates["1"].says == "inverted"
        assert found.assumed["1"] == 0.5 if assumed == 0.5 else found.assumed["1"] > assumed
        assert found.assumed["0"] < 0.1


def test_no_one_is_accused_by_one_fit() -> None:
    rate = ErrorRate(0.48, 0.36, 0.6, 60, 0.4)
    first = Estimates(wrong=rate, error_rates={"ada": rate, "ben": rate}).following(Estimates())
    assert {each.kind for each in first.error_rates.values()} == {"unknown"}
    assert first.wrong is not None
    assert first.wrong.fits == 1
    second = Estimates(error_rates={"ada": rate, "ben": ErrorRate(0.1, 0.05, 0.15, 90)}).following(first)
    assert [each.kind for each in second.error_rates.values()] == ["guesses", "some"]


@pytest.mark.slow
def test_steady_annotators_seldom_seem_to_drift() -> None:
    seemed = sum(
        drifting(120, rate, rate, seed).clear for seed, rate in itertools.product(range(100), (0.0, 0.1, 0.3, 0.5))
    )
    assert seemed <= 4


def test_rationality_is_found_next_to_errors() -> None:
    rng = np.random.default_rng(0)
    n, rates, betas = 9000, np.array([0.0, 0.1, 0.2]), np.array([0.5, 1.0, 2.0])
    whose = rng.integers(3, size=n)
    differences = rng.normal(0, 3, n)
    truth = rng.random(n) < 1 / (1 + np.exp(-betas[whose] * differences))
    given = truth ^ (rng.random(n) < rates[whose])
    preferred = np.where(given, differences, -differences)[None] * 3.0  # the model is too sure of itself
    found = model_of(preferred, np.ones((1, n)), whose, 4, rationality=True)
    errors = rates_of(found)
    rationalities = np.array([found.rationalities[name] for name in sorted(found.rationalities)])
    assert np.abs(errors[:3] - rates).max() < 0.04
    assert rationalities[:3] / rationalities[1] == pytest.approx(betas, rel=0.4)
    assert errors[3] == pytest.approx(PRIOR)
    assert rationalities[3] == pytest.approx(1.0)  # nothing is known of the fourth


def test_a_fit_scales_the_log_odds_by_each_annotators_rationality() -> None:
    settings = dataclasses.replace(SMALL, annotator_rationality=True, label_noise=0.0)
    trainer = trainer_of(settings, answers(60, 0), held_out_share=0.1)
    report = trainer.fit(20)
    assert set(report.rationalities) == set(report.error_rates) == set(NAMES)
    trainer.annotators = Estimates(rationalities={"anna": 2.0, "bert": 0.5, "cora": 1.0})
    of_annotators = trainer._of_annotators()[1]
    assert isinstance(of_annotators, torch.Tensor)
    assert of_annotators[:4].tolist() == [2.0, 0.5, 1.0, 2.0]
    restored = trainer_of(settings, held_out_share=0.1)
    restored.load_state(trainer.state(), Changes(60, answers(60, 0)))
    assert restored.annotators.rationalities == trainer.annotators.rationalities
