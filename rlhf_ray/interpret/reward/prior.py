"""A small generative prior: a variational autoencoder of the images in the data, so that made-up images look like real ones."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.manifold import Frame, frames_of

CODE = 32
"""Size of a code."""
LARGEST = 64
"""Larger images are learned at this size and enlarged."""
MOST = 3000
"""Images that it is fitted to."""


class Prior(nn.Module):
    """A variational autoencoder (Kingma & Welling 2014) of the frames that a reward sees, as one image of all their channels.

    Args:
        mean: mean image ``[height, width, channels]`` in [0, 1]; the decoder learns the difference from it.

    Attributes:
        longest: 95th percentile of the length of the data's codes.
        explained: share of the held-out images' variance that the prior reproduces. Below 0.3, its images say little.
    """

    def __init__(self, mean: Tensor):
        super().__init__()
        height, width, channels = mean.shape
        self.size = (height, width)
        sizes = [(min(height, LARGEST), min(width, LARGEST))]
        while min(sizes[-1]) > 5 and len(sizes) < 5:
            sizes.append(((sizes[-1][0] + 1) // 2, (sizes[-1][1] + 1) // 2))
        self._sizes = sizes
        widths = [channels, 16, 32, 32, 32][: len(sizes)]
        small = widths[-1] * sizes[-1][0] * sizes[-1][1]
        down = [nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(widths)]
        self.down = nn.ModuleList(down)
        self.to_code = nn.Linear(small, 2 * CODE)
        self.from_code = nn.Linear(CODE, small)
        up = [nn.Conv2d(b, max(a, 8) if i else a, 3, 1, 1) for i, (a, b) in enumerate(itertools.pairwise(widths))]
        self.up = nn.ModuleList(reversed(up))
        self.register_buffer("mean", torch.logit(self._shrink(mean[None]).clamp(0.01, 0.99)))
        self.longest, self.explained = 1.0, 0.0

    mean: Tensor

    def encode(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Encode ``[n, height, width, channels]`` in [0, 1]: mean and log standard deviation of the codes, ``[n, CODE]``."""
        hidden = self._shrink(images) - torch.sigmoid(self.mean)
        for layer in self.down:
            hidden = nn.functional.leaky_relu(layer(hidden), 0.1)
        mean, log_std = self.to_code(hidden.flatten(1)).chunk(2, 1)
        return mean, log_std.clamp(-6.0, 2.0)

    def logits(self, codes: Tensor) -> Tensor:
        """Decode ``[n, CODE]`` to logits ``[n, channels, height, width]`` at the prior's own size."""
        hidden = self.from_code(codes).view(len(codes), -1, *self._sizes[-1])
        for layer, size in zip(self.up, reversed(self._sizes[:-1]), strict=True):
            hidden = nn.functional.interpolate(nn.functional.leaky_relu(hidden, 0.1), size)
            hidden = layer(hidden)
        found: Tensor = hidden + self.mean
        return found

    def forward(self, codes: Tensor) -> Tensor:
        """Decode ``[n, CODE]`` to images ``[n, height, width, channels]`` in [0, 1]."""
        images = torch.sigmoid(self.logits(codes))
        if images.shape[2:] != self.size:
            images = nn.functional.interpolate(images, self.size, mode="bilinear", align_corners=False)
        return images.permute(0, 2, 3, 1)

    def _shrink(self, images: Tensor) -> Tensor:
        images = images.permute(0, 3, 1, 2)
        if tuple(images.shape[2:]) != self._sizes[0]:
            images = nn.functional.adaptive_avg_pool2d(images, self._sizes[0])
        return images


def fit_prior(data: Transitions, frames: Sequence[Frame], seed: int = 0, steps: int = 300, batch: int = 32) -> Prior:
    """Fit a prior to the images of ``data``.

    Pixels count by the inverse of their spread: otherwise small objects, which a reward is often about, are left out.

    Args:
        data: steps with images in [0, 255].
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
    images, unseen = (joined(each, frames) for each in (data, held_out))
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        prior = Prior(images.float().mean(0) / 255.0)
    spread = prior._shrink(images.float() / 255.0).std(0, unbiased=False)
    weight = 1.0 / (spread**2 + 0.1 * float((spread**2).mean()) + 1e-6)
    weight = weight / weight.mean()
    typical = float((weight * spread**2).mean()) + 1e-6
    optimiser = torch.optim.Adam(prior.parameters(), 2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=steps)
    for _ in range(steps):
        at = torch.randint(len(images), (batch,), generator=generator)
        chosen = images[at].float() / 255.0
        mean, log_std = prior.encode(chosen)
        codes = mean + log_std.exp() * torch.randn(mean.shape, generator=generator)
        error = (weight * (torch.sigmoid(prior.logits(codes)) - prior._shrink(chosen)) ** 2).mean((1, 2, 3)) / typical
        divergence = 0.5 * (mean**2 + (2 * log_std).exp() - 1.0 - 2 * log_std).sum(1)
        loss = (error + 1e-3 * divergence).mean()
        optimiser.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        schedule.step()
    prior.eval().requires_grad_(False)
    real = unseen.float() / 255.0
    codes = prior.encode(real)[0]
    errors = ((prior(codes) - real) ** 2).sum()
    prior.explained = float(1.0 - errors / ((real - real.mean(0)) ** 2).sum().clamp_min(1e-9))
    prior.longest = float(torch.quantile(codes.norm(dim=1), 0.95))
    return prior


def joined(steps: Transitions, frames: Sequence[Frame]) -> Tensor:
    """Return the frames of ``steps`` as images of all their channels, ``[n, height, width, frames * channels]``."""
    return torch.as_tensor(np.concatenate(frames_of(steps, frames), -1))
