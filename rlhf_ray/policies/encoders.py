"""What policies make of observations: encoded images, whose convolutions reward networks share, and scaled vectors.

Vectors are scaled by their bounds, or by the running statistics of what was seen, which are part of a policy's weights.
"""

from __future__ import annotations

import math
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.spaces import formal_numbers

FEATURES = {"nature": 512, "impala": 256, "small": 64}
"""Size of each encoder's output, unless ``ppo.features`` says otherwise."""


def image_encoder(network: str, shape: tuple[int, ...], features: int | None) -> tuple[nn.Module, int]:
    """Build an encoder of images ``[n, channels, height, width]``, float, 0 to 255. Return it and the size of its output.

    Args:
        network: nature, impala or small.
        shape: of an image: height, width, channels.
        features: size of the output; None for the network's own.

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
    """Build the convolutions of nature or small, which are orthogonal, or of impala, from ``channels`` to a flat vector."""
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


LARGEST = 10.0
"""Largest absolute value of a normalised feature, as in baselines' VecNormalize."""
LEAST_VARIANCE = 1e-8


def symlog(numbers: Tensor) -> Tensor:
    """Return sign(x) log(1 + abs(x)): about x near 0, and a logarithm far from it."""
    return numbers.sign() * numbers.abs().log1p()


class RunningMoments(nn.Module):
    """Mean and variance of each feature over all that was seen so far.

    They are buffers: saved, sent and loaded with the policy's weights, and not trained.
    """

    def __init__(self, size: int):
        super().__init__()
        self.count: Tensor = nn.Buffer(torch.zeros(()))
        self.mean: Tensor = nn.Buffer(torch.zeros(size))
        self.squares: Tensor = nn.Buffer(torch.zeros(size))

    @property
    def spread(self) -> Tensor:
        """The standard deviation of each feature, at least 1e-4."""
        return (self.squares / self.count.clamp_min(1) + LEAST_VARIANCE).sqrt()

    @torch.no_grad()
    def observe(self, features: Tensor) -> None:
        """Count features ``[n, size]`` (Chan et al. 1979)."""
        new = features.to(self.mean.device, torch.float64)
        total = self.count + len(new)
        shift = new.mean(0) - self.mean
        self.squares += ((new - new.mean(0)) ** 2).sum(0) + shift**2 * self.count * len(new) / total
        self.mean += shift * len(new) / total
        self.count.copy_(total)


class ObservationStatistics(RunningMoments):
    """Normalises observations by the moments of each number, then of each number's symlog. Without any, they stay as they are.

    A number becomes the mean of two: itself by its deviation, and its symlog by its own, if that is below 1. Both keep their zero,
    if it is within a deviation of the mean, or get the nearest that is. So where most of what was seen is far away (CartPole's
    poles, after their fall), differences near zero still count.

    Attributes:
        symlogs: 1; or 0: numbers alone are normalised, to mean 0 and deviation 1, as in policies of other libraries.
    """

    def __init__(self, size: int):
        super().__init__(2 * size)
        self.symlogs: Tensor = nn.Buffer(torch.ones(()))

    def scaling(self) -> tuple[Tensor, Tensor]:
        """Return zero and unit ``[2 * size]`` of each number and symlog."""
        spread = self.spread
        zero = self.mean - self.symlogs * self.mean.clamp(-spread, spread)
        plain, logarithmic = spread.chunk(2)
        return zero, torch.cat([plain, logarithmic.clamp(max=1.0)])

    def forward(self, observations: Tensor) -> Tensor:
        """Normalise observations ``[n, size]``, limited to ±10."""
        zero, unit = self.scaling()
        numbers = torch.cat([observations, symlog(observations)], -1)
        plain, logarithmic = ((numbers - zero) / unit).clamp(-LARGEST, LARGEST).chunk(2, -1)
        return torch.where(self.count > 0, torch.lerp(plain, logarithmic, 0.5 * self.symlogs), observations)

    def observe(self, observations: Tensor) -> None:
        """Count observations ``[n, size]``."""
        observations = observations.to(torch.float64)
        super().observe(torch.cat([observations, symlog(observations)], -1))


