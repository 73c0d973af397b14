"""Adaptive L2, early stopping, clipped log odds: what they do to a fit."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.methods import LARGEST, SMALLEST, STEPS, AdaptiveL2, EarlyStopping, PassLosses, WeightAverage
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import some_comparisons
from tests.reward.fits import same, trainer_of

WIDE = RewardModelSettings(normalize_inputs="none", hidden=(64,), batch_size=16, ensemble_size=2, weight_decay=0.0)


def _noisy(n: int = 150, seed: int = 0) -> Comparisons:
    """Comparisons of which a third have random answers: a network that fits them all has learned noise."""
    right = some_comparisons(n, 5, seed=seed)
    rng = np.random.default_rng(seed)
    answers = np.where(rng.random(n) < 1 / 3, rng.integers(2, size=n), right.preferences)
    return Comparisons(right.pairs, answers.astype(np.float32))


def _trainer(settings: RewardModelSettings, held_out_share: float = 0.3) -> RewardTrainer:
    return trainer_of(settings, _noisy(), held_out_share=held_out_share)


def _passes(trainer: RewardTrainer, updates: int) -> list[PassLosses]:
    passes: list[PassLosses] = []
    trainer.fit(updates, after_pass=passes.append)
    return passes


def _losses(train: float, held_out: float) -> PassLosses:
    return PassLosses(1, train, held_out, 1.0, 1.0)


def test_the_coefficient_follows_the_ratio_of_losses_per_comparison() -> None:
    l2 = AdaptiveL2(1e-3)
    l2.adapt(_losses(0.2, 0.4), 20)
    assert l2.coefficient == pytest.approx(1.5e-3)
    l2.adapt(_losses(0.4, 0.4), 20)
    l2.adapt(_losses(0.4, 0.4), 20)
    assert l2.coefficient == pytest.approx(1e-3 / 1.5)
    for losses, held_out in ((_losses(0.4, 0.52), 20), (_losses(0.2, 0.9), 9), (_losses(math.nan, 0.9), 20)):
        before = l2.coefficient
        l2.adapt(losses, held_out)
        assert l2.coefficient == before
    for _ in range(100):
        l2.adapt(_losses(0.4, 0.1), 20)
    assert l2.coefficient == SMALLEST  # not 0, from which no factor leads back
    for _ in range(100):
        l2.adapt(_losses(0.1, 0.9), 20)
    assert l2.coefficient == LARGEST


def test_the_penalty_is_the_gradient_of_the_sum_of_squares() -> None:
    layer = torch.nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    before = layer.weight.grad.clone()  # type: ignore[union-attr]
    AdaptiveL2(0.25).add_gradient(layer.parameters())
    weight = layer.weight.detach().clone().requires_grad_()
    (0.25 * weight.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert torch.allclose(layer.weight.grad - before, weight.grad)  # type: ignore[operator, arg-type]


@pytest.mark.slow
def test_adaptive_l2_brings_the_ratio_into_its_interval_whatever_the_sizes_of_the_two_sets() -> None:
    """imitation compares sums over sets of different sizes: its ratio is far below 1, and its coefficient only ever falls."""
    plain, adapted = (_trainer(dataclasses.replace(WIDE, adaptive_l2=on, label_noise=0.0)) for on in (False, True))
    without, passes = _passes(plain, 1200)[-1], _passes(adapted, 1200)
    late = passes[-40:]
    ratio = float(np.mean([one.held_out_loss / one.train_loss for one in late]))
    assert without.held_out_loss > 2 * without.train_loss  # overfitted
    assert 1.0 < ratio < 1.7
    assert np.mean([one.held_out_loss for one in late]) < without.held_out_loss
    assert max(one.l2 for one in passes) > 1e-4
    assert adapted.state()["l2"] == adapted.l2.coefficient != 1e-4  # type: ignore[union-attr]


def test_early_stopping_ends_the_fit_and_goes_back_to_the_best_weights() -> None:
    trainer = _trainer(dataclasses.replace(WIDE, early_stopping=3))
    passes = _passes(trainer, 1200)
    best = min(range(len(passes)), key=lambda i: passes[i].held_out_loss)
    assert len(passes) == best + 4
    assert passes[-1].gradient_steps < 1200
    trained = trainer.fit(1200)
    assert trained.held_out_loss == pytest.approx(min(passes[best].held_out_loss, trained.held_out_loss), rel=1e-5)
    assert trained.gradient_steps < 1200


def test_early_stopping_waits_for_enough_held_out_comparisons() -> None:
    trainer = _trainer(dataclasses.replace(WIDE, early_stopping=1), held_out_share=0.0)
    assert trainer.fit(60).gradient_steps == 60
    stopping = EarlyStopping(torch.nn.Linear(1, 1), 1)
    assert not any(stopping.stop(_losses(0.1, loss), 9) for loss in (0.1, 0.2, 0.3))


def test_a_fit_that_is_watched_takes_the_same_steps() -> None:
    watched, other = _trainer(WIDE), _trainer(WIDE)
    passes = _passes(watched, 50)
    other.fit(50)
    assert same(watched, other)
    train = int((~watched.comparisons.stacked.held_out).sum())  # type: ignore[union-attr]
    per_pass = math.ceil(train / 16)
    assert [one.gradient_steps for one in passes] == [*range(0, 50, per_pass), 50]


def test_beyond_the_largest_log_odds_a_comparison_has_no_gradient() -> None:
    trainer = _trainer(dataclasses.replace(WIDE, largest_log_odds=1e-6))
    before = trainer.ensemble.state()
    trainer.fit(5)
    after = trainer.ensemble.state()
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("networks"))


@pytest.mark.parametrize(
    ("setting", "value", "said"),
    [
        ("largest_log_odds", 0.0, r"largest_log_odds is 0\.0; it must be above 0"),
        ("early_stopping", 0, r"early_stopping is 0; it must be 1 or more"),
    ],
)
def test_impossible_values_are_refused(setting: str, value: Any, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        RewardModelSettings(**{setting: value})


def test_the_coefficient_survives_a_restart() -> None:
    settings = dataclasses.replace(WIDE, adaptive_l2=True)
    trainer = _trainer(settings)
    trainer.fit(100)
    restored = trainer_of(settings, held_out_share=0.3)
    restored.load_state(trainer.state(), Changes(1, _noisy()))
    trainer.fit(30)
    restored.fit(30)
    assert same(trainer, restored)


def test_the_average_is_the_closed_form() -> None:
    weights = torch.zeros(2)
    average = WeightAverage([weights])
    seen = []
    for step in range(3 * STEPS):
        weights.copy_(torch.tensor([float(step), float(step % 7)]))
        average.add()
        seen.append(weights.clone().numpy())
        if step == 9:
            average.end()
            assert weights.numpy() == pytest.approx(np.mean(seen, 0))  # the first count the same
            average.begin()
            assert weights.numpy() == pytest.approx(seen[-1])
    expected = np.mean(seen[:STEPS], 0)
    for value in seen[STEPS:]:
        expected = expected + (value - expected) / STEPS
    average.end()
    assert weights.numpy() == pytest.approx(expected, rel=1e-5)


def test_fits_go_on_from_the_weights_not_from_their_average() -> None:
    some = some_comparisons(30, 5)
    settings = RewardModelSettings(hidden=(8,), label_noise=0.0)
    whole, halves = (trainer_of(settings, some, held_out_share=0.1) for _ in range(2))
    whole.fit(40)
    halves.fit(20)
    halves.fit(20)
    one, other = (trainer._average.state()["last"]["0"] for trainer in (whole, halves))
    assert one == pytest.approx(other, abs=1e-6)
