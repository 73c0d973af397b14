"""Factors of layers whose content is known."""

import gymnasium as gym
import numpy as np
import pytest
import torch

from rlhf_ray.interpret.directions.stability import match
from rlhf_ray.interpret.reward.layers import fit_factors, found_again, hidden_layers, layers_of
from rlhf_ray.interpret.reward.steps import inside
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import CallableReward, TableReward
from tests.interpret.contexts import ensemble_of, run_step, steps_of, why_not

VECTOR, ACTIONS = gym.spaces.Box(-1, 1, (4,), np.float32), gym.spaces.Discrete(3)
IMAGE = gym.spaces.Box(0, 255, (20, 24, 2), np.uint8)


def planted_factors(seed):
    """Activations ``[64, 8, 6, 6]`` made of three directions, and the directions ``[3, 8]``."""
    rng = np.random.default_rng(seed)
    directions = np.zeros((3, 8))
    for at, channels in enumerate(((0, 1, 2), (3, 4), (5, 6, 7))):
        directions[at, list(channels)] = rng.uniform(0.5, 1.5, len(channels))
    weights = rng.exponential(size=(64, 3, 6, 6)) * (rng.random((64, 3, 6, 6)) < 0.4)
    return np.einsum("nkhw,kc->nchw", weights, directions), directions


def ensemble(space=VECTOR, **changes):
    return ensemble_of(space, ACTIONS, hidden=(12, 12), **changes)


def data_of(space=VECTOR, n=120):
    space.seed(0)
    before, after = (np.stack([space.sample() for _ in range(n)]) for _ in range(2))
    return steps_of(before, after, actions=np.random.default_rng(0).integers(0, 3, n))


def test_layers_put_the_batch_first_and_join_members():
    reward, data = ensemble(IMAGE), data_of(IMAGE, 6)
    layers = layers_of(reward)
    first = layers["networks.convolutions.1.0"]
    assert first.shape == (16, 4, 5)
    stacked = layers["networks.head.layers.0"]
    assert stacked.shape == (24,)  # 12 units of each of 2 members
    alone = stacked.activations(reward, data[2:3])
    assert np.allclose(alone, stacked.activations(reward, data)[2:3], atol=1e-5)
    assert all(layer.channels > 2 for layer in hidden_layers(reward))  # the output is none of them
    assert layers_of(TableReward(np.zeros((3, 2)))) == {}


def test_factors_never_mix_channels_with_positions():
    values, directions = planted_factors(0)
    for transposed in (values, np.ascontiguousarray(values.transpose(0, 1, 3, 2))):
        made = fit_factors(transposed, 3, 0)
        assert match(directions, made.directions).min() > 0.98
    mixed = values.reshape(64, 6, 6, 8).transpose(0, 3, 1, 2)  # reshape without moving the axis, the defect
    assert match(directions, fit_factors(mixed, 3, 0).directions).max() < 0.9
    made = fit_factors(values, 3, 0)
    weights = made.encode(values)
    assert weights.shape == (64, 3, 6, 6)
    again = np.einsum("nkhw,kc->nchw", weights, made.components)
    assert np.abs(again - values).max() < 0.05 * values.max()
    assert found_again(values, made, [1]).min() > 0.98


def test_signed_factors_are_inverted():
    rng = np.random.default_rng(1)
    directions = np.array([[1.0, 0, 0, -1], [0, 1, -1, 0]])
    values = np.einsum("nkh,kc->nch", rng.exponential(size=(50, 2, 3)), directions)
    signed = fit_factors(values, 2, 0, signed=True)
    assert match(directions, signed.directions).min() > 0.98
    again = np.moveaxis(signed.encode(values), 1, -1) @ np.subtract(*np.split(signed.components, 2, axis=1))
    assert np.abs(np.moveaxis(again, -1, 1) - values).max() < 0.05
    with pytest.raises(ValueError, match="0 or more"):
        fit_factors(values, 2)


def test_attributions_are_those_of_the_layer():
    """Gradient x activation of a layer that is followed by linear layers alone adds up to the reward without biases."""
    reward, data = ensemble(ensemble_size=1), data_of()
    layer = layers_of(reward)["networks.head.layers.3"]  # the last activation
    last = reward.module.networks.head.layers[4]
    sums = layer.attributions(reward, data).sum(1) + float(last.bias)
    assert np.allclose(sums, reward.of(data), atol=1e-5)


def test_the_section_takes_what_has_layers():
    data = data_of(n=60)
    section = run_step(inside, Subject(ensemble(), data, effort=0.1))
    assert len(section.tables[0].rows) == 10
    plain = CallableReward(lambda o, a, n, d: o[:, 0], VECTOR, ACTIONS)
    assert why_not(inside, Subject(plain, data)) == "No layers are known that compute this reward."

    constant = ensemble()
    with torch.no_grad():
        for weight in constant.module.parameters():
            weight.zero_()
    section = run_step(inside, Subject(constant, data, effort=0.1))
    assert np.isfinite([check.value for check in section.checks]).all()
