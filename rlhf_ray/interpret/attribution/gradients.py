"""Attribution by gradients, with captum: saliency, input x gradient, SmoothGrad, integrated gradients, Grad-CAM.

captum is imported late: it takes seconds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.attribution.interventions import NO_IMAGES
from rlhf_ray.interpret.attribution.question import Maps, Method, Question

Function = Callable[..., Tensor]
Tensors = tuple[Tensor, ...]

BATCH = 256
"""Rows per backward pass. Bounds memory for images."""
TITLES = {
    "saliency": "Saliency (gradient)",
    "input_x_gradient": "Input x gradient",
    "difference_x_gradient": "Difference x gradient",
}


class GradientMethod(Method):
    """What the methods with gradients share: batches, and a function in which every argument takes part."""

    signed = False

    def why_not(self, question: Question) -> str | None:
        return question.why_no_gradients()

    def attribute(self, question: Question, moments: Any) -> Maps:
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


def _taking_part(function: Function) -> Function:
    """Return ``function`` with every argument taking part, so that those it does not use have gradient 0."""

    def forward(*arguments: Tensor) -> Tensor:
        *inputs, rows = arguments
        unused = sum((values.flatten(1).sum(1) if values.dim() > 1 else values) * 0.0 for values in inputs)
        return function(*inputs, rows) + unused

    return forward


@dataclass
class Slope(GradientMethod):
    """The gradient, times how much the input typically differs, the input, or its difference from its typical value.

    Times how much it differs, pixels and cells share one scale; ``name`` tells which: one of `TITLES`.
    """

    name: str = "saliency"

    def __post_init__(self) -> None:
        self.title, self.signed = TITLES[self.name], self.name != "saliency"

    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        from captum.attr import Saliency

        rows, products = torch.arange(len(inputs[0])), []
        slopes = Saliency(function).attribute(inputs, abs=False, additional_forward_args=rows)
        for name, values, slope in zip(question.names, inputs, slopes, strict=True):
            if self.name == "saliency":
                products.append(slope * question.scales[name])
            else:
                origin = 0.0 if self.name == "input_x_gradient" else question.typical[name]
                products.append((values - origin) * slope)
        return tuple(products)


@dataclass
class SmoothGrad(GradientMethod):
    """Saliency of the mean gradient over noisy copies (Smilkov et al. 2017). The noise's size is `Question.noise`."""

    samples: int = 16
    name, title = "smoothgrad", "SmoothGrad"

    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        from captum.attr import NoiseTunnel, Saliency

        rows, scales = torch.arange(len(inputs[0])), [question.scales[name] for name in question.names]

        # Noise has one size per argument: attribute to deviations from the inputs, in units of their scales.
        def moved(*by: Tensor) -> Tensor:
            return function(*(values + z * scale for values, z, scale in zip(inputs, by, scales, strict=True)), rows)

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(question.noise_seed)
            attributions: Tensors = NoiseTunnel(Saliency(moved)).attribute(
                tuple(torch.zeros_like(values).requires_grad_() for values in inputs),
                nt_type="smoothgrad",
                nt_samples=self.samples,
                nt_samples_batch_size=1,
                stdevs=question.noise,
                abs=False,
            )
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
        maps, enough = super().attribute(question, moments), self.error * (question.unit or 1.0)
        if self.points >= self.most or question.gap(moments, maps).max(initial=0.0) <= enough:
            return maps
        return replace(self, points=2 * self.points).attribute(question, moments)

    def tensors(self, question: Question, function: Function, inputs: Tensors) -> Tensors:
        from captum.attr import IntegratedGradients as Captum

        attributions: Tensors = Captum(function).attribute(
            inputs,
            baselines=tuple(question.typical[name] for name in question.names),
            n_steps=self.points,
            method="riemann_middle",
            internal_batch_size=max(BATCH, len(inputs[0])),
            additional_forward_args=torch.arange(len(inputs[0])),
        )
        return attributions


class GradCAM(Method):
    """Activations of the last convolution of each member, weighted by their mean gradients (Selvaraju et al. 2017).

    Signed, unlike the original. A network that sees several images side by side (a state and the next one) can't tell them apart
    here: each gets its share. Inputs that are no images have maps of zeros.
    """

    name, title = "grad_cam", "Grad-CAM"

    def why_not(self, question: Question) -> str | None:
        if why := question.why_no_gradients():
            return why
        if not question.images:
            return NO_IMAGES
        return None if last_convolutions(question) else "The network has no convolutions."

    def attribute(self, question: Question, moments: Any) -> Maps:
        from captum.attr import LayerGradCam

        layers, planes = last_convolutions(question), []
        maps = question.maps({name: torch.zeros_like(values) for name, values in question.inputs(moments).items()})
        height, width, channels = maps[question.images[0]].shape[1:]
        for start in range(0, len(moments), BATCH):
            batch = moments[slice(start, start + BATCH)]
            inputs = tuple(values.requires_grad_() for values in question.inputs(batch).values())
            rows, function = torch.arange(len(batch)), question.function(batch)
            cams = [LayerGradCam(function, layer).attribute(inputs, additional_forward_args=rows) for layer in layers]
            planes.append(sum(_enlarged(cam.detach(), height, width) for cam in cams))
        total = np.concatenate(planes) / (len(question.images) * channels)
        return maps | {name: np.repeat(total[..., None], channels, -1) for name in question.images}


def last_convolutions(question: Question) -> list[nn.Module]:
    """Return the convolutions whose output no other convolution sees: one per member."""
    layers = [layer for layer in question.layers().values() if isinstance(layer, nn.Conv2d)]
    outputs: dict[nn.Module, Tensor] = {}
    with ExitStack() as hooks:
        for each in layers:
            hooks.enter_context(each.register_forward_hook(lambda each, _, output: outputs.update({each: output})))
        one = question.background[:1]
        question.ask(one, {name: values.requires_grad_() for name, values in question.inputs(one).items()})
    seen: set[nn.Module] = set()
    for layer, output in outputs.items():
        others = [other for other in outputs if other is not layer]
        if others:
            slopes = torch.autograd.grad(
                output.sum(), [outputs[other] for other in others], allow_unused=True, retain_graph=True
            )
            seen |= {other for other, slope in zip(others, slopes, strict=True) if slope is not None}
    return [layer for layer in outputs if layer not in seen]


def _enlarged(cam: Tensor, height: int, width: int) -> FloatArray:
    """Enlarge ``[n, 1, h, w]`` to ``[n, height, width]``, its sums unchanged."""
    large = nn.functional.interpolate(cam, (height, width), mode="bilinear", align_corners=False)[:, 0].double()
    share = cam.shape[-1] * cam.shape[-2] / (height * width)
    return (large * share).numpy()
