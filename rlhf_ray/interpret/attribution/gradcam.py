"""Grad-CAM, with captum: where the last convolutions see what raises or lowers the output (Selvaraju et al. 2017)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.attribution.gradients import BATCH
from rlhf_ray.interpret.attribution.method import Method
from rlhf_ray.interpret.attribution.question import Maps, Question

NO_IMAGES = "The inputs are not images."


class GradCAM(Method):
    """Activations of the last convolution of each member, weighted by their mean gradients; signed, unlike the original.

    A network that sees several images side by side (a state and the next one) can't tell them apart here: each gets its share.
    """

    name, title = "grad_cam", "Grad-CAM"

    def why_not(self, question: Question) -> str | None:
        """Return why the method does not apply; None if it does."""
        if why := question.why_no_gradients():
            return why
        if not question.images:
            return NO_IMAGES
        return None if last_convolutions(question) else "The network has no convolutions."

    def attribute(self, question: Question, moments: Any) -> Maps:
        """Compute the maps of ``moments``. Inputs that are no images have none: zeros."""
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

    def keep(layer: nn.Module, _: object, output: Tensor) -> None:
        outputs[layer] = output

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        one = question.background[:1]
        question.ask(one, {name: values.requires_grad_() for name, values in question.inputs(one).items()})
    finally:
        for hook in hooks:
            hook.remove()
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
