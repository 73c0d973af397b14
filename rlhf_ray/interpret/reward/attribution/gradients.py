"""Attribution by gradients, with captum: saliency, input x gradient, SmoothGrad, integrated gradients."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution.background import Background, Maps
from rlhf_ray.interpret.reward.attribution.method import no_gradients

BATCH = 256
"""Steps per backward pass. Bounds memory for images."""


def forward_of(background: Background) -> Callable[..., Tensor]:
    """Return the reward for captum: every argument takes part, so that those it does not use have gradient 0."""

    def forward(*arguments: Tensor) -> Tensor:
        unused = sum((of.flatten(1).sum(1) if of.dim() > 1 else of) * 0.0 for of in arguments)
        return background.reward.forward(*arguments) + unused

    return forward


class _Gradients:
    """What the methods with gradients share. captum is imported late: it takes seconds."""

    signed, complete = False, False

    def unsuitable(self, background: Background) -> str | None:
        """Return why the method does not apply; None if it does."""
        return no_gradients(background)


class Saliency(_Gradients):
    """``|d reward / d input|``, times how much the input typically differs: pixels and cells share one scale."""

    name, title = "saliency", "Saliency (gradient)"

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``."""
        from captum.attr import Saliency as Captums

        forward = forward_of(background)
        return _in_batches(background, steps, lambda x: Captums(forward).attribute(x, abs=True), background.scales())


class InputXGradient(_Gradients):
    """The input times its gradient."""

    name, title, signed = "input_x_gradient", "Input x gradient", True

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``."""
        from captum.attr import InputXGradient as Captums

        forward = forward_of(background)
        return _in_batches(background, steps, lambda x: Captums(forward).attribute(x))


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
        from captum.attr import NoiseTunnel
        from captum.attr import Saliency as Captums

        forward, scales = forward_of(background), background.scales()

        def attribute(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            # Noise has one size per argument: attribute to deviations from the inputs, in units of their scales.
            moved = NoiseTunnel(Captums(lambda *z: forward(*_moved(inputs, z, scales))))
            found: tuple[Tensor, ...] = moved.attribute(
                tuple(torch.zeros_like(of) for of in inputs), nt_type="smoothgrad", nt_samples=self.samples,
                nt_samples_batch_size=1, stdevs=self.noise, abs=False,
            )  # fmt: skip
            return tuple(of.abs() for of in found)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(background.rng("smoothgrad").integers(2**31)))
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
        from captum.attr import IntegratedGradients as Captums

        captums, baselines = Captums(forward_of(background)), background.typical_tensors()

        def attribute(inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            found: tuple[Tensor, ...] = captums.attribute(
                inputs, baselines=baselines, n_steps=points, method="riemann_middle", internal_batch_size=BATCH
            )
            return found

        return _in_batches(background, steps, attribute)


def gap(background: Background, steps: Transitions, maps: Maps) -> FloatArray:
    """Return how far each map's sum is from the reward's difference to the typical step, ``[n]``, in units of the reward."""
    with torch.no_grad():
        reference = background.reward.forward(*background.typical_tensors())
        rewards = torch.cat([background.reward.forward(*part) for part in _batches(background, steps)])
    difference = (rewards - reference).double().numpy()
    return np.asarray(np.abs(background.part_sums(maps).sum(1) - difference))


def _moved(inputs: tuple[Tensor, ...], by: tuple[Tensor, ...], scales: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Return the inputs moved by ``by`` scales. Captum repeats steps for several noisy copies: so do we."""
    return tuple(
        of.repeat_interleave(len(z) // len(of), 0) + z * scale for of, z, scale in zip(inputs, by, scales, strict=True)
    )


def _batches(background: Background, steps: Transitions) -> list[tuple[Tensor, ...]]:
    return [
        background.reward.tensors(steps[slice(start, start + BATCH)]) for start in range(0, max(1, len(steps)), BATCH)
    ]


def _in_batches(
    background: Background,
    steps: Transitions,
    attribute: Callable[[Any], tuple[Tensor, ...]],
    scales: tuple[Tensor, ...] | None = None,
) -> Maps:
    found = []
    for batch in _batches(background, steps):
        tensors = attribute(tuple(of.requires_grad_() for of in batch))
        found.append(tensors if scales is None else tuple(of * s for of, s in zip(tensors, scales, strict=True)))
    return background.numpy(tuple(torch.cat([each.detach() for each in parts]) for parts in zip(*found, strict=True)))


METHODS = (Saliency(), InputXGradient(), IntegratedGradients(), SmoothGrad())
