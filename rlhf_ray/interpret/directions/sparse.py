"""Sparse codes by an auto-encoder (TopK; Gao et al. 2024): more directions than units, of which few are active at a time."""

from __future__ import annotations

import numpy as np
import torch

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.directions.directions import Directions, halfway, strongest
from rlhf_ray.interpret.directions.labels import Labels

UPDATES = 800
BATCH = 256
RATE = 3e-3


def fit_sparse(
    values: FloatArray, count: int, seed: int = 0, labels: Labels | None = None, active: int | None = None
) -> Directions:
    """Fit at most ``count`` features to ``values`` ``[n, size]``; features that are never active are dropped.

    Scores have a mean square of 1. Patterns are the decoder, filters the encoder.

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
    decoder: FloatArray = np.zeros((0, values.shape[1]))
    encoder = decoder
    if scale >= 1e-9 and count > 0:
        decoder, encoder = _train((values - center) / scale, count, active, seed)
    # The decoder has rows of unit length, so that contributions are the scores here.
    sources = strongest((values - center) @ encoder.T, decoder, active)
    spread = np.sqrt((sources**2).mean(0))
    order = np.argsort(-spread, kind="stable")
    order = order[spread[order] > 1e-6 * scale]
    names = [f"sparse component {number}" for number in range(len(order))]
    size, sources = spread[order, None], sources[:, order] / spread[order]
    return Directions(
        "sparse", names, center, decoder[order] * size, encoder[order] / size, sources, halfway(sources), active
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
        strongest_scores = torch.zeros_like(scores).scatter(1, best.indices, best.values)
        loss = ((batch - strongest_scores @ decoder) ** 2).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        with torch.no_grad():
            decoder /= decoder.norm(dim=1, keepdim=True).clamp_min(1e-6)
    return decoder.detach().double().numpy(), encoder.detach().double().numpy()
