"""Sparse auto-encoder (TopK; Gao et al. 2024): more directions than units, of which few are active at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np
import torch

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.agent.bases import stored
from rlhf_ray.interpret.agent.bases.labels import Labels
from rlhf_ray.interpret.agent.bases.linear import halfway

UPDATES = 800
BATCH = 256
RATE = 3e-3


@dataclass(frozen=True)
class Sparse:
    """A `Basis` of sparse features. Scores are at least 0, with a mean square of 1, and at most ``active`` are above 0.

    Attributes:
        names: of the components.
        center: ``[size]``: the mean of the values that it was fitted to.
        patterns: ``[k, size]``: the decoder.
        filters: ``[k, size]``: the encoder.
        sources: ``[n, k]``: scores of the values that it was fitted to.
        active: components that may be active at a time.
    """

    names: Sequence[str]
    center: FloatArray
    patterns: FloatArray
    filters: FloatArray
    sources: FloatArray
    active: int
    kind: str = "sparse"

    def __len__(self) -> int:
        return len(self.patterns)

    @property
    def means(self) -> FloatArray:
        """Mean scores ``[k]`` of the values that it was fitted to."""
        return np.asarray(self.sources.mean(0))

    @property
    def midpoints(self) -> FloatArray:
        """Scores ``[k]`` halfway between the 5 % and the 95 % quantile."""
        return halfway(self.sources)

    def transform(self, values: FloatArray) -> FloatArray:
        """See `Basis.transform`."""
        scores = np.maximum((np.asarray(values, np.float64) - self.center) @ self.filters.T, 0.0)
        if len(self) > self.active:
            # By what each contributes to the values, not by the score: scores have scales of their own.
            contributions = scores * np.linalg.norm(self.patterns, axis=1)
            weakest = np.argsort(-contributions, axis=1, kind="stable")[:, self.active :]
            np.put_along_axis(scores, weakest, 0.0, 1)
        return scores

    def inverse(self, scores: FloatArray) -> FloatArray:
        """See `Basis.inverse`."""
        values: FloatArray = self.center + np.asarray(scores, np.float64) @ self.patterns
        return values

    def gradient(self, gradients: FloatArray) -> FloatArray:
        """See `Basis.gradient`."""
        by_scores: FloatArray = np.asarray(gradients, np.float64) @ self.patterns.T
        return by_scores

    def save(self, path: Path) -> None:
        """See `Basis.save`."""
        names = ("center", "patterns", "filters", "sources")
        arrays = {name: getattr(self, name) for name in names} | {"active": np.array(self.active)}
        stored.write(path, self.kind, self.names, arrays)

    @classmethod
    def load(cls, path: Path) -> Self:
        """See `Basis.load`."""
        _, names, arrays = stored.read(path)
        active = int(arrays["active"])
        return cls(names, arrays["center"], arrays["patterns"], arrays["filters"], arrays["sources"], active)


def fit(
    values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None, active: int | None = None
) -> Sparse:
    """Fit at most ``count`` features to ``values`` ``[n, size]``; features that are never active are dropped.

    Args:
        values: what to explain.
        count: number of features.
        seed: draws the start and the batches.
        labels: not used.
        active: features active at a time; default: an eighth of them, at least 2.
    """
    active = min(count, max(2, count // 8)) if active is None else active
    center = values.mean(0)
    scale = float(np.sqrt(((values - center) ** 2).mean()))
    if scale < 1e-9 or count < 1:
        empty = np.zeros((0, values.shape[1]))
        return Sparse([], center, empty, empty, np.zeros((len(values), 0)), active)
    decoder, encoder = _train((values - center) / scale, count, active, seed)
    # The decoder has rows of unit length, so that contributions are the scores here.
    whole = Sparse([""] * count, center, decoder, encoder, np.zeros((0, count)), active)
    sources = whole.transform(values)
    spread = np.sqrt((sources**2).mean(0))
    order = np.argsort(-spread, kind="stable")
    order = order[spread[order] > 1e-6 * scale]
    names = [f"sparse component {at}" for at in range(len(order))]
    kept = spread[order]
    return Sparse(
        names, center, decoder[order] * kept[:, None], encoder[order] / kept[:, None], sources[:, order] / kept, active
    )


def _train(values: FloatArray, count: int, active: int, seed: int) -> tuple[FloatArray, FloatArray]:
    """Return decoder and encoder ``[count, size]`` of normalised values."""
    rng = np.random.default_rng([seed, 0x5A])
    data = torch.as_tensor(values, dtype=torch.float32)
    # Features start at rows of the data, which few features stay dead from.
    start = torch.as_tensor(
        values[rng.integers(len(values), size=count)] + 0.1 * rng.normal(size=(count, values.shape[1]))
    )
    decoder = (start / start.norm(dim=1, keepdim=True).clamp_min(1e-6)).float().requires_grad_()
    encoder = decoder.detach().clone().requires_grad_()
    optimiser = torch.optim.Adam([decoder, encoder], RATE)
    for _ in range(UPDATES):
        batch = data[rng.integers(len(data), size=min(BATCH, len(data)))]
        scores = torch.relu(batch @ encoder.T)
        best = scores.topk(min(active, count), 1)
        kept = torch.zeros_like(scores).scatter(1, best.indices, best.values)
        loss = ((batch - kept @ decoder) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            decoder /= decoder.norm(dim=1, keepdim=True).clamp_min(1e-6)
    return decoder.detach().double().numpy(), encoder.detach().double().numpy()
