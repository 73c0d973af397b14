"""Probes: can a concept be read off a layer? Beside the same network untrained, the mean, and shuffled labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from scipy.linalg import eigh
from torch import nn

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.layers import Layer
from rlhf_ray.reward.functions import RewardFunction

Kind = Literal["linear", "mlp"]

MOST = 1200
"""Steps that probes are fitted to and tested on, together."""
PENALTIES = np.logspace(-3, 5, 17)
LARGEST_COMPONENTS = 64
MLP_STEPS = 200


@dataclass(frozen=True)
class Probe:
    """How well a concept can be read off a layer, as R² on episodes that the probe was not fitted to.

    All figures are shares of the concept's variance (R²): 0 is the constant prediction of the mean, by definition, and 1 is exact.
    Values below 0 are worse than the mean.

    Attributes:
        concept: the concept.
        layer: the layer.
        kind: linear (ridge regression) or mlp.
        trained: R² from the trained network's activations, the mean over splits.
        untrained: R² from the same network with new random weights; None if it has no weights to draw.
        shuffled: R² from the trained network when the labels are shuffled.
        spread: standard deviation of ``trained`` over splits.
    """

    concept: str
    layer: str
    kind: Kind
    trained: float
    untrained: float | None
    shuffled: float
    spread: float

    @property
    def gain(self) -> float | None:
        """What training added: trained minus untrained, each at least 0; None without an untrained network."""
        return None if self.untrained is None else max(self.trained, 0.0) - max(self.untrained, 0.0)


def concepts_of(data: Transitions) -> dict[str, FloatArray]:
    """Return what may be known about each step, ``[n]`` each: true reward, end of episode, and the environment's own state.

    Concepts that don't vary, or that are unknown for some steps, are left out. Arrays become one concept per element, at most 8.
    """
    found: dict[str, Array] = {"true reward": data.rewards, "done": data.terminated}
    for name, values in data.columns.items():
        if not name.startswith("state.") or values.dtype.kind not in "biuf":
            continue
        flat = values.reshape(len(values), -1)
        called = name.removeprefix("state.")
        if flat.shape[1] == 1:
            found[called] = flat[:, 0]
        else:
            found |= {f"{called}[{at}]": flat[:, at] for at in range(min(8, flat.shape[1]))}
    numbers = {name: np.asarray(values, np.float64) for name, values in found.items()}
    return {name: values for name, values in numbers.items() if np.isfinite(values).all() and values.std() > 1e-9}


def features(reward: RewardFunction, layer: Layer, data: Transitions) -> FloatArray:
    """Return the layer's activations as vectors ``[n, channels]``: those of images are averaged over positions.

    With the positions kept, a probe of an untrained convolution finds every object, because the image itself is still there.
    """
    values = layer.activations(reward, data)
    pooled: FloatArray = values.reshape(*values.shape[:2], -1).mean(2).astype(np.float64)
    return pooled


def probe(
    reward: RewardFunction,
    data: Transitions,
    layer: Layer,
    concepts: dict[str, FloatArray] | None = None,
    kind: Kind = "linear",
    seed: int = 0,
    splits: int = 3,
    most: int = MOST,
) -> list[Probe]:
    """Probe a layer for each of ``concepts``.

    Args:
        reward: the reward.
        data: steps of several episodes.
        layer: the layer.
        concepts: what to look for, ``[n]`` each; None: `concepts_of`.
        kind: linear or mlp.
        seed: draws splits, untrained networks, shuffles and MLP starts.
        splits: splits by episode; figures are means over them. Each has an untrained network and a shuffle of its own.
        most: steps used.

    Raises:
        ValueError: ``data`` has fewer than two episodes.
    """
    rng = np.random.default_rng([seed, 0x960])
    concepts = concepts_of(data) if concepts is None else concepts
    rows = np.arange(len(data)) if len(data) <= most else np.sort(rng.choice(len(data), most, replace=False))
    some = data[rows]
    if len(np.unique(some.episodes)) < 2:
        raise ValueError("Probes need at least two episodes: they are tested on episodes that they were not fitted to.")
    names = list(concepts)
    labels = np.stack([concepts[name][rows] for name in names], 1)
    trained, untrained, shuffled = [], [], []
    inputs = features(reward, layer, some)
    for split in range(splits):
        fitted, test = _split(some.episodes, rng)
        trained.append(scores(inputs, labels, some.episodes, fitted, test, kind, rng))
        shuffled.append(scores(inputs, labels[rng.permutation(len(labels))], some.episodes, fitted, test, kind, rng))
        fresh = reward.fresh(seed + 1000 + split)
        if fresh is not None:
            untrained.append(scores(features(fresh, layer, some), labels, some.episodes, fitted, test, kind, rng))
    means = [np.mean(of, 0) if of else None for of in (trained, untrained, shuffled)]
    return [
        Probe(
            name,
            layer.name,
            kind,
            float(np.mean(trained, 0)[at]),
            None if means[1] is None else float(means[1][at]),
            float(np.mean(shuffled, 0)[at]),
            float(np.std(trained, 0)[at]),
        )
        for at, name in enumerate(names)
    ]


def scores(
    inputs: FloatArray,
    labels: FloatArray,
    episodes: IntArray,
    fitted: IntArray,
    test: IntArray,
    kind: Kind,
    rng: np.random.Generator,
) -> FloatArray:
    """Fit a probe and return the R² of each label on ``test``: 1 minus its squared error over that of the mean's prediction.

    Args:
        inputs: ``[n, features]``.
        labels: ``[n, labels]``.
        episodes: ``[n]``: the penalty is chosen on episodes of their own.
        fitted: rows to fit to.
        test: rows to predict.
        kind: linear or mlp.
        rng: draws.
    """
    x, y = inputs[fitted], labels[fitted]
    inner, validation = _split(episodes[fitted], rng)
    if kind == "linear":
        errors = ((y[validation] - _ridge(x[inner], y[inner], x[validation], PENALTIES)) ** 2).mean(1)
        best = PENALTIES[errors.argmin(0)]  # one penalty for each label
        predicted = _ridge(x, y, inputs[test], best)[np.arange(len(best)), :, np.arange(len(best))].T
    else:
        predicted = _mlp(x, y, inputs[test], inner, validation, int(rng.integers(2**31)))
    truth = labels[test]
    left, total = ((truth - predicted) ** 2).sum(0), ((truth - y.mean(0)) ** 2).sum(0)
    return np.asarray(np.where(total > 1e-12, 1.0 - left / np.maximum(total, 1e-12), 0.0))


def direction(inputs: FloatArray, labels: FloatArray, penalty: float = 10.0) -> FloatArray:
    """Return the unit vector along which ridge regression reads ``labels`` ``[n]`` off ``inputs`` ``[n, features]``."""
    spread = np.where(inputs.std(0) > 1e-9, inputs.std(0), 1.0)
    standard = (inputs - inputs.mean(0)) / spread
    gram = standard.T @ standard + penalty * np.eye(standard.shape[1])
    found = np.linalg.solve(gram, standard.T @ (labels - labels.mean())) / spread
    return np.asarray(found / max(float(np.linalg.norm(found)), 1e-12))


def _split(episodes: IntArray, rng: np.random.Generator) -> tuple[IntArray, IntArray]:
    """Return rows of 70 % of the episodes and of the others; of halves of the rows if there is one episode."""
    names = np.unique(episodes)
    if len(names) < 2:
        rows = np.arange(len(episodes))
        return rows[: len(rows) // 2], rows[len(rows) // 2 :]
    kept = rng.permutation(names)[: int(np.clip(round(0.7 * len(names)), 1, len(names) - 1))]
    mask = np.isin(episodes, kept)
    return np.flatnonzero(mask), np.flatnonzero(~mask)


def _ridge(x: FloatArray, y: FloatArray, new: FloatArray, penalties: Sequence[float] | FloatArray) -> FloatArray:
    """Predict ``new`` by ridge regression with each penalty: ``[penalties, n, labels]``. In the smaller of both dimensions."""
    mean, spread = x.mean(0), x.std(0)
    kept = spread > 1e-9
    if not kept.any():
        return np.broadcast_to(y.mean(0), (len(penalties), len(new), y.shape[1])).copy()
    x, new = ((of[:, kept] - mean[kept]) / spread[kept] for of in (x, new))
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
    inputs, unseen = (torch.as_tensor(of / scale).float() for of in (small, small_new))
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
