"""The manifold: how far a made-up input is from the data. A reward's answer far from the data says little about the reward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.spatial.distance import cdist

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions

Frame = Literal["state", "next_state"]
FIELDS: dict[Frame, str] = {"state": "observations", "next_state": "next_observations"}
"""The field of `Transitions` that holds each frame."""

MOST = 2000
"""Steps of the data that inputs are compared with."""
PROJECTED = 256
"""Dimensions of the random projection. Distances between 2000 points keep within about 10 % (Johnson & Lindenstrauss 1984)."""
COMPONENTS = 32
"""Principal components of the density."""
QUANTILE = 0.99
"""Inputs farther from the data than this share of held-out data are off the manifold."""
LARGEST = 1000.0
"""Distances are cut off here: data that repeat themselves exactly have distance 0."""


@dataclass(frozen=True)
class Distance:
    """How far one input is from the data, in units of the 99th percentile of held-out data: above 1, fewer than 1 % are as far."""

    total_variation: float  # of the image; 0 for vectors
    blur: float  # total variation of the data's smoothest images (1st percentile) over that of the image; 0 for vectors
    neighbour: float  # distance to the nearest step of the data, after a random projection
    density: float  # minus the log density of a normal distribution on the data's principal components

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the input is off the manifold; empty if it is on it."""
        said = {
            f"total variation {self.total_variation:.1f} x the data's": self.total_variation,
            f"smoother than the data, total variation {_times(self.blur)} smaller": self.blur,
            f"nearest neighbour {_times(self.neighbour)} as far as the data's": self.neighbour,
            f"{_times(self.density)} as improbable as the data": self.density,
        }
        return tuple(reason for reason, ratio in said.items() if ratio > 1.0)

    @property
    def off(self) -> bool:
        """Whether the input is off the manifold."""
        return bool(self.reasons)


class Manifold:
    """What inputs look like in the data. Half of the episodes are the reference; the other half says how far real inputs are.

    Of a reward that sees only the next state, ``frames`` are only that. ``seed`` draws the halves and the projection.

    Attributes:
        images: whether the observations are images: uint8 ``[height, width, channels]``.
        mean_variation: mean total variation of the data's images; None for vectors.
        held_out_off: share of the held-out data that is off the manifold by its own measure; about 0.01 to 0.03.
    """

    def __init__(self, data: Transitions, frames: Sequence[Frame], seed: int = 0):
        rng = np.random.default_rng([seed, 0x3A7])
        reference, held_out = data.split(0.5, rng)
        if not len(held_out) or not len(reference):
            reference, held_out = data[: max(1, len(data) // 2)], data[len(data) // 2 :]
        reference, held_out = reference.sample(MOST, rng), held_out.sample(MOST, rng)
        self.frames = tuple(frames)
        self.images = data.observations.ndim == 4 and data.observations.dtype == np.uint8
        known = flat(reference, self.frames)
        self._centre, spread, size = known.mean(0), known.std(0), known.shape[1]
        # Images: pixels have one scale. Vectors: each feature has its own; constant ones count, with the typical scale.
        typical = float(spread[spread > 0].mean()) if (spread > 0).any() else 1.0
        self._scale = np.full(size, max(typical, 1e-6)) if self.images else np.where(spread > 1e-9, spread, typical)
        self._projection = np.eye(size, dtype=np.float32)
        if size > PROJECTED:
            self._projection = (rng.standard_normal((size, PROJECTED)) / np.sqrt(PROJECTED)).astype(np.float32)
        self._bank = self._project(reference)
        self._mean = self._bank.mean(0)
        _, singular, axes = np.linalg.svd(self._bank - self._mean, full_matrices=False)
        variances = singular**2 / max(1, len(self._bank) - 1)
        kept = max(1, min(COMPONENTS, int((variances > 1e-8 * max(variances[0], 1e-12)).sum())))
        self._axes, self._variances = axes[:kept], np.maximum(variances[:kept], 1e-9)
        self._rest = max(float(variances[kept:].sum()), 1e-3 * float(self._variances.mean()))
        real = self._project(held_out)
        length = float(np.median(np.linalg.norm(self._bank - self._mean, axis=1)))
        self._neighbour = _upper(cdist(real, self._bank).min(1), floor=1e-3 * length)
        self._density = _upper(self._improbability(real), floor=1e-6)
        self.mean_variation: float | None = None
        if self.images:
            self.mean_variation = float(self._variations(reference).max(0).mean())
            variations = self._variations(held_out)
            self._variation = _upper(variations.max(0), floor=1e-6)
            self._smoothest = float(np.quantile(variations.min(0), 1.0 - QUANTILE))
        self.held_out_off = float(np.mean([each.off for each in self.judge(held_out)]))

    def judge(self, steps: Transitions) -> list[Distance]:
        """Return the distance of each of ``steps``."""
        points = self._project(steps)
        near = np.minimum(cdist(points, self._bank).min(1) / self._neighbour, LARGEST)
        density = np.minimum(self._improbability(points) / self._density, LARGEST)
        rough = blur = np.zeros(len(steps))
        if self.images:
            variations = self._variations(steps)
            rough = variations.max(0) / self._variation
            blur = np.minimum(self._smoothest / np.maximum(variations.min(0), 1e-9), LARGEST)
        return [Distance(*map(float, row)) for row in zip(rough, blur, near, density, strict=True)]

    def _variations(self, steps: Transitions) -> FloatArray:
        """Return the total variation of each frame, ``[frames, n]``."""
        return np.stack([total_variation(of) for of in frames_of(steps, self.frames)])

    def _project(self, steps: Transitions) -> FloatArray:
        parts = [np.zeros((0, self._projection.shape[1]))]
        for start in range(0, len(steps), 256):
            standard = (flat(steps[start : start + 256], self.frames) - self._centre) / self._scale
            parts.append(standard.astype(np.float32) @ self._projection)
        return np.concatenate(parts).astype(np.float64)

    def _improbability(self, points: FloatArray) -> FloatArray:
        centred = points - self._mean
        inside = centred @ self._axes.T
        rest = np.maximum((centred**2).sum(1) - (inside**2).sum(1), 0.0)
        return np.asarray((inside**2 / self._variances).sum(1) + rest / self._rest)


def frames_of(steps: Transitions, frames: Sequence[Frame]) -> list[Array]:
    """Return the named observations of ``steps``."""
    return [getattr(steps, FIELDS[each]) for each in frames]


def flat(steps: Transitions, frames: Sequence[Frame]) -> FloatArray:
    """Return the named observations of ``steps`` as vectors beside each other, ``[n, size]`` float32."""
    return np.concatenate([of.reshape(len(of), -1).astype(np.float32) for of in frames_of(steps, frames)], 1)


def total_variation(images: Array) -> FloatArray:
    """Compute the total variation ``[n]`` of images: the mean difference of neighbouring pixels, down plus across.

    Images are ``[n, height, width, channels]``, uint8 (then scaled to [0, 1]) or floats.
    """
    scaled = images.astype(np.float64) / (255.0 if images.dtype == np.uint8 else 1.0)
    down, across = np.abs(np.diff(scaled, axis=1)), np.abs(np.diff(scaled, axis=2))
    return np.asarray(down.mean((1, 2, 3)) + across.mean((1, 2, 3)))


def _upper(values: FloatArray, floor: float) -> float:
    return max(float(np.quantile(values, QUANTILE)), floor, 1e-9) if len(values) else max(floor, 1e-9)


def _times(ratio: float) -> str:
    return f"over {LARGEST:.0f} x" if ratio >= LARGEST else f"{ratio:.1f} x"
