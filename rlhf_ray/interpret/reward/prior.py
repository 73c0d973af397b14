"""A small generative prior: a convolutional autoencoder of the images in the data, so that made-up images consist of real parts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.manifold import Frame, frames_of

CODE = 8
"""Channels of a code."""
WIDTH = 32
LARGEST = 96
"""Larger images are learned at this size and enlarged."""
CROP = 32
"""The networks see crops of this size; being convolutional, they then work on whole images."""
MOST = 2000
"""Images that it is fitted to."""


class Prior(nn.Module):
    """A convolutional variational autoencoder (Kingma & Welling 2014) of the frames that a reward sees, as one image.

    A code is a small image. Each of its pixels stands for a patch of the data, so that what it decodes to is sharp after few
    updates; how patches go together is left to a normal distribution of whole codes (`improbability`).

    Args:
        size: height and width of the images.
        channels: channels of the images, of all frames together.

    Attributes:
        explained: share of the held-out images' variance that the prior reproduces. Below 0.3, its images say little.
    """

    def __init__(self, size: tuple[int, int], channels: int):
        super().__init__()
        self.size = size
        self.small = (min(size[0], LARGEST), min(size[1], LARGEST))
        self.patch = 2 if min(size) < 32 else 4
        unfolded = channels * self.patch**2
        self.encoder = nn.Sequential(
            nn.Conv2d(unfolded, WIDTH, 3, 1, 1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(WIDTH, WIDTH, 3, 2, 1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(WIDTH, 2 * CODE, 1),
        )
        self.decoder = nn.Sequential(
            nn.Conv2d(CODE, WIDTH, 3, 1, 1),
            nn.LeakyReLU(0.1),
            nn.Upsample(scale_factor=2),
            nn.Conv2d(WIDTH, WIDTH, 3, 1, 1),
            nn.LeakyReLU(0.1),
            nn.Conv2d(WIDTH, unfolded, 1),
        )
        self.explained = 0.0
        self._mean = torch.zeros(1)
        self._inverse = torch.eye(1)
        self._typical = 1.0

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Encode images ``[n, height, width, channels]`` in [0, 1]: mean and log standard deviation of their codes."""
        return self.encode_small(self.shrink(images))

    def encode_small(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """As `encode`, of images ``[n, channels, height, width]`` at the prior's own size, or crops of them."""
        step = 2 * self.patch
        down, across = (-images.shape[2]) % step, (-images.shape[3]) % step
        padded = nn.functional.pad(images, (0, across, 0, down), mode="replicate")
        mean, log_std = self.encoder(nn.functional.pixel_unshuffle(padded, self.patch)).chunk(2, 1)
        return mean, log_std.clamp(-6.0, 2.0)

    def decode_small(self, codes: Tensor, size: Sequence[int]) -> Tensor:
        """Decode to ``[n, channels, height, width]`` in [0, 1] at the prior's own size (or that of a crop), ``size``."""
        images = torch.sigmoid(nn.functional.pixel_shuffle(self.decoder(codes), self.patch))
        return images[:, :, : size[0], : size[1]]

    def forward(self, codes: Tensor) -> Tensor:
        """Decode ``[n, CODE, rows, columns]`` to images ``[n, height, width, channels]`` in [0, 1]."""
        images = self.decode_small(codes, self.small)
        if self.small != self.size:
            images = nn.functional.interpolate(images, self.size, mode="bilinear", align_corners=False)
        return images.permute(0, 2, 3, 1)

    def improbability(self, codes: Tensor) -> Tensor:
        """Return the Mahalanobis distance of each code from the data's, in units of the data's 95th percentile, ``[n]``."""
        centred = codes.flatten(1) - self._mean
        return ((centred @ self._inverse) * centred).sum(1).clamp_min(1e-12).sqrt() / self._typical

    def shrink(self, images: Tensor) -> Tensor:
        """Return ``[n, height, width, channels]`` as ``[n, channels, height, width]`` at the prior's own size."""
        images = images.permute(0, 3, 1, 2)
        return images if self.small == self.size else nn.functional.adaptive_avg_pool2d(images, self.small)

    def start_at(self, colour: Tensor) -> None:
        """Make ``colour`` ``[channels]``, the data's mean, what the untrained prior draws everywhere."""
        last = self.decoder[-1]
        assert isinstance(last, nn.Conv2d)
        assert last.bias is not None
        with torch.no_grad():
            last.weight.mul_(0.1)
            last.bias.copy_(torch.logit(colour.clamp(0.01, 0.99)).repeat_interleave(self.patch**2))

    def fit_codes(self, codes: Tensor) -> None:
        """Fit the normal distribution of whole codes; its covariance is shrunk towards its diagonal's mean."""
        flat = codes.flatten(1)
        self._mean = flat.mean(0)
        centred = flat - self._mean
        covariance = centred.T @ centred / len(flat)
        average = covariance.diagonal().mean().clamp_min(1e-9)
        self._inverse = torch.linalg.inv(0.9 * covariance + 0.1 * average * torch.eye(len(covariance)))
        self._typical = 1.0
        self._typical = float(torch.quantile(self.improbability(codes), 0.95))


def fit_prior(data: Transitions, frames: Sequence[Frame], seed: int = 0, steps: int = 400, batch: int = 32) -> Prior:
    """Fit a prior to the images of ``data``.

    Pixels count by the inverse of their variance: otherwise small objects, which a reward is often about, are left out.

    Args:
        data: steps with uint8 images.
        frames: the frames, which become one image of all their channels.
        seed: draws weights and batches.
        steps: gradient steps.
        batch: images per gradient step.
    """
    rng = np.random.default_rng([seed, 0x9F1])
    held_out = data
    if len(np.unique(data.episodes)) > 1:
        data, held_out = data.split(0.1, rng)
    data, held_out = data.sample(MOST, rng), held_out.sample(256, rng)
    unseen = joined(held_out, frames).float() / 255.0
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        prior = Prior((unseen.shape[1], unseen.shape[2]), unseen.shape[3])
    images = prior.shrink(joined(data, frames).float() / 255.0).contiguous()
    prior.start_at(images.mean((0, 2, 3)))
    variance = images.var(0, unbiased=False)
    weight = 1.0 / (variance + 0.5 * variance.mean() + 1e-6)
    weight = weight / (weight * variance).mean().clamp_min(1e-6)
    crop = [min(CROP, side) for side in prior.small]
    last = [side - size for side, size in zip(prior.small, crop, strict=True)]
    optimiser = torch.optim.Adam(prior.parameters(), 5e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 1e-2, total_steps=steps)
    for _ in range(steps):
        at = torch.randint(len(images), (batch,), generator=generator)
        top, left = (int(torch.randint(most + 1, (1,), generator=generator)) for most in last)
        window = (..., slice(top, top + crop[0]), slice(left, left + crop[1]))
        chosen = images[at][window]
        mean, log_std = prior.encode_small(chosen)
        codes = mean + log_std.exp() * torch.randn(mean.shape, generator=generator)
        error = (weight[window] * (prior.decode_small(codes, crop) - chosen) ** 2).mean()
        divergence = 0.5 * (mean**2 + (2 * log_std).exp() - 1.0 - 2 * log_std).mean()
        loss = error + 0.02 * divergence
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    prior.eval().requires_grad_(False)
    prior.fit_codes(torch.cat([prior.encode_small(part)[0] for part in torch.split(images, 256)]))
    average = joined(data, frames).float().mean(0) / 255.0
    errors = ((prior(prior.encode(unseen)[0]) - unseen) ** 2).sum()
    prior.explained = float(1.0 - errors / ((unseen - average) ** 2).sum().clamp_min(1e-9))
    return prior


def joined(steps: Transitions, frames: Sequence[Frame]) -> Tensor:
    """Return the frames of ``steps`` as images of all their channels, ``[n, height, width, frames * channels]``."""
    return torch.as_tensor(np.concatenate(frames_of(steps, frames), -1))
