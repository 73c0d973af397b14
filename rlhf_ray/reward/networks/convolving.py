"""Convolutions of all members of an ensemble on the same images, as gradient steps compute them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from rlhf_ray.reward.networks.layers import ImageMean

SCALE = 1.0 / 255.0
"""Factor of pixels: of the first layer's weights, of which there are fewer."""

ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh)

PASS_NUMBERS = 4 * 2**20
"""Numbers in the widest layer of one pass: passes of larger ones leave the cache, and take up to twice as long."""


class Members(nn.ModuleList):
    """Each member's layers from images to features.

    Args:
        members: their layers.
        image: channels, height and width of an image.

    Attributes:
        features: numbers that a member makes of an image.
        at_once: images of one pass.

    Raises:
        RuntimeError: the image is too small for the layers.
    """

    def __init__(self, members: Iterable[nn.Module], image: tuple[int, int, int]):
        super().__init__(members)
        sizes: list[int] = []
        hooks = [
            each.register_forward_hook(lambda _, __, made: sizes.append(made.numel()))
            for each in self[0].modules()
            if not list(each.children())
        ]
        self.eval()  # the trial must leave no trace in the averages of batch normalisation
        with torch.no_grad():
            self.features = self[0](torch.zeros(1, *image)).shape[1]
        self.train()
        for hook in hooks:
            hook.remove()
        widest = max(math.prod(image), len(self) * max(sizes))
        normalises = any(isinstance(each, nn.BatchNorm2d) for each in self.modules())  # over all images of a pass
        self.at_once = MOST_STEPS if normalises else max(1, PASS_NUMBERS // widest)


MOST_STEPS = 4096
"""Steps of a pass, whatever the networks."""


def steps_at_once(networks: nn.Module) -> int:
    """Return how many steps to pass through the networks at once."""
    return min([MOST_STEPS, *(each.at_once for each in networks.modules() if isinstance(each, Members))])


def convolved(members: nn.ModuleList, images: Tensor, *, bfloat16: bool) -> Tensor:
    """Return what the members' layers make of images: ``[members, n, …]`` float32.

    The members' first convolutions are one. Everything up to the last convolution and its activation is in bfloat16, if so wanted.

    Args:
        members: of each, the layers, one after the other.
        images: ``[n, channels, height, width]``, 0 to 255, uint8 or float.
        bfloat16: whether to compute in bfloat16, in which 0 to 255 are exact.
    """
    layers = [list(member.children()) for member in members]
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
        pixels = images.to(torch.bfloat16 if bfloat16 else torch.float32)
        inputs, begin = _first(layers, pixels)
        end = 1 + max(number for number, layer in enumerate(layers[0]) if _convolves(layer))
        while isinstance(layers[0][end], (*ELEMENTWISE, ImageMean)):
            end += 1
        outputs = [_through(each[begin:end], values) for each, values in zip(layers, inputs, strict=True)]
    rest = [_through(each[end:], values.float()) for each, values in zip(layers, outputs, strict=True)]
    return torch.stack(rest)


def _first(layers: list[list[nn.Module]], pixels: Tensor) -> tuple[list[Tensor], int]:
    """Return each member's values after the layers that all take together, and the number of these layers."""
    first = [each[0] for each in layers]
    if not all(isinstance(layer, nn.Conv2d) for layer in first):
        return [pixels * SCALE] * len(layers), 0
    of = first[0]
    assert isinstance(of, nn.Conv2d)
    weight = torch.cat([layer.weight for layer in first]) * SCALE  # type: ignore[misc]
    bias = torch.cat([layer.bias for layer in first])  # type: ignore[misc]
    values = nn.functional.conv2d(pixels, weight, bias, of.stride, of.padding)
    together = 1
    if isinstance(activation := layers[0][1], ELEMENTWISE):
        values, together = activation(values), 2
    return list(values.chunk(len(layers), 1)), together


def _convolves(layer: nn.Module) -> bool:
    return any(isinstance(each, nn.Conv2d) for each in layer.modules())


def _through(layers: list[nn.Module], values: Tensor) -> Tensor:
    for layer in layers:
        values = layer(values)
    return values
