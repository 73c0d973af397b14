"""Image encoders of policies. Reward networks share their convolutions."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError

FEATURES = {"nature": 512, "impala": 256, "small": 64}
"""Size of each encoder's output, unless ``ppo.features`` says otherwise."""


def image_encoder(network: str, shape: tuple[int, ...], features: int | None) -> tuple[nn.Module, int]:
    """Build an encoder of images ``[n, channels, height, width]``, float, 0 to 255.

    Args:
        network: nature, impala or small.
        shape: of an image: height, width, channels.
        features: size of the output; None for the network's own.

    Returns:
        The encoder and the size of its output.

    Raises:
        SettingError: the images are too small.
    """
    height, width, channels = shape
    size = FEATURES[network] if features is None else features
    body = convolutions(network, channels, PixelConv2d)
    try:
        with torch.no_grad():
            flat = body(torch.zeros(1, shape[2], height, width)).shape[1]
    except RuntimeError as error:
        raise SettingError(
            f"ppo.network is {network!r}, but images of {height}x{width} pixels are too small for it; use images of 36x36 or more, "
            "or 'small'."
        ) from error
    encoder = nn.Sequential(body, linear(flat, size, math.sqrt(2.0)), nn.ReLU())
    if network == "impala":
        glorot(encoder)
    return encoder, size


class PixelConv2d(nn.Conv2d):
    """A first convolution of pixels: it divides its weights by 255 instead of the pixels, of which there are more."""

    def forward(self, input: Tensor) -> Tensor:
        """Map images, 0 to 255."""
        scaled = self.weight * (1.0 / 255.0)
        return nn.functional.conv2d(input, scaled, self.bias, self.stride, self.padding)


def convolutions(network: str, channels: int, first: type[nn.Conv2d] = nn.Conv2d) -> nn.Sequential:
    """Build the convolutions of an encoder, from ``channels`` to a flat vector: those of nature and small are orthogonal.

    Args:
        network: nature, impala or small.
        channels: of the images.
        first: the kind of the first convolution.
    """
    layers: list[nn.Module] = []
    if network == "impala":
        for filters in (16, 32, 32):
            layers.append(_ImpalaBlock(channels, filters, first))
            channels, first = filters, nn.Conv2d
        layers.append(nn.ReLU())
    else:
        shapes = ((32, 8, 4), (64, 4, 2), (64, 3, 1)) if network == "nature" else ((16, 3, 2), (32, 3, 2))
        for filters, kernel, stride in shapes:
            layer = first(channels, filters, kernel, stride)
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
            layers += [layer, nn.ReLU()]
            channels, first = filters, nn.Conv2d
    return nn.Sequential(*layers, nn.Flatten())


def glorot(module: nn.Module) -> None:
    """Draw all weights of ``module`` from Glorot's uniform distribution, and set biases to zero."""
    for name, parameter in module.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        else:
            nn.init.xavier_uniform_(parameter)


def linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    """Build a linear layer with orthogonal weights and zero biases."""
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


class _ImpalaBlock(nn.Module):
    """Convolution, pooling and two residual blocks (IMPALA, Espeholt et al. 2018; the network of the Procgen paper)."""

    def __init__(self, channels: int, filters: int, first: type[nn.Conv2d]):
        super().__init__()
        self.first = first(channels, filters, 3, padding=1)
        self.residuals = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(filters, filters, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(filters, filters, 3, padding=1),
            )
            for _ in range(2)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = nn.functional.max_pool2d(self.first(inputs), 3, stride=2, padding=1)
        for residual in self.residuals:
            outputs = outputs + residual(outputs)
        return outputs
