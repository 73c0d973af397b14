"""Attribution by gradients, with captum: saliency, input x gradient, SmoothGrad, integrated gradients.

captum is imported late: it takes seconds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from rlhf_ray.interpret.attribution.method import Method
from rlhf_ray.interpret.attribution.question import Maps, Question

Function = Callable[..., Tensor]
Tensors = tuple[Tensor, ...]

BATCH = 256
"""Rows per backward pass. Bounds memory for images."""


class GradientMethod(Method):
    """What the methods with gradients share: batches, and a function in which every argument takes part."""

    signed = False

    def why_not(self, question: Question) -> str | None:
        """Return why the method does not apply; None if it does."""
        return question.why_no_gradients()

    def attribute(self, question: Question, moments: Any) -> Maps:
        """Compute the maps of ``moments``."""
        parts = []
        for start in range(0, max(1, len(moments)), BATCH):
            batch = moments[slice(start, start + BATCH)]
            inputs = tuple(values.requires_grad_() for values in question.inputs(batch).values())
            parts.append(self.tensors(question, _taking_part(question.function(batch)), inputs))
        joined = [torch.cat([part.detach() for part in values]) for values in zip(*parts, strict=True)]
        return question.maps(dict(zip(question.names, joined, strict=True)))

    @abstractmethod
    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        """Compute the attribution to each of ``inputs``. The function's last argument says which rows they are."""


class Saliency(GradientMethod):
    """The gradient, times how much the input typically differs: pixels and cells share one scale."""

    name, title = "saliency", "Saliency (gradient)"

    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        """See `GradientMethod.tensors`."""
        return tuple(
            values * question.scales[name]
            for name, values in zip(question.names, _gradient(function, inputs), strict=True)
        )


class InputXGradient(GradientMethod):
    """The input times its gradient."""

    name, title, signed = "input_x_gradient", "Input x gradient", True

    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        """See `GradientMethod.tensors`."""
        return tuple(values * slope for values, slope in zip(inputs, _gradient(function, inputs), strict=True))


class DifferenceXGradient(GradientMethod):
    """The input's difference from its typical value, times its gradient."""

    name, title, signed = "difference_x_gradient", "Difference x gradient", True

    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        """See `GradientMethod.tensors`."""
        usual = (question.typical[name] for name in question.names)
        slopes = _gradient(function, inputs)
        return tuple((values - origin) * slope for values, origin, slope in zip(inputs, usual, slopes, strict=True))


@dataclass
class SmoothGrad(GradientMethod):
    """Saliency of the mean gradient over noisy copies (Smilkov et al. 2017). The noise's size is `Question.noise`.

    Args:
        samples: noisy copies.
    """

    samples: int = 16
    name, title = "smoothgrad", "SmoothGrad"

    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        """See `GradientMethod.tensors`."""
        from captum.attr import NoiseTunnel, Saliency

        rows, scales = _rows(inputs), [question.scales[name] for name in question.names]

        # Noise has one size per argument: attribute to deviations from the inputs, in units of their scales.
        def moved(*by: Tensor) -> Tensor:
            return function(*(values + z * scale for values, z, scale in zip(inputs, by, scales, strict=True)), rows)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(question.noise_seed)
            attributions: Tensors = NoiseTunnel(Saliency(moved)).attribute(
                tuple(torch.zeros_like(values).requires_grad_() for values in inputs), nt_type="smoothgrad",
                nt_samples=self.samples, nt_samples_batch_size=1, stdevs=question.noise, abs=False,
            )  # fmt: skip
        return attributions


@dataclass
class IntegratedGradients(GradientMethod):
    """The gradient's mean on the way from the typical inputs to these, times the way (Sundararajan et al. 2017).

    Through Discrete actions in a world model the maps can't add up, since actions jump on the way.

    Args:
        points: points on the way, to begin with; doubled until the maps add up.
        error: largest accepted gap between a map's sum and the output's difference, in `Question.unit`.
        most: most points.
    """

    points: int = 32
    error: float = 0.03
    most: int = 256
    name, title, signed, complete = "integrated_gradients", "Integrated gradients", True, True

    def attribute(self, question: Question, moments: Any) -> Maps:
        """Compute the maps of ``moments``."""
        if self.points >= self.most:
            return super().attribute(question, moments)
        enough = self.error * (question.unit or 1.0)
        points = self.points
        while True:
            maps = IntegratedGradients(points, most=points).attribute(question, moments)
            if points >= self.most or question.gap(moments, maps).max(initial=0.0) <= enough:
                return maps
            points *= 2

    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        """See `GradientMethod.tensors`."""
        from captum.attr import IntegratedGradients as Captum

        attributions: Tensors = Captum(function).attribute(
            inputs, baselines=tuple(question.typical[name] for name in question.names), n_steps=self.points,
            method="riemann_middle", internal_batch_size=max(BATCH, len(inputs[0])), additional_forward_args=_rows(inputs),
        )  # fmt: skip
        return attributions


def _gradient(function: Function, inputs: Tensors) -> Tensors:
    from captum.attr import Saliency as Captum

    slopes: Tensors = Captum(function).attribute(inputs, abs=False, additional_forward_args=_rows(inputs))
    return slopes


def _rows(inputs: Tensors) -> Tensor:
    return torch.arange(len(inputs[0]))


def _taking_part(function: Function) -> Function:
    """Return ``function`` with every argument taking part, so that those it does not use have gradient 0."""

    def forward(*arguments: Tensor) -> Tensor:
        *inputs, rows = arguments
        unused = sum((values.flatten(1).sum(1) if values.dim() > 1 else values) * 0.0 for values in inputs)
        return function(*inputs, rows) + unused

    return forward
