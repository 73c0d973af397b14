"""Adversarial training against the reward's own visualisations, in the environment's own types."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.functions import EnsembleReward
from rlhf_ray.reward.supervised import fit_to_rewards
from rlhf_ray.reward.supervised.fitter import check_steps
from rlhf_ray.settings import SUPERVISED_MODEL, SupervisedSettings

IMAGES, CHOICES = gym.spaces.Box(0, 255, (16, 16, 1), np.uint8), gym.spaces.Discrete(2)
MODEL = replace(SUPERVISED_MODEL, network="pooled_cnn", convolutions=(6, 6), use_state=False, use_action=False)


def steps_of(n=400, seed=0) -> Transitions:
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


def fit(visualise, rounds=3):
    settings = SupervisedSettings(
        epochs=8, batch_size=32, learning_rate=1e-2, adversarial_rounds=rounds, nonsense_reward=0.0
    )
    return fit_to_rewards(steps_of(), IMAGES, CHOICES, MODEL, settings, seed=0, visualise=visualise)


@pytest.mark.slow
def test_visualisations_lose_their_score_and_the_task_stays_learned():
    reward, report = fit(ascend)
    of = report.adversarial
    assert of.trained == 12
    assert of.fresh_before > 1
    assert of.fresh_after < of.fresh_before / 2
    assert of.held_out_after < of.held_out_before / 2
    assert of.auc_after > of.auc_before - 0.01
    again, _ = fit(ascend)
    assert all(np.array_equal(reward.state()[name], value) for name, value in again.state().items())


def test_visualisations_of_another_type_are_refused():
    def floats(reward, seed):
        made = ascend(reward, seed)
        return made.with_(next_observations=made.next_observations.astype(np.float32) / 2)

    with pytest.raises(SettingError, match=r"visualise returned have observations such as .* which is not a uint8"):
        fit(floats, rounds=1)


def test_rounds_need_something_that_visualises():
    with pytest.raises(SettingError, match="needs visualise"):
        fit(None)


@given(st.sampled_from(["float16", "float32", "float64", "int32", "uint16", "uint8"]), st.booleans())
def test_images_are_the_numbers_of_their_space(kind, scaled):
    # A float image in [0, 1] beside bytes makes the network see the bytes 255 times too bright.
    steps = steps_of(20)
    images = (steps.observations * (1 / 255 if scaled else 1)).astype(kind)
    given_images = steps.with_(observations=images)
    if scaled and "float" in kind:
        with pytest.raises(SettingError, match=r"such as 0.0.*which is not a uint8"):
            check_steps(given_images, IMAGES, CHOICES)
        return
    checked = check_steps(given_images, IMAGES, CHOICES).observations
    assert checked.dtype == np.uint8
    assert (checked == images).all()
