"""Model editing: take a direction out of a layer, and verify what that changes and what it does not."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import random_directions
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.interpret.reward.layers import Layer
from rlhf_ray.measure.statistics import constant, pearson
from rlhf_ray.reward.functions import TorchReward

RANDOM = 8
"""Random directions to compare with."""


def without(reward: TorchReward, layer: Layer, direction: FloatArray, data: Transitions) -> TorchReward:
    """Return a copy of ``reward`` whose ``layer`` has its mean over ``data`` along ``direction``, whatever the input.

    Args:
        reward: the reward; it stays as it is.
        layer: the layer.
        direction: ``[channels]``; at each position of an image.
        data: steps that give the mean, at each position.
    """
    unit = _unit(direction, layer)
    mean = _along(layer.activations(reward, data), unit).mean(0)
    one = Directions(
        "removed", ["direction"], np.zeros(len(unit)), unit[None], unit[None], np.zeros((0, 1)), np.zeros(1)
    )
    amount = mean[..., None] if mean.size > 1 else mean.reshape(1)
    edit = Intervention(one, [0], "ablate_mean", amount=amount, site=layer.name).edit(0)
    edited = copy.deepcopy(reward)
    edited.name = f"{reward.name}, edited"
    layer.module(edited).register_forward_hook(lambda _, __, output: layer.restore(edit(layer.arrange(output)), output))
    return edited


@dataclass(frozen=True)
class Edit:
    """What taking a direction out changes, on some data.

    Attributes:
        before: variance of the layer's activations along the direction.
        after: the same after the edit: 0 but for rounding.
        others: largest change of the activations along directions orthogonal to it, relative to their spread: 0 but for rounding.
        change: root mean square change of the reward, in standard deviations of the reward.
        correlation: of the reward before and after; None if one of them is constant.
        random: mean ``change`` of random directions along which the activations vary as much.
        random_most: the largest of them.
    """

    before: float
    after: float
    others: float
    change: float
    correlation: float | None
    random: float
    random_most: float


def verify(
    reward: TorchReward, layer: Layer, direction: FloatArray, data: Transitions, seed: int = 0, count: int = RANDOM
) -> Edit:
    """Take ``direction`` out of ``layer`` and measure the effect, beside random directions of equal variance.

    Args:
        reward: the reward.
        layer: the layer.
        direction: ``[channels]``.
        data: steps to measure on.
        seed: draws the random directions.
        count: number of random directions.
    """
    rng = np.random.default_rng([seed, 0xED1])
    unit = _unit(direction, layer)
    edited = without(reward, layer, unit, data)
    values, changed = layer.activations(reward, data), layer.activations(edited, data)
    before, after = _along(values, unit), _along(changed, unit)
    difference = np.moveaxis(changed - values, 1, -1)
    sideways = difference - (difference @ unit)[..., None] * unit
    rewards, rewards_after = reward.of(data), edited.of(data)
    spread = float(rewards.std())
    random = []
    # The mean at each position, not of all, so that the spread is over steps.
    rows = np.moveaxis(values - values.mean(0), 1, -1).reshape(-1, values.shape[1])
    for other in random_directions(rows, float(((rows @ unit) ** 2).mean()), rng, count):
        random.append(_change(rewards, without(reward, layer, other, data).of(data), spread))
    steady = constant(rewards) or constant(rewards_after)
    return Edit(
        float(before.var(0).mean()),
        float(after.var(0).mean()),
        float(np.abs(sideways).max() / max(float(values.std()), 1e-12)),
        _change(rewards, rewards_after, spread),
        None if steady else pearson(rewards, rewards_after),
        float(np.mean(random)),
        float(np.max(random)),
    )


def _change(before: FloatArray, after: FloatArray, spread: float) -> float:
    return float(np.sqrt(np.mean((after - before) ** 2)) / spread) if not constant(before) else 0.0


def _unit(direction: FloatArray, layer: Layer) -> FloatArray:
    length = float(np.linalg.norm(direction))
    if direction.shape != (layer.channels,) or length < 1e-12:
        raise SettingError(
            f"direction has shape {direction.shape} and length {length:.3g}; layer {layer.name!r} needs ({layer.channels},), not 0."
        )
    return np.asarray(direction / length, np.float64)


def _along(values: Array, unit: FloatArray) -> FloatArray:
    """Return ``values`` ``[n, channels, *positions]`` along ``unit``: ``[n, *positions]``."""
    return np.tensordot(values.astype(np.float64), unit, ([1], [0]))
