"""Fits to recorded rewards: what is learned, on which steps; and adversarial training against visualisations."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.functions import EnsembleReward
from rlhf_ray.reward.supervised import fit_to_rewards
from rlhf_ray.reward.supervised.fitter import check_steps
from rlhf_ray.settings import SUPERVISED_MODEL, SupervisedSettings

VECTORS, CHOICES = gym.spaces.Box(-4, 4, (6,), np.float32), gym.spaces.Discrete(3)
MODEL = replace(SUPERVISED_MODEL, hidden=(32,))


def steps_of(n=2000, seed=0, size=1.0, share=0.2) -> Transitions:
    """Steps that earn ``size`` where the next state's first feature is among the highest ``share``, else nothing."""
    rng = np.random.default_rng(seed)
    states = rng.normal(size=(2, n, 6)).astype(np.float32)
    rewarded = states[1, :, 0] > np.quantile(states[1, :, 0], 1 - share)
    states[1, rewarded, 0] += 1.0
    return Transitions(
        states[0],
        rng.integers(0, 3, n),
        states[1],
        np.zeros(n, bool),
        size * rewarded,
        np.arange(n) // 20,
        np.arange(n) % 20,
    )


def fit(steps, model=MODEL, seed=0, **settings):
    return fit_to_rewards(steps, VECTORS, CHOICES, model, SupervisedSettings(**settings), seed=seed)


@pytest.mark.parametrize("objective", ["regression", "huber", "classification", "two_part"])
def test_each_objective_learns_the_reward_and_its_model_is_an_ordinary_one(objective, tmp_path):
    size = 300.0
    steps = steps_of(size=size)
    reward, report = fit(
        steps, model=replace(MODEL, use_state=False), objective=objective, epochs=8, learning_rate=1e-2
    )
    assert report.learned
    assert report.balanced_auc > 0.97
    unit = 1.0 if objective == "classification" else size
    nearest = {level.low: round(level.predicted / unit) * unit for level in report.levels}
    assert nearest == {0.0: 0.0, unit: unit}  # each level is told nearer to itself than to the other
    reward.save(tmp_path / "reward")
    again = EnsembleReward(RewardEnsemble.load(tmp_path / "reward"))
    given = (steps.observations, steps.actions, steps.next_observations, steps.terminated)
    assert np.allclose(again.of(steps), reward.predict(*given), atol=1e-3 * unit)
    assert again.inputs == {"action", "next_state"}
    assert again.layers()
    assert not np.allclose(again.fresh(1).of(steps), again.of(steps))


def test_the_same_seed_gives_the_same_model_and_the_split_is_by_episode():
    steps = steps_of(400)
    first, report = fit(steps, epochs=2)
    again, _ = fit(steps, epochs=2)
    other, _ = fit(steps, epochs=2, seed=1)
    assert all(np.array_equal(first.state()[name], of) for name, of in again.state().items())
    assert any(not np.array_equal(first.state()[name], of) for name, of in other.state().items())
    assert (report.train_episodes, report.test_episodes) == (16, 4)
    assert (report.train_steps, report.test_steps) == (320, 80)


@pytest.mark.parametrize("balance", ["sampler", "inverse_frequency", "drop_zeros"])
def test_a_balance_changes_the_training_part_only(balance):
    steps = steps_of(400, share=0.05)
    _, plain = fit(steps, epochs=1)
    _, report = fit(steps, epochs=1, balance=balance)
    for name in ("test_steps", "test_nonzero", "train_steps", "constant_error", "balanced_constant_error"):
        assert getattr(report, name) == getattr(plain, name), name
    assert [(of.low, of.test) for of in report.levels] == [(of.low, of.test) for of in plain.levels]
    assert (report.trained_steps < plain.trained_steps) == (balance == "drop_zeros")


def test_rare_rewards_need_a_balance_and_a_small_error_does_not_pass():
    steps = steps_of(4000, share=0.01)
    model = replace(MODEL, use_state=False, use_action=False)
    _, plain = fit(steps, model, epochs=1)
    assert plain.test_error < 0.02
    assert not plain.learned
    _, balanced = fit(steps, model, epochs=10, balance="sampler", learning_rate=5e-3)
    assert balanced.learned
    assert balanced.balanced_auc > 0.95


