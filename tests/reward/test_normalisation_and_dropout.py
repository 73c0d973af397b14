"""Dropout, batch normalisation, normalised inputs and the ensemble's deviation, in fits and in predictions."""

import dataclasses
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.reward import RewardEnsemble, RewardTrainer
from rlhf_ray.reward.functions import EnsembleReward, load_reward
from rlhf_ray.reward.networks.mlp import DECAY, NormalisedInputs
from rlhf_ray.reward.predictor import Predictor
from rlhf_ray.settings import RewardModelSettings, SettingError
from tests.made_up import IMAGES, VECTORS, some_comparisons, some_fragments
from tests.reward.fits import trainer_of


def _trainer(
    comparisons: Comparisons | None = None, seed: int = 1, observations: gym.spaces.Box = VECTORS, **settings: Any
) -> RewardTrainer:
    made = RewardModelSettings(hidden=(16,), **settings)
    return trainer_of(made, comparisons, observations=observations, held_out_share=0.2, seed=seed)


def _steps(n: int = 6) -> tuple[Any, ...]:
    clips = some_fragments(n, seed=5)
    return clips.observations[:, 0], clips.actions[:, 0], clips.observations[:, 1], clips.terminated


@pytest.mark.parametrize("space", [VECTORS, IMAGES], ids=["vectors", "images"])
def test_the_two_sides_of_a_pair_have_masks_of_their_own(space: gym.spaces.Box) -> None:
    """With one mask for both, a fragment compared with itself has a return difference of 0, and dropout teaches nothing."""
    trainer = _trainer(dropout=0.5, observations=space)
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
    trainer = _trainer(some_comparisons(20), network=network, dropout=0.5, batch_norm=True)
    trainer.fit(5)
    clips = some_fragments(6, seed=3)
    together = trainer.ensemble.fragment_returns(clips)
    trainer.ensemble.train()  # as RLlib may do to a module
    alone = np.concatenate([trainer.ensemble.fragment_returns(clips[i : i + 1]) for i in range(6)], 1)
    np.testing.assert_allclose(alone, together, rtol=1e-4, atol=1e-5)


def test_batch_norm_sees_left_and_right_in_one_forward() -> None:
    trainer = _trainer(
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
        trainer = _trainer(network=network, normalize_inputs="running")
        scaled = _scaled(comparisons, scale, shift)
        trainer.comparisons.add(scaled)
        trainer.fit(20)
        returns.append(trainer.ensemble.fragment_returns(scaled.pairs.left))
    # Up to a constant, which no comparison shows: its gradient is rounding errors.
    np.testing.assert_allclose(*(of - of[:, :1] for of in returns), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("how", ["running", "ema", "symlog"])
def test_input_statistics_are_part_of_a_version_and_a_reload_changes_no_reward(tmp_path: Path, how: Any) -> None:
    trainer = _trainer(normalize_inputs=how, use_next_state=True)
    comparisons = _scaled(some_comparisons(30), 5.0, 3.0)
    trainer.comparisons.add(comparisons)
    trainer.fit(3)
    trainer.comparisons.add(_scaled(some_comparisons(30, seed=1), 1.0, -3.0))
    trainer.fit(3)
    rewards = trainer.ensemble.predict(*_steps())
    trainer.ensemble.save(tmp_path)
    for again in (RewardEnsemble.load(tmp_path), _trainer(normalize_inputs=how, use_next_state=True).ensemble):
        again.load_state(trainer.ensemble.state())
        assert np.array_equal(again.predict(*_steps()), rewards)
    assert np.array_equal(RewardEnsemble.load(tmp_path).predict(*_steps()), rewards)
    np.testing.assert_allclose(Predictor(trainer.ensemble).predict(*_steps()), rewards, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(load_reward(tmp_path)(*_steps()), rewards, rtol=1e-5)
    assert np.array_equal(trainer.ensemble.predict(*_steps()), rewards)  # predictions change no statistics


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
    trainer = _trainer(some_comparisons(30), deviation_weight=weight)
    trainer.fit(5)
    ensemble = trainer.ensemble
    members = ensemble.member_rewards(*(torch.as_tensor(of) for of in _steps())).numpy()
    expected = members.mean(0) + weight * members.std(0)
    ensemble.save(tmp_path)
    reward = EnsembleReward(ensemble)
    paths = {
        "predict": ensemble.predict(*_steps()),
        "predictor": Predictor(ensemble).predict(*_steps()),
        "loaded": RewardEnsemble.load(tmp_path).predict(*_steps()),
        "function": reward(*_steps()),
        "gradients": reward.forward(*(torch.as_tensor(np.asarray(of, np.float32)) for of in _steps())).numpy(),
    }
    for name, rewards in paths.items():
        np.testing.assert_allclose(rewards, expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_settings_out_of_range_are_refused() -> None:
    for change in (
        {"dropout": 1.0},
        {"normalize_inputs": "batch"},
        {"shaping_discount": 0.0},
        {"deviation_weight": np.nan},
    ):
        with pytest.raises(SettingError, match=f"reward_model.{next(iter(change))} is"):
            RewardModelSettings(**change)  # type: ignore[arg-type]
