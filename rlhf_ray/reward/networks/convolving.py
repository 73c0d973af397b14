"""Convolutions of the members of an ensemble on the same images, as gradient steps compute them."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rlhf_ray.reward.networks.layers import ImageMean, StackedBatchNorm

SCALE = 1.0 / 255.0
"""Factor of pixels: of the first layer's weights, of which there are fewer."""

ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh)

PASS_NUMBERS = 4 * 2**20
"""Numbers in the widest layer of one pass: larger passes leave the cache, and take up to twice as long."""


def images_at_once(members: nn.ModuleList, image: tuple[int, int, int]) -> int:
    """Return how many images of a gradient step to pass through the members' layers at once.

    Args:
        members: of each, the layers.
        image: channels, height and width of an image.
    """
    sizes = [math.prod(image)]

    def note(_layer: Any, _inputs: Any, made: Any) -> None:
        if isinstance(made, Tensor):
            sizes.append(len(members) * made.numel())

    with evaluating(members), torch.no_grad(), contextlib.ExitStack() as hooks:
        for layer in members[0].modules():
            if not list(layer.children()):
                hooks.callback(layer.register_forward_hook(note).remove)
        members[0](torch.zeros(1, *image))
    return max(1, PASS_NUMBERS // max(sizes))


@contextlib.contextmanager
def evaluating(members: nn.ModuleList) -> Iterator[None]:
    """Layers in evaluation mode: a trial must leave no trace in the averages of batch normalisation."""
    members.eval()
    try:
        yield
    finally:
        members.train()


def steps_that_fit(networks: nn.Module) -> int | None:
    """Return how many steps of a pass through the networks fit a core's cache, or memory; None if any number does."""
    bounds = [getattr(layer, "images_at_once", None) for layer in networks.modules()]
    return min((bound for bound in bounds if isinstance(bound, int)), default=None)


def takes_averages(networks: nn.Module) -> bool:
    """Return whether a fit may not cut a pass: batch normalisation takes its averages over it."""
    return any(isinstance(layer, _BatchNorm | StackedBatchNorm) for layer in networks.modules())


def convolved(members: nn.ModuleList, images: Tensor, *, bfloat16: bool) -> Tensor:
    """Return what the members' layers make of images: ``[members, n, …]`` float32.

    Everything up to the last convolution and its activation is in bfloat16, if so wanted.

    Args:
        members: of each, the layers, one after the other.
        images: ``[n, channels, height, width]``, 0 to 255, uint8 or float.
        bfloat16: whether to compute in bfloat16, in which 0 to 255 are exact.
    """
    convolutions = []
    pixels = images.to(torch.bfloat16 if bfloat16 else torch.float32)
    for member in members:
        first, *layers = member.children()
        end = max((number for number, layer in enumerate(layers, 1) if _convolves(layer)), default=0)
        while end < len(layers) and isinstance(layers[end], (*ELEMENTWISE, ImageMean)):
            end += 1
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
            values = _through(layers[:end], _first(first, pixels))
        convolutions.append(_through(layers[end:], values.float()))
    return torch.stack(convolutions)


def _first(layer: nn.Module, pixels: Tensor) -> Tensor:
    """Return what a first layer makes of pixels, 0 to 255."""
    if not isinstance(layer, nn.Conv2d):
        return torch.as_tensor(layer(pixels * SCALE))
    return nn.functional.conv2d(pixels, layer.weight * SCALE, layer.bias, layer.stride, layer.padding)


def _convolves(layer: nn.Module) -> bool:
    return any(isinstance(module, nn.Conv2d) for module in layer.modules())


def _through(layers: list[nn.Module], values: Tensor) -> Tensor:
    for layer in layers:
        values = layer(values)
    return values
