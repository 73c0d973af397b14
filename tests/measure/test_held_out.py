"""Scores of predicted answers: closed forms, second computations, ties and soft labels."""

import math

import numpy as np
import pytest
from scipy import stats

from rlhf_ray.measure.held_out import (
    below_chance,
    calibration_error,
    chance_calibration_error,
    disagreement_scores,
    hits,
    log_likelihoods,
    probabilities_of,
    reliability,
    scores,
    scores_by,
)


def test_scores_are_the_formulas() -> None:
    found = scores(np.array([0.9, 0.2, 0.6, 0.5]), np.array([1.0, 1.0, 0.0, 0.0]))
    assert (found.answers, found.decided) == (4, 4)
    assert found.accuracy.mean == pytest.approx((1 + 0 + 0 + 0.5) / 4)  # undecided is half right
    assert found.brier.mean == pytest.approx((0.1**2 + 0.8**2 + 0.6**2 + 0.5**2) / 4)
    assert found.log_likelihood.mean == pytest.approx(
        (math.log(0.9) + math.log(0.2) + math.log(0.4) + math.log(0.5)) / 4
    )


def test_ties_count_for_both_sides_and_not_for_accuracy() -> None:
    found = scores(np.array([0.5, 0.8]), np.array([0.5, 0.5]))
    assert found.decided == 0
    assert math.isnan(found.accuracy.mean)
    assert found.brier.mean == pytest.approx(0.3**2 / 2)
    assert log_likelihoods(np.array([0.5]), np.array([0.5]))[0] == pytest.approx(-math.log(2))
    # A model that is sure where all answers are ties is off by its confidence less one half.
    assert calibration_error(np.array([0.8, 0.8]), np.array([0.5, 0.5])) == pytest.approx(0.3)


def test_soft_labels_are_as_many_hard_ones() -> None:
    p = np.full(10, 0.7)
    soft, hard = np.full(10, 0.8), np.array([1.0] * 8 + [0.0] * 2)
    assert log_likelihoods(p, soft).mean() == pytest.approx(log_likelihoods(p, hard).mean())
    assert calibration_error(p, soft) == pytest.approx(calibration_error(p, hard)) == pytest.approx(0.1)
    assert hits(p, soft).mean() == 1.0


def test_a_perfectly_calibrated_model_has_no_calibration_error_but_chances() -> None:
    rng = np.random.default_rng(0)
    p = rng.random(200_000)
    answers = (rng.random(len(p)) < p).astype(np.float32)
    assert calibration_error(p, answers) < 0.005
    few = p[:40], answers[:40]
    assert chance_calibration_error(p[:40]) == pytest.approx(
        np.mean([calibration_error(p[:40], rng.random(40) < p[:40]) for _ in range(2000)]), rel=0.05
    )
    assert scores(*few).chance > 0.05  # so few answers say little


@pytest.mark.parametrize(("said", "true", "error"), [(0.95, 0.75, 0.2), (0.6, 0.9, 0.3), (0.1, 0.3, 0.2)])
def test_a_known_miscalibration_is_its_size(said: float, true: float, error: float) -> None:
    answers = np.arange(1000) < 1000 * true
    assert calibration_error(np.full(1000, said), answers) == pytest.approx(error)


def test_calibration_does_not_depend_on_sides() -> None:
    rng = np.random.default_rng(1)
    p, y = rng.random(300), rng.choice([0.0, 0.5, 1.0], 300)
    swapped = np.where(rng.random(300) < 0.5, 1, 0)
    turned = np.where(swapped, 1 - p, p), np.where(swapped, 1 - y, y)
    assert calibration_error(*turned) == pytest.approx(calibration_error(p, y))
    assert scores(*turned).brier.mean == pytest.approx(scores(p, y).brier.mean)


def test_the_reliability_curve_holds_every_answer_once() -> None:
    p = np.array([0.5, 0.7, 0.3, 1.0, 0.0, 0.95])
    y = np.array([1.0, 1.0, 1.0, 1.0, 0.0, 0.0])
    curve = reliability(p, y)
    assert [of.answers for of in curve] == [1, 0, 2, 0, 3]
    assert curve[0].observed.mean == 0.5  # no side is preferred
    assert math.isnan(curve[1].predicted)
    assert (curve[2].predicted, curve[2].observed.mean) == (pytest.approx(0.7), pytest.approx(0.5))
    assert curve[4].observed.mean == pytest.approx(2 / 3)
    total = sum(of.answers * abs(of.observed.mean - of.predicted) for of in curve if of.answers)
    assert total / len(p) == pytest.approx(calibration_error(p, y))


def test_groups_are_scored_alone() -> None:
    p, y = np.array([0.9, 0.9, 0.1]), np.array([1.0, 0.0, 1.0])
    found = scores_by(["ada", "ben", "ben"], p, y)
    assert found["ada"] == scores(p[:1], y[:1])
    assert found["ben"] == scores(p[1:], y[1:])


def test_disagreement_is_compared_with_the_error() -> None:
    rng = np.random.default_rng(2)
    spread = rng.uniform(0.01, 0.4, 400)
    members = 0.5 + spread * np.array([[1.0], [-1.0]])  # their mean is 0.5
    right = np.clip(0.5 + spread, 0, 1)  # the error is the spread squared
    found = disagreement_scores(members, right)
    assert found is not None
    assert found.correlation.mean == pytest.approx(1.0)
    assert found.agreeing < found.disagreeing
    none = disagreement_scores(members, rng.permutation(right))
    assert none is not None
    assert none.correlation.holds_zero
    assert disagreement_scores(members[:1], right) is None


def test_probabilities_are_the_likelihoods() -> None:
    import torch

    from rlhf_ray.reward.likelihood import log_likelihood_loss

    differences, y = np.array([-40.0, -1.0, 0.0, 3.0, 800.0]), np.array([1.0, 0.0, 0.5, 1.0, 1.0])
    p = probabilities_of(differences, 0.1)
    loss = log_likelihood_loss(torch.tensor(differences), torch.tensor(y), 0.1).numpy()
    assert -log_likelihoods(p, y) == pytest.approx(loss)


@pytest.mark.parametrize("bad", [([0.5], [0.5, 0.5]), ([1.5], [1.0]), ([math.nan], [1.0])])
def test_what_is_no_probability_is_refused(bad: tuple[list[float], list[float]]) -> None:
    with pytest.raises(ValueError, match="probabilities"):
        scores(*map(np.array, bad))


def test_no_answers_are_no_scores() -> None:
    found = scores(np.zeros(0), np.zeros(0))
    assert found.answers == 0
    assert math.isnan(found.brier.mean)
    assert math.isnan(found.calibration_error)
    assert math.isnan(found.chance)


@pytest.mark.parametrize("n", [8, 10, 40, 200])
def test_worse_than_guessing_is_rare_by_chance(n: int) -> None:
    """Against the binomial distribution: the largest count that is worse than guessing has a probability of 1 to 6 %."""
    found = [right for right in range(n + 1) if below_chance(right / n, n)]
    assert found == list(range(len(found)))
    assert 0.01 < stats.binom.cdf(found[-1], n, 0.5) < 0.06
    assert stats.binom.cdf(found[-1], n, 0.8) < 1e-4
    assert not below_chance(math.nan, n)
    assert not below_chance(0.0, 7)
