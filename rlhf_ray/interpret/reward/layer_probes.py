"""Probes of a reward's layers: can a concept be read off? Beside the same network untrained, the mean, and shuffled labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.directions.probes import Kind, held_out, scores
from rlhf_ray.interpret.reward.layers import Layer
from rlhf_ray.reward.functions import RewardFunction

MOST = 1200
"""Steps that probes are fitted to and tested on, together."""


@dataclass(frozen=True)
class LayerProbe:
    """How well a concept can be read off a layer, as R² on episodes that the probe was not fitted to.

    All figures are shares of the concept's variance (R²): 0 is the constant prediction of the mean, by definition, and 1 is exact.
    Values below 0 are worse than the mean.

    Attributes:
        concept: the concept.
        layer: the layer.
        kind: linear (ridge regression) or mlp.
        trained: R² from the trained network's activations, the mean over folds.
        untrained: R² from the same network with new random weights; None if it has no weights to draw.
        shuffled: R² from the trained network when the labels are shuffled.
        spread: standard deviation of ``trained`` over folds.
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
    concepts: dict[str, Array] = {"true reward": data.rewards, "done": data.terminated}
    for name, values in data.columns.items():
        if not name.startswith("state.") or values.dtype.kind not in "biuf":
            continue
        flat = values.reshape(len(values), -1)
        called = name.removeprefix("state.")
        if flat.shape[1] == 1:
            concepts[called] = flat[:, 0]
        else:
            concepts |= {f"{called}[{element}]": flat[:, element] for element in range(min(8, flat.shape[1]))}
    numbers = {name: np.asarray(values, np.float64) for name, values in concepts.items()}
    return {name: values for name, values in numbers.items() if np.isfinite(values).all() and values.std() > 1e-9}


def features(reward: RewardFunction, layer: Layer, data: Transitions) -> FloatArray:
    """Return the layer's activations as vectors ``[n, channels]``: those of images are averaged over positions.

    With the positions kept, a probe of an untrained convolution finds every object, because the image itself is still there.
    """
    values = layer.activations(reward, data)
    pooled: FloatArray = values.reshape(*values.shape[:2], -1).mean(2).astype(np.float64)
    return pooled


def probe_layer(
    reward: RewardFunction,
    data: Transitions,
    layer: Layer,
    concepts: dict[str, FloatArray] | None = None,
    kind: Kind = "linear",
    seed: int = 0,
    folds: int = 3,
    most: int = MOST,
) -> list[LayerProbe]:
    """Probe a layer for each of ``concepts``.

    Args:
        reward: the reward.
        data: steps of several episodes.
        layer: the layer.
        concepts: what to look for, ``[n]`` each; None: `concepts_of`.
        kind: linear or mlp.
        seed: draws folds, untrained networks, shuffles and MLP starts.
        folds: parts of the episodes, each of which is held out once; figures are means over them. Each has an untrained network and
            a shuffle of its own.
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
    for fold, (fitted, test) in enumerate(held_out(some.episodes, folds, rng)):
        trained.append(scores(inputs, labels, some.episodes, fitted, test, kind, rng))
        shuffled.append(scores(inputs, labels[rng.permutation(len(labels))], some.episodes, fitted, test, kind, rng))
        fresh = reward.fresh(seed + 1000 + fold)
        if fresh is not None:
            untrained.append(scores(features(fresh, layer, some), labels, some.episodes, fitted, test, kind, rng))
    means = [
        np.mean(scores_of_folds, 0) if scores_of_folds else None for scores_of_folds in (trained, untrained, shuffled)
    ]
    return [
        LayerProbe(
            name,
            layer.name,
            kind,
            float(np.mean(trained, 0)[column]),
            None if means[1] is None else float(means[1][column]),
            float(np.mean(shuffled, 0)[column]),
            float(np.std(trained, 0)[column]),
        )
        for column, name in enumerate(names)
    ]
