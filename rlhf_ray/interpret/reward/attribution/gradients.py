"""Attribution by gradients, with captum: saliency, input x gradient, SmoothGrad, integrated gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret import gradients
from rlhf_ray.interpret.gradients import BATCH
from rlhf_ray.interpret.reward.attribution.background import Background, Maps
from rlhf_ray.interpret.reward.attribution.method import no_gradients


def forward_of(background: Background) -> Callable[..., Tensor]:
    """Return the reward for captum: every argument takes part, so that those it does not use have gradient 0."""
    return gradients.all_taking_part(background.reward.forward)


class _Gradients:
    """What the methods with gradients share."""

    signed, complete = False, False

    def unsuitable(self, background: Background) -> str | None:
        """Return why the method does not apply; None if it does."""
        return no_gradients(background)


class Saliency(_Gradients):
    """``|d reward / d input|``, times how much the input typically differs: pixels and cells share one scale."""

    name, title = "saliency", "Saliency (gradient)"

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``."""
        forward = background.reward.forward
        found = _in_batches(background, steps, lambda x: gradients.gradient(forward, x), background.scales())
        return {name: np.abs(of) for name, of in found.items()}


class InputXGradient(_Gradients):
    """The input times its gradient."""

    name, title, signed = "input_x_gradient", "Input x gradient", True

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``."""
        forward = background.reward.forward
        return _in_batches(background, steps, lambda x: gradients.input_times_gradient(forward, x))


@dataclass
class SmoothGrad(_Gradients):
    """Saliency of the mean gradient over noisy copies (Smilkov et al. 2017).

    Args:
        noise: standard deviation of the noise, as a share of how much each input typically differs.
        samples: noisy copies.
    """

    noise: float = 0.25
    samples: int = 16
    name, title = "smoothgrad", "SmoothGrad"

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``."""
        seed, scales = int(background.rng("smoothgrad").integers(2**31)), background.scales()
        noise, samples = self.noise, self.samples

        def attribute(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            found = gradients.smooth_gradient(
                background.reward.forward, inputs, scales, noise=noise, samples=samples, seed=seed
            )
            return tuple(of.abs() for of in found)

        return _in_batches(background, steps, attribute)


@dataclass
class IntegratedGradients(_Gradients):
    """The gradient's mean on the way from the typical step to this one, times the way (Sundararajan et al. 2017).

    Args:
        steps: points on the way, to begin with; doubled until the maps add up.
        error: largest accepted gap between a map's sum and the reward's difference, in standard deviations of the reward.
        most: most points.
    """

    steps: int = 32
    error: float = 0.03
    most: int = 256
    name, title, signed, complete = "integrated_gradients", "Integrated gradients", True, True

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``."""
        points = self.steps
        maps = self.with_points(background, steps, points)
        while points < self.most and gap(background, steps, maps).max() > self.error * (background.spread or 1.0):
            points *= 2
            maps = self.with_points(background, steps, points)
        return maps

    def with_points(self, background: Background, steps: Transitions, points: int) -> Maps:
        """Compute the maps of ``steps`` with ``points`` points."""
        forward, baselines = background.reward.forward, background.typical_tensors()
        return _in_batches(background, steps, lambda x: gradients.integrated_gradients(forward, x, baselines, points))


def gap(background: Background, steps: Transitions, maps: Maps) -> FloatArray:
    """Return how far each map's sum is from the reward's difference to the typical step, ``[n]``, in units of the reward."""
    with torch.no_grad():
        reference = background.reward.forward(*background.typical_tensors())
        rewards = torch.cat([background.reward.forward(*part) for part in _batches(background, steps)])
    difference = (rewards - reference).double().numpy()
    return np.asarray(np.abs(background.part_sums(maps).sum(1) - difference))


def _batches(background: Background, steps: Transitions) -> list[tuple[Tensor, ...]]:
    return [
        background.reward.tensors(steps[slice(start, start + BATCH)]) for start in range(0, max(1, len(steps)), BATCH)
    ]


def _in_batches(
    background: Background,
    steps: Transitions,
    attribute: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]],
    scales: tuple[Tensor, ...] | None = None,
) -> Maps:
    found = []
    for batch in _batches(background, steps):
        tensors = attribute(batch)
        found.append(tensors if scales is None else tuple(of * s for of, s in zip(tensors, scales, strict=True)))
    return background.numpy(tuple(torch.cat([each.detach() for each in parts]) for parts in zip(*found, strict=True)))


METHODS = (Saliency(), InputXGradient(), IntegratedGradients(), SmoothGrad())
