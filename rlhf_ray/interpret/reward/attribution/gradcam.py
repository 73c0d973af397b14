"""Grad-CAM, with captum: where the last convolutions see what raises or lowers the reward (Selvaraju et al. 2017)."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.gradients import BATCH
from rlhf_ray.interpret.reward.attribution.background import Background, Maps
from rlhf_ray.interpret.reward.attribution.gradients import forward_of
from rlhf_ray.interpret.reward.attribution.method import no_gradients, no_images
from rlhf_ray.reward.functions import RewardFunction


class GradCAM:
    """Activations of the last convolution of each member, weighted by their mean gradients; signed, unlike the original.

    A network that sees state and next state side by side can't tell them apart here: each gets half.
    """

    name, title, signed, complete = "grad_cam", "Grad-CAM", True, False

    def unsuitable(self, background: Background) -> str | None:
        """Return why the method does not apply; None if it does."""
        if why := no_gradients(background) or no_images(background):
            return why
        if not last_convolutions(background.reward, background.data):
            return "The reward's network has no convolutions."
        return None

    def __call__(self, background: Background, steps: Transitions) -> Maps:
        """Compute the maps of ``steps``. The action and the end of the episode have none: zeros."""
        from captum.attr import LayerGradCam

        maps = background.zeros(steps)
        images = [name for name in background.inputs if name in ("state", "next_state")]
        height, width, channels = maps[images[0]].shape[1:]
        layers = last_convolutions(background.reward, background.data)
        found = []
        for start in range(0, len(steps), BATCH):
            inputs = tuple(of.requires_grad_() for of in background.reward.tensors(steps[start : start + BATCH]))
            cams = [LayerGradCam(forward_of(background), layer).attribute(inputs) for layer in layers]
            found.append(sum(_enlarged(cam.detach(), height, width) for cam in cams))
        total = np.concatenate(found) / (len(images) * channels)
        for name in images:
            maps[name] = np.repeat(total[..., None], channels, -1)
        return maps


def last_convolutions(reward: RewardFunction, data: Transitions) -> list[nn.Module]:
    """Return the convolutions whose output no other convolution sees: one per member."""
    layers = [layer for layer in reward.layers().values() if isinstance(layer, nn.Conv2d)]
    outputs: dict[nn.Module, Tensor] = {}

    def keep(layer: nn.Module, _: object, output: Tensor) -> None:
        outputs[layer] = output

    hooks = [layer.register_forward_hook(keep) for layer in layers]
    try:
        reward.forward(*(of.requires_grad_() for of in reward.tensors(data[:1])))
    finally:
        for hook in hooks:
            hook.remove()
    seen: set[nn.Module] = set()
    for layer, output in outputs.items():
        others = [each for each in outputs if each is not layer]
        if others:
            slopes = torch.autograd.grad(
                output.sum(), [outputs[each] for each in others], allow_unused=True, retain_graph=True
            )
            seen |= {each for each, slope in zip(others, slopes, strict=True) if slope is not None}
    return [layer for layer in outputs if layer not in seen]


def _enlarged(cam: Tensor, height: int, width: int) -> FloatArray:
    """Enlarge ``[n, 1, h, w]`` to ``[n, height, width]``, its sums unchanged."""
    large = nn.functional.interpolate(cam, (height, width), mode="bilinear", align_corners=False)[:, 0].double()
    share = cam.shape[-1] * cam.shape[-2] / (height * width)
    return (large * share).numpy()


METHODS = (GradCAM(),)