def test_constant_rewards_are_reported_without_nan_in_the_json():
    _, report = fit(replace(steps_of(200), rewards=np.zeros(200)), epochs=1)
    assert not report.learned
    values = report.to_json()
    assert values["balanced_auc"] is None
    assert values["test_error"] >= 0


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"rewards": np.where(np.arange(400) == 3, np.nan, 0.0)}, "1 of 400 rewards that are NaN"),
        ({"observations": np.full((400, 6), np.nan, np.float32)}, "observations that are NaN"),
        ({"actions": np.full(400, 3)}, "actions from 3 to 3; the environment's are 0 to 2"),
        ({"episodes": np.zeros(400, int)}, "a single episode"),
        ({"observations": np.zeros((400, 5), np.float32)}, r"shape \(5,\)"),
    ],
)
def test_unfit_data_is_refused_in_one_line(change, says):
    with pytest.raises(SettingError, match=says) as refused:
        fit(steps_of(400).with_(**change), epochs=1)
    assert "\n" not in str(refused.value)


def test_a_balance_of_one_kind_of_reward_is_refused():
    with pytest.raises(SettingError, match="every training reward is zero"):
        fit(replace(steps_of(200), rewards=np.zeros(200)), balance="sampler")


IMAGES, TWO = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8), gym.spaces.Discrete(2)
POOLED = replace(SUPERVISED_MODEL, network="pooled_cnn", convolutions=(6, 6), use_state=False, use_action=False)


def pictures_of(n=400, seed=0) -> Transitions:
    """Dim images, half of them with a bright block of 4 x 4 pixels, which earns 1."""
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 60, (n, 16, 16, 1), dtype=np.uint8)
    rewarded = rng.random(n) < 0.5
    for at, (row, column) in zip(np.flatnonzero(rewarded), rng.integers(0, 12, (int(rewarded.sum()), 2)), strict=True):
        images[at, row : row + 4, column : column + 4] = 250
    return Transitions(
        images, np.zeros(n, int), images, np.zeros(n, bool), rewarded * 1.0, np.arange(n) // 10, np.arange(n) % 10
    )


def ascend(reward, seed) -> Transitions:
    """Climb the reward's gradient in pixels from noise."""
    function = EnsembleReward(reward)
    rng = np.random.default_rng(seed)
    pixels = torch.as_tensor(255 * rng.random((4, 16, 16, 1)), dtype=torch.float32).requires_grad_()
    for _ in range(12):
        score = function.forward(pixels, torch.zeros(4, 2), pixels, torch.zeros(4)).sum()
        (slope,) = torch.autograd.grad(score, pixels)
        pixels = (pixels + 40 * slope.sign()).clamp(0, 255).detach().requires_grad_()
    images = pixels.detach().numpy().round().astype(np.uint8)
    return Transitions(images, np.zeros(4, int), images, np.zeros(4, bool), np.zeros(4), np.arange(4), np.zeros(4, int))


def fit_in_rounds(visualise, rounds=3):
    settings = SupervisedSettings(
        epochs=8, batch_size=32, learning_rate=1e-2, adversarial_rounds=rounds, nonsense_reward=0.0
    )
    return fit_to_rewards(pictures_of(), IMAGES, TWO, POOLED, settings, seed=0, visualise=visualise)


@pytest.mark.slow
def test_visualisations_lose_their_score_and_the_task_stays_learned():
    reward, report = fit_in_rounds(ascend)
    of = report.adversarial
    assert of.trained == 12
    assert of.fresh_before > 1
    assert of.fresh_after < of.fresh_before / 2
    assert of.held_out_after < of.held_out_before / 2
    assert of.auc_after > of.auc_before - 0.01
    again, _ = fit_in_rounds(ascend)
    assert all(np.array_equal(reward.state()[name], value) for name, value in again.state().items())


def test_visualisations_of_another_type_are_refused():
    def floats(reward, seed):
        made = ascend(reward, seed)
        return made.with_(next_observations=made.next_observations.astype(np.float32) / 2)

    with pytest.raises(SettingError, match=r"visualise returned have observations such as .* which is not a uint8"):
        fit_in_rounds(floats, rounds=1)


def test_rounds_need_something_that_visualises():
    with pytest.raises(SettingError, match="needs visualise"):
        fit_in_rounds(None)


@given(st.sampled_from(["float16", "float32", "float64", "int32", "uint16", "uint8"]), st.booleans())
def test_images_are_the_numbers_of_their_space(kind, scaled):
    # A float image in [0, 1] beside bytes makes the network see the bytes 255 times too bright.
    steps = pictures_of(20)
    images = (steps.observations * (1 / 255 if scaled else 1)).astype(kind)
    given_images = steps.with_(observations=images)
    if scaled and "float" in kind:
        with pytest.raises(SettingError, match=r"such as 0.0.*which is not a uint8"):
            check_steps(given_images, IMAGES, TWO)
        return
    checked = check_steps(given_images, IMAGES, TWO).observations
    assert checked.dtype == np.uint8
    assert (checked == images).all()
