"""What regularises a fit: L2, early stopping, clipped log odds, dropout, batch norm, normalised inputs, deviation."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Changes, Comparisons
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.functions import EnsembleReward, load_reward
from rlhf_ray.reward.methods import LARGEST, SMALLEST, STEPS, AdaptiveL2, EarlyStopping, PassLosses, WeightAverage
from rlhf_ray.reward.networks.mlp import DECAY, NormalisedInputs
from rlhf_ray.reward.predictor import Predictor
from rlhf_ray.settings import RewardModelSettings
from tests.made_up import CHOICES, FORCES, IMAGES, VECTORS, some_comparisons, some_fragments
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
    trainer = _trainer(dataclasses.replace(WIDE, network="mlp", largest_log_odds=1e-6))
    before = trainer.ensemble.state()
    trainer.fit(5)
    after = trainer.ensemble.state()
    assert all(np.array_equal(before[name], after[name]) for name in before if name.startswith("networks"))


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


def _normalising(
    comparisons: Comparisons | None = None, seed: int = 1, observations: gym.spaces.Box = VECTORS, **settings: Any
) -> RewardTrainer:
    made = RewardModelSettings(hidden=(16,), **settings)
    return trainer_of(made, comparisons, observations=observations, held_out_share=0.2, seed=seed)


def _single_steps(n: int = 6) -> tuple[Any, ...]:
    clips = some_fragments(n, seed=5)
    return clips.observations[:, 0], clips.actions[:, 0], clips.observations[:, 1], clips.terminated


@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
def test_the_two_sides_of_a_pair_have_masks_of_their_own(space: gym.spaces.Box) -> None:
    """With one mask for both, a fragment compared with itself has a return difference of 0, and dropout teaches nothing."""
    trainer = _normalising(dropout=0.5, observations=space, network="cnn" if space is IMAGES else "mlp")
    comparisons = some_comparisons(4, observations=space)
    same = dataclasses.replace(comparisons, pairs=dataclasses.replace(comparisons.pairs, right=comparisons.pairs.left))
    trainer.comparisons.add(same)
    data = trainer.comparisons.stacked
    rows = torch.arange(4)
    with torch.no_grad(), trainer.ensemble.training_mode(torch.Generator().manual_seed(0)):
        differences = trainer._differences(trainer._rewards(data.inputs, rows))
    assert (differences.abs() > 1e-6).all()
    with torch.no_grad():
        assert (trainer._differences(trainer._rewards(data.inputs, rows)) == 0).all()


@pytest.mark.parametrize("network", ["auto", "gru", "transformer"])
def test_predictions_draw_no_masks_and_know_no_batch(network: str) -> None:
    trainer = _normalising(some_comparisons(20), network=network, dropout=0.5, batch_norm=True)
    trainer.fit(5)
    clips = some_fragments(6, seed=3)
    together = trainer.ensemble.fragment_returns(clips)
    trainer.ensemble.train()  # as RLlib may do to a module
    alone = np.concatenate([trainer.ensemble.fragment_returns(clips[i : i + 1]) for i in range(6)], 1)
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-5)


def test_batch_norm_sees_left_and_right_in_one_forward() -> None:
    trainer = _normalising(
        some_comparisons(30), batch_norm=True, ensemble_size=1, use_action=False, normalize_inputs="none"
    )
    data = trainer.comparisons.stacked
    rows, linear = torch.arange(30), trainer.ensemble.networks.head.layers[0]
    hidden = data.inputs["features"].flatten(0, 2) @ linear.weight[0] + linear.bias[0]
    with torch.no_grad(), trainer.ensemble.training_mode(torch.Generator()):
        trainer._rewards(data.inputs, rows)
    norm = trainer.ensemble.networks.head.layers[1].norm
    torch.testing.assert_close(norm.running_mean, 0.1 * hidden.mean(0))
    torch.testing.assert_close(norm.running_var, 0.9 + 0.1 * hidden.var(0))


def _scaled(comparisons: Comparisons, scale: float, shift: float) -> Comparisons:
    sides = {
        name: dataclasses.replace(side, observations=(side.observations * scale + shift).astype(np.float32))
        for name, side in (("left", comparisons.pairs.left), ("right", comparisons.pairs.right))
    }
    return dataclasses.replace(comparisons, pairs=dataclasses.replace(comparisons.pairs, **sides))


@pytest.mark.parametrize("network", ["mlp", "gru", "shaped"])
def test_with_normalised_inputs_the_scale_of_observations_does_not_matter(network: str) -> None:
    returns, comparisons = [], some_comparisons(60)
    for scale, shift in ((1.0, 0.0), (64.0, -512.0)):
        trainer = _normalising(network=network, normalize_inputs="running")
        scaled = _scaled(comparisons, scale, shift)
        trainer.comparisons.add(scaled)
        trainer.fit(20)
        returns.append(trainer.ensemble.fragment_returns(scaled.pairs.left))
    # Up to a constant, which no comparison shows: its gradient is rounding errors.
    np.testing.assert_allclose(*(of - of[:, :1] for of in returns), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("how", ["running", "ema", "symlog"])
def test_input_statistics_are_part_of_a_version_and_a_reload_changes_no_reward(tmp_path: Path, how: Any) -> None:
    trainer = _normalising(normalize_inputs=how, use_next_state=True)
    comparisons = _scaled(some_comparisons(30), 5.0, 3.0)
    trainer.comparisons.add(comparisons)
    trainer.fit(3)
    trainer.comparisons.add(_scaled(some_comparisons(30, seed=1), 1.0, -3.0))
    trainer.fit(3)
    rewards = trainer.ensemble.predict(*_single_steps())
    trainer.ensemble.save(tmp_path)
    for again in (RewardEnsemble.load(tmp_path), _normalising(normalize_inputs=how, use_next_state=True).ensemble):
        again.load_state(trainer.ensemble.state())
        assert np.array_equal(again.predict(*_single_steps()), rewards)
    assert np.array_equal(RewardEnsemble.load(tmp_path).predict(*_single_steps()), rewards)
    np.testing.assert_allclose(Predictor(trainer.ensemble).predict(*_single_steps()), rewards, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(load_reward(tmp_path)(*_single_steps()), rewards, rtol=1e-5)
    assert np.array_equal(trainer.ensemble.predict(*_single_steps()), rewards)  # predictions change no statistics


def test_running_statistics_are_those_of_all_steps_and_ema_follows_them_slowly() -> None:
    torch.manual_seed(0)
    first, second = torch.randn(50, 4, 3) * 2 + 1, torch.randn(80, 4, 3) + 5
    running, ema = NormalisedInputs(2, "running"), NormalisedInputs(2, "ema")
    for features in (first, second):
        running.observe(features)
        ema.observe(features)
    flat = [of[..., :2].flatten(0, 1) for of in (first, second)]
    torch.testing.assert_close(running.mean, flat[1].mean(0))
    torch.testing.assert_close(running.variance, flat[1].var(0, correction=0))
    # The mixture's moments, from its first two.
    means = [of.mean(0) for of in flat]
    squares = [(of**2).mean(0) for of in flat]
    mean, square = (DECAY * a + (1 - DECAY) * b for a, b in (means, squares))
    torch.testing.assert_close(ema.mean, mean)
    torch.testing.assert_close(ema.variance, square - mean**2, rtol=1e-4, atol=1e-4)
    out = running(second)
    torch.testing.assert_close(out[..., :2].flatten(0, 1).mean(0), torch.zeros(2), atol=1e-5, rtol=0)
    assert torch.equal(out[..., 2], second[..., 2])
    constant = NormalisedInputs(1, "running")
    constant.observe(torch.full((5, 1), 3.0))
    assert constant(torch.tensor([[3.0], [4.0], [99.0]])).flatten().tolist() == [0.0, 1.0, 10.0]


def test_symlog_keeps_the_differences_of_small_values_beside_rare_large_ones() -> None:
    torch.manual_seed(0)
    features = torch.cat([torch.randn(950, 1) * 0.1, torch.randn(50, 1) * 100])  # upright poles, and some that spin
    gaps = {}
    for how in ("running", "symlog"):
        inputs = NormalisedInputs(1, how)  # type: ignore[arg-type]
        inputs.observe(features)
        low, high = inputs(torch.tensor([[-0.1], [0.1]])).flatten().tolist()
        gaps[how] = high - low
    assert gaps["symlog"] > 10 * gaps["running"]
    seen = np.sign(features.numpy()) * np.log(1 + np.abs(features.numpy()))
    normalised = (np.log(1.1) - seen.mean()) / seen.std()
    assert inputs(torch.tensor([[0.1]])).item() == pytest.approx(normalised, rel=1e-4)


@pytest.mark.parametrize("weight", [-1.0, 0.0, 0.7])
def test_the_deviations_weight_counts_on_every_path(tmp_path: Path, weight: float) -> None:
    trainer = _normalising(some_comparisons(30), deviation_weight=weight)
    trainer.fit(5)
    ensemble = trainer.ensemble
    members = ensemble.member_rewards(*(torch.as_tensor(of) for of in _single_steps())).numpy()
    expected = members.mean(0) + weight * members.std(0)
    ensemble.save(tmp_path)
    reward = EnsembleReward(ensemble)
    paths = {
        "predict": ensemble.predict(*_single_steps()),
        "predictor": Predictor(ensemble).predict(*_single_steps()),
        "loaded": RewardEnsemble.load(tmp_path).predict(*_single_steps()),
        "function": reward(*_single_steps()),
        "gradients": reward.forward(*(torch.as_tensor(np.asarray(of, np.float32)) for of in _single_steps())).numpy(),
    }
    for name, rewards in paths.items():
        np.testing.assert_allclose(rewards, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize(
    ("observations", "actions", "settings", "decay"),
    [
        (VECTORS, FORCES, {}, 5.0),
        (VECTORS, FORCES, {"dropout": 0.1}, 5.0),  # fitted by autograd
        (IMAGES, CHOICES, {}, 5.0),
        (IMAGES, CHOICES, {"network": "pooled_cnn"}, 0.01),
        (VECTORS, FORCES, {"network": "gru"}, 0.01),
        (VECTORS, FORCES, {"weight_decay": 0.3}, 0.3),
    ],
)
def test_the_weight_decay_is_that_of_the_settings_and_by_default_of_the_kind_of_network(
    observations: Any, actions: Any, settings: dict[str, Any], decay: float
) -> None:
    of = RewardModelSettings(hidden=(8,), **settings)
    trainer = RewardTrainer(of, observations, actions, held_out_share=0.0, seed=0)
    assert trainer.weight_decay == decay
    assert {group["weight_decay"] for group in trainer.optimizer.param_groups} == {decay}
