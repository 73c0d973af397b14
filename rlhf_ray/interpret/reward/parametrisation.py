"""How an optimiser sees inputs: images as pixels, as a Fourier spectrum or as codes of a prior; random transformations."""

from __future__ import annotations

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn


class Parametrisation(Protocol):
    """Inputs as a function of parameters that an optimiser can move."""

    parameters: list[Tensor]

    def images(self) -> Tensor:
        """Return ``[n, height, width, channels]`` in [0, 1]."""
        ...

    def penalty(self) -> Tensor:
        """Return a penalty of each image, ``[n]``."""
        ...


class Pixels:
    """Each pixel is a parameter, through a sigmoid.

    Args:
        start: ``[n, height, width, channels]`` in [0, 1].
    """

    def __init__(self, start: Tensor):
        self._logits = torch.logit(start.clamp(0.02, 0.98)).requires_grad_()
        self.parameters = [self._logits]

    def images(self) -> Tensor:
        """Return ``[n, height, width, channels]`` in [0, 1]."""
        return torch.sigmoid(self._logits)

    def penalty(self) -> Tensor:
        """No penalty."""
        return self._logits.new_zeros(len(self._logits))


class Fourier:
    """The spectrum is the parameter, its frequencies scaled by their inverse: steps change large shapes first.

    After Olah, Mordvintsev and Schubert, "Feature Visualization", Distill 2017 ("preconditioning"). Any size and number of
    channels, each channel on its own.

    Args:
        start: ``[n, height, width, channels]`` in [0, 1].
    """

    def __init__(self, start: Tensor):
        _, height, width, _ = start.shape
        self._size = (height, width)
        down, across = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
        frequency = torch.sqrt(down**2 + across**2).clamp_min(1.0 / max(height, width))
        self._scale = (1.0 / frequency)[..., None] / max(height, width) ** 0.5
        logits = torch.logit(start.clamp(0.02, 0.98))
        spectrum = torch.fft.rfft2(logits, dim=(1, 2), norm="ortho") / self._scale
        self._spectrum = torch.view_as_real(spectrum).contiguous().requires_grad_()
        self.parameters = [self._spectrum]

    def images(self) -> Tensor:
        """Return ``[n, height, width, channels]`` in [0, 1]."""
        spectrum = torch.view_as_complex(self._spectrum) * self._scale
        return torch.sigmoid(torch.fft.irfft2(spectrum, s=self._size, dim=(1, 2), norm="ortho"))

    def penalty(self) -> Tensor:
        """No penalty."""
        return self._spectrum.new_zeros(len(self._spectrum))


class Decoded:
    """The code of a generative prior is the parameter; codes longer than the data's are penalised.

    Args:
        decode: from codes to ``[n, height, width, channels]`` in [0, 1].
        start: codes ``[n, size]``.
        longest: length of the data's codes (a high quantile).
    """

    def __init__(self, decode: nn.Module, start: Tensor, longest: float):
        self._decode, self._longest = decode, longest
        self._codes = start.clone().requires_grad_()
        self.parameters = [self._codes]

    def images(self) -> Tensor:
        """Return ``[n, height, width, channels]`` in [0, 1]."""
        found: Tensor = self._decode(self._codes)
        return found

    def penalty(self) -> Tensor:
        """Return how much longer than the data's each code is, ``[n]``."""
        return 10.0 * (self._codes.norm(dim=1) / max(self._longest, 1e-6) - 1.0).clamp_min(0.0)


class Transformation:
    """Random shift, scale and rotation, anew at each call: what survives them is no pattern of single pixels.

    Args:
        jitter: largest shift in pixels.
        scale: largest relative change of size.
        rotation: largest rotation, degrees.
        generator: draws them.
    """

    def __init__(self, jitter: float, scale: float, rotation: float, generator: torch.Generator):
        self._jitter, self._scale, self._rotation = jitter, scale, rotation
        self._generator = generator

    def __call__(self, images: Tensor) -> Tensor:
        """Transform each of ``images`` ``[n, height, width, channels]``, all its channels alike. The border is repeated."""
        if not (self._jitter or self._scale or self._rotation):
            return images
        n, height, width, _ = images.shape
        drawn = torch.rand(n, 4, generator=self._generator) * 2.0 - 1.0
        angle, size = drawn[:, 0] * np.radians(self._rotation), 1.0 + drawn[:, 1] * self._scale
        across, down = (2.0 * self._jitter * drawn[:, axis] for axis in (2, 3))
        cos, sin = torch.cos(angle) * size, torch.sin(angle) * size
        theta = torch.stack(
            [
                torch.stack([cos, -sin * height / width, across / width], 1),
                torch.stack([sin * width / height, cos, down / height], 1),
            ],
            1,
        )
        grid = nn.functional.affine_grid(theta, [n, 1, height, width], align_corners=False)
        moved = nn.functional.grid_sample(images.permute(0, 3, 1, 2), grid, padding_mode="border", align_corners=False)
        found: Tensor = moved.permute(0, 2, 3, 1)
        return found


def variation(images: Tensor) -> Tensor:
    """Compute the total variation of each of ``images`` ``[n, height, width, channels]``, as `manifold.total_variation`."""
    down = (images[:, 1:] - images[:, :-1]).abs().mean((1, 2, 3))
    across = (images[:, :, 1:] - images[:, :, :-1]).abs().mean((1, 2, 3))
    return down + across
