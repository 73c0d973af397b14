"""Probes: how well numbers can be read off vectors, on groups of rows that nothing was fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from scipy.linalg import eigh
from torch import nn

from rlhf_ray.data.arrays import FloatArray, IntArray

Kind = Literal["linear", "mlp"]

PENALTIES = np.logspace(-3, 5, 17)
LARGEST_COMPONENTS = 64
MLP_STEPS = 200
FARTHEST = 10.0
"""Standard deviations from the mean at which values are clipped: a unit that is nearly always off must not decide a prediction."""
VALIDATION = 3
"""One of so many parts of the groups chooses the penalty, or when the MLP stops."""


def held_out(groups: IntArray, folds: int, rng: np.random.Generator) -> list[tuple[IntArray, IntArray]]:
    """Return, for each fold, rows to fit to and rows of other groups to test on; halves of the rows if there is one group."""
    names = rng.permutation(np.unique(groups))
    if len(names) < 2:
        half = len(groups) // 2
        return [(np.arange(half), np.arange(half, len(groups)))] if half else []
    splits: list[tuple[IntArray, IntArray]] = []
    for part in np.array_split(names, min(folds, len(names))):
        held = np.isin(groups, part)
        splits.append((np.flatnonzero(~held), np.flatnonzero(held)))
    return splits


def scores(
    inputs: FloatArray,
    labels: FloatArray,
    groups: IntArray,
    fitted: IntArray,
    test: IntArray,
    kind: Kind,
    rng: np.random.Generator,
) -> FloatArray:
    """Fit a probe and return the R² of each label on ``test``: 1 minus its squared error over that of the mean's prediction.

    Args:
        inputs: ``[n, features]``.
        labels: ``[n, labels]``.
        groups: ``[n]``, episodes or levels: the penalty is chosen on groups of their own.
        fitted: rows to fit to.
        test: rows to predict.
        kind: linear or mlp.
        rng: draws the groups, and the MLP's start.
    """
    x, y = inputs[fitted], labels[fitted]
    inner, validation = held_out(groups[fitted], VALIDATION, rng)[0]
    if kind == "linear":
        errors = ((y[validation] - _ridge(x[inner], y[inner], x[validation], PENALTIES)) ** 2).mean(1)
        best = PENALTIES[errors.argmin(0)]  # one penalty for each label
        predicted = _ridge(x, y, inputs[test], best)[np.arange(len(best)), :, np.arange(len(best))].T
    else:
        predicted = _mlp(x, y, inputs[test], inner, validation, int(rng.integers(2**31)))
    truth = labels[test]
    left, total = ((truth - predicted) ** 2).sum(0), ((truth - y.mean(0)) ** 2).sum(0)
    return np.asarray(np.where(total > 1e-12, 1.0 - left / np.maximum(total, 1e-12), 0.0))


def _ridge(x: FloatArray, y: FloatArray, new: FloatArray, penalties: Sequence[float] | FloatArray) -> FloatArray:
    """Predict ``new`` by ridge regression with each penalty: ``[penalties, n, labels]``. In the smaller of both dimensions."""
    mean, spread = x.mean(0), x.std(0)
    varies = spread > 1e-9
    if not varies.any():
        return np.broadcast_to(y.mean(0), (len(penalties), len(new), y.shape[1])).copy()
    x, new = (np.clip((rows[:, varies] - mean[varies]) / spread[varies], -FARTHEST, FARTHEST) for rows in (x, new))
    centred = y - y.mean(0)
    dual = len(x) < x.shape[1]
    values, vectors = eigh(x @ x.T if dual else x.T @ x)
    values = np.maximum(values, 0.0)
    left = (new @ x.T if dual else new) @ vectors
    right = vectors.T @ (centred if dual else x.T @ centred)
    return np.stack([left @ (right / (values + penalty)[:, None]) + y.mean(0) for penalty in penalties])


def _mlp(x: FloatArray, y: FloatArray, new: FloatArray, inner: IntArray, validation: IntArray, seed: int) -> FloatArray:
    """Predict ``new`` by a small MLP on principal components, stopped early on episodes of their own."""
    mean = x.mean(0)
    axes = np.linalg.svd(x - mean, full_matrices=False)[2][:LARGEST_COMPONENTS]
    small, small_new = (x - mean) @ axes.T, (new - mean) @ axes.T
    scale = max(float(small.std()), 1e-9)
    spread = np.where(y.std(0) > 1e-9, y.std(0), 1.0)
    inputs, unseen = (torch.as_tensor(rows / scale).float() for rows in (small, small_new))
    targets = torch.as_tensor((y - y.mean(0)) / spread).float()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(inputs.shape[1], 64), nn.ReLU(), nn.Linear(64, targets.shape[1]))
    optimiser = torch.optim.AdamW(net.parameters(), 1e-2, weight_decay=0.05)
    best = torch.full((targets.shape[1],), float("inf"))
    predicted = torch.zeros(len(unseen), targets.shape[1])
    for step in range(MLP_STEPS):
        loss = ((net(inputs[inner]) - targets[inner]) ** 2).mean(0).sum()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 5 == 4:
            with torch.no_grad():
                errors = ((net(inputs[validation]) - targets[validation]) ** 2).mean(0)
                better = errors < best
                best = torch.where(better, errors, best)
                predicted = torch.where(better, net(unseen), predicted)
    return np.asarray(predicted.double().numpy() * spread + y.mean(0))