class FormalNumbers(nn.Module):
    """The numbers of an observation whose declared bounds are only formal (`rlhf_ray.data.spaces`), by what was seen of them.

    Scales are powers of two, from 2 to 4 standard deviations, and zeros multiples of them: they stay the same while statistics
    move a little, as bounds do. (With mean and deviation as they are, an agent that learns from 24,000 steps got half as far.)
    """

    def __init__(self, numbers: Any):
        super().__init__()
        self.index: Tensor = nn.Buffer(torch.as_tensor(np.flatnonzero(numbers)), persistent=False)
        self.seen = RunningMoments(len(self.index))

    def forward(self, observations: Tensor, scaled: Tensor) -> Tensor:
        """Return ``scaled`` with these numbers scaled by what was seen; unchanged before anything was.

        Args:
            observations: ``[n, size]``.
            scaled: the same, scaled by the declared bounds.
        """
        numbers, count = observations[:, self.index], self.seen.count
        scale = 2.0 * torch.exp2(torch.ceil(torch.log2(self.seen.spread)))
        by_seen = (numbers / scale - torch.round(self.seen.mean / scale)).clamp(-LARGEST, LARGEST)
        # A negative count: as they are. A policy from elsewhere may take them so.
        numbers = torch.where(count > 0, by_seen, torch.where(count < 0, numbers, scaled[:, self.index]))
        return scaled.index_copy(1, self.index, numbers)

    def observe(self, observations: Tensor) -> None:
        """Count observations ``[n, size]``."""
        if self.seen.count >= 0:
            self.seen.observe(observations[:, self.index.to(observations.device)])


class TakesVectors(nn.Module):
    """The first step of policy networks on vectors: numbers with finite bounds are scaled to [-1, 1], others stay as they are.

    With ``normalize``, all are normalised by their running statistics. Without, those whose bounds are formal are scaled by
    what was seen.

    Attributes:
        statistics: of all numbers, with ``normalize``; otherwise None.
        formal: of those with formal bounds; None if there are none, or with ``normalize``.
    """

    def __init__(self) -> None:
        super().__init__()
        self.statistics: ObservationStatistics | None = None
        self.formal: FormalNumbers | None = None

    def take(self, space: gym.spaces.Box, *, normalize: bool) -> None:
        """Make the first step for a space."""
        middle, scale = bounds(space)
        self.middle: Tensor = nn.Buffer(torch.as_tensor(middle, dtype=torch.float32), persistent=False)
        self.scale: Tensor = nn.Buffer(torch.as_tensor(scale, dtype=torch.float32), persistent=False)
        numbers = formal_numbers(space)
        if normalize:
            self.statistics = ObservationStatistics(numbers.size)
        elif numbers.any():
            self.formal = FormalNumbers(numbers)

    def scaled(self, observations: Tensor) -> Tensor:
        """Return observations ``[n, …]`` as the layers take them, ``[n, size]``."""
        if self.statistics is not None:
            normalised: Tensor = self.statistics(observations.float().flatten(1))
            return normalised
        scaled = ((observations.float() - self.middle) / self.scale).flatten(1)
        return scaled if self.formal is None else self.formal(observations.float().flatten(1), scaled)

    @property
    def counts(self) -> bool:
        """Whether `observe` has an effect."""
        return self.statistics is not None or self.formal is not None

    def observe(self, observations: Tensor) -> None:
        """Count observations ``[n, …]`` in the statistics."""
        for numbers in (self.statistics, self.formal):
            if numbers is not None:
                numbers.observe(observations.flatten(1))


def bounds(space: gym.spaces.Box) -> tuple[Any, Any]:
    """Return middle and half width of each number: 0 and 1 where it is unbounded."""
    bounded = np.isfinite(space.low) & np.isfinite(space.high) & (space.high > space.low)
    low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
    with np.errstate(over="ignore"):
        middle, half = (low + high) / 2.0, (high - low) / 2.0
    most = np.finfo(np.float32).max
    return np.clip(middle, -most, most), np.minimum(half, most)
