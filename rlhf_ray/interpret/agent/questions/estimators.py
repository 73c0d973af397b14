"""Estimators compared: which gradient through the agent's actions says what finite changes do.

In a world model, the agent's Discrete actions pass gradients by an estimator, and the choice can change conclusions: the size of
a gradient by orders of magnitude, the sign of a quarter of its entries. So the estimators are held against each other, and against
what happens when memory or world really start somewhere else: in the direction of another moment's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.agent.questions.question import AgentQuestion, Source
from rlhf_ray.interpret.agent.world_model.simulate import ESTIMATORS, Estimator
from rlhf_ray.interpret.attribution.faithfulness import rank_correlation

REACH = 0.25
"""How far a finite change goes towards another moment's values."""
MOVES = 8
"""Finite changes per moment."""
EPSILON = 1e-3


@dataclass(frozen=True)
class Compared:
    """Gradients of one source by each estimator.

    Attributes:
        source: with respect to what.
        rank: rank correlation of each estimator's prediction with the effects of finite changes, over moments and changes.
        sign: share of finite changes whose effect has the predicted sign, without the smallest half of effects.
        cosine: mean cosine of the gradients of each pair, by ``one, other``.
        flipped: share of entries whose sign differs, of each pair.
        size: mean norm of each estimator's gradient.
        effect: mean absolute effect of the finite changes.
    """

    source: Source
    rank: Mapping[str, float]
    sign: Mapping[str, float]
    cosine: Mapping[str, float]
    flipped: Mapping[str, float]
    size: Mapping[str, float]
    effect: float

    @property
    def best(self) -> Estimator:
        """The estimator that agrees best with finite changes."""
        return max(ESTIMATORS, key=lambda name: self.rank[name])


def compare(question: AgentQuestion, moments: WorldMoments, source: Source, rng: np.random.Generator) -> Compared:
    """Compare all estimators on one source.

    Args:
        question: with a world model and the source among its sources.
        moments: at least two.
        source: world or memory.
        rng: draws the other moments.
    """
    gradients = {
        estimator: _gradient(replace(question, estimator=estimator), moments, source) for estimator in ESTIMATORS
    }
    actual, before = question.arrays(moments)[source], question.values(moments)
    predicted: dict[str, list[FloatArray]] = {name: [] for name in gradients}
    effects = []
    for _ in range(MOVES):
        others = (np.arange(len(moments)) + rng.integers(1, max(2, len(moments)), len(moments))) % len(moments)
        move = REACH * (actual[others] - actual)
        effects.append(question.changed(moments, source, (actual + move)[None])[0] - before)
        for name, gradient in gradients.items():
            predicted[name].append((gradient * move).sum(1))
    happened = np.stack(effects)
    large = np.abs(happened) >= np.median(np.abs(happened))
    predictions = {name: np.stack(prediction) for name, prediction in predicted.items()}
    pairs = [(a, b) for i, a in enumerate(ESTIMATORS) for b in ESTIMATORS[i + 1 :]]
    return Compared(
        source=source,
        rank={name: rank_correlation(prediction, happened) for name, prediction in predictions.items()},
        sign={
            name: float((np.sign(prediction) == np.sign(happened))[large].mean())
            for name, prediction in predictions.items()
        },
        cosine={f"{a}, {b}": float(_cosines(gradients[a], gradients[b]).mean()) for a, b in pairs},
        flipped={f"{a}, {b}": float((gradients[a] * gradients[b] < 0).mean()) for a, b in pairs},
        size={name: float(np.linalg.norm(slope, axis=1).mean()) for name, slope in gradients.items()},
        effect=float(np.abs(happened).mean()),
    )


def against_differences(
    question: AgentQuestion, moments: WorldMoments, source: Source = "memory", epsilon: float = EPSILON
) -> FloatArray:
    """Return the largest difference between the gradient and central differences, over the row's largest gradient, ``[n]``.

    Args:
        question: now: further on, actions jump and no gradient is that of the differences.
        moments: where.
        source: with respect to what.
        epsilon: half the length of the differences.
    """
    gradient = _gradient(question, moments, source)
    actual = question.arrays(moments)[source]
    differences = np.zeros(gradient.shape)
    for unit in range(gradient.shape[1]):
        step = np.zeros(gradient.shape, actual.dtype)
        step[:, unit] = epsilon
        up, down = question.changed(
            moments, source, np.stack([actual + step.reshape(actual.shape), actual - step.reshape(actual.shape)])
        )
        differences[:, unit] = (up - down) / (2.0 * epsilon)
    worst: FloatArray = np.abs(gradient - differences).max(1) / np.maximum(np.abs(gradient).max(1), 1e-9)
    return worst


def _gradient(question: AgentQuestion, moments: WorldMoments, source: Source) -> FloatArray:
    inputs = {name: tensor.clone().requires_grad_() for name, tensor in question.inputs(moments).items()}
    target = question.ask(moments, inputs).sum()
    slope = torch.autograd.grad(target, inputs[source], allow_unused=True)[0]
    values = torch.zeros_like(inputs[source]) if slope is None else slope
    array: FloatArray = values.double().flatten(1).numpy()
    return array


def _cosines(one: FloatArray, other: FloatArray) -> FloatArray:
    sizes = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    products = (one * other).sum(1)
    cosines: FloatArray = np.divide(products, sizes, out=np.ones_like(products), where=sizes > 0)
    return cosines
