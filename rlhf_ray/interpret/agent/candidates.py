"""Directions of concepts, and the components worth an intervention, by how much the action depends on them to first order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_steps
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.interpret import directions
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.labels import classes, rows, usable
from rlhf_ray.measure import statistics

FITTED, GRADIENTS = 6000, 1000
"""Steps that directions are fitted to; steps whose gradients are taken."""
AHEAD = 5
"""Steps on which a memory may still show: an LSTM's cell, or a unit that is only copied, says nothing at once."""
ALIKE = 0.05
"""Concepts are read alike if their AUC differ by less; then those that the action depends on come first."""

FEWEST_OF_CLASS = 10
"""Steps of each class that a direction apart from other concepts needs."""


@dataclass(frozen=True)
class Candidate:
    """A component that an intervention may change.

    Attributes:
        basis: its basis.
        component: its number.
        name: for people.
        sensitivity: by how much the log-odds of the chosen action (Box: the means) change with a standard deviation of its score,
            to first order: the mean over moments, of the action now or up to 5 steps on, whichever is largest.
        concept: what the component was fitted to; empty if nothing.
        auc: how well its score tells the concept's classes apart, on other levels; None without a concept.
    """

    basis: Directions
    component: int
    name: str
    sensitivity: float
    concept: str = ""
    auc: float | None = None


def sensitivities(
    agent: Agent, episodes: Episodes, site: str, basis: Directions, rng: np.random.Generator
) -> FloatArray:
    """Return `Candidate.sensitivity` of each component, ``[k]``, at some steps of ``episodes``, which hold observations."""
    chosen = draw_steps(episodes.real, GRADIENTS, rng)
    leaves: list[Tensor] = []

    def leaf(values: Tensor) -> Tensor:
        leaves.append(values.detach().requires_grad_())
        return leaves[-1]

    rows, times = chosen.rows, chosen.steps
    sizes = np.zeros((1 + AHEAD * (site == MEMORY), len(basis)))
    with torch.enable_grad():
        memory = torch.as_tensor(episodes.memory[rows, times])
        for ahead in range(len(sizes)):
            # Along the recording: after an episode's end, its last observation, which doesn't count.
            seen = np.minimum(times + ahead, episodes.lengths[rows] - 1)
            step = agent.step(
                torch.as_tensor(episodes.observations[rows, seen]), memory, edits={} if ahead else {site: leaf}
            )
            memory = step.memory
            counts = (times + ahead < episodes.lengths[rows])[:, None]
            for told in _told(agent, step.logits):
                slope = _slope(told, leaves[0])
                # Positions of an image move together, so their gradients add up.
                image = slope.dim() > 2 and slope[0].numel() != len(basis.center)
                flat = slope.flatten(2).sum(2) if image else slope.flatten(1)
                by = np.abs(basis.gradient(flat.double().numpy()))
                sizes[ahead] += (by * counts).sum(0) / max(int(counts.sum()), 1)
    spread = basis.encode(_vectors(leaves[0].detach())).std(0)
    found: FloatArray = sizes.max(0) * spread
    return found


def _told(agent: Agent, logits: Tensor) -> list[Tensor]:
    """Return the log-odds of the most likely action, or the mean of each dimension, ``[n]`` each."""
    if not isinstance(agent.action_space, gym.spaces.Discrete):
        return list(logits.chunk(2, -1)[0].unbind(1))
    best = logits.argmax(1, keepdim=True)
    return [logits.gather(1, best)[:, 0] - logits.scatter(1, best, -torch.inf).logsumexp(1)]


def _slope(told: Tensor, by: Tensor) -> Tensor:
    """Return the gradient of a sum; zeros where it doesn't depend on ``by``."""
    if not told.requires_grad:
        return torch.zeros_like(by)
    (slope,) = torch.autograd.grad(told.sum(), by, retain_graph=True, allow_unused=True)
    return torch.zeros_like(by) if slope is None else slope


def concept_directions(values: FloatArray, concepts: Mapping[str, Array], seed: int = 0) -> dict[str, Directions]:
    """Fit a direction for each concept on its own: the difference of its classes' mean values.

    Args:
        values: ``[n, size]``.
        concepts: ``[n]`` by name: yes or no, or numbers; NaN where not defined.
        seed: seeds the fit.
    """
    found: dict[str, Directions] = {}
    for name, labels in concepts.items():
        if usable(np.asarray(labels, np.float64)):
            basis = directions.fit("mean_difference", values, 1, seed, {name: labels})
            if len(basis):
                found[name] = basis
    return found


def separate_directions(values: FloatArray, concepts: Mapping[str, BoolArray | FloatArray]) -> dict[str, Directions]:
    """Fit a direction for each concept that holds the others still: one component each.

    The pattern is how the values' mean differs between the concept's classes at equal values of all other concepts, by least
    squares. The plain difference of means would hold the other concepts' directions as well: where the saw is, the pit is not. The
    filter is the reader with the least variance from anything else (inverse covariance times pattern).

    Args:
        values: ``[n, size]``.
        concepts: the classes ``[n]`` of each, 0 and 1; NaN where not defined.
    """
    center = np.asarray(values, np.float64).mean(0)
    centred = values - center
    covariance = centred.T @ centred / max(len(values), 1)
    ridge = 1e-3 * float(np.trace(covariance)) / max(len(covariance), 1) + 1e-12
    inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
    fitted: dict[str, Directions] = {}
    filled = {name: _filled(each) for name, each in concepts.items()}
    for name, labels in concepts.items():
        known = np.isfinite(np.asarray(labels, np.float64))
        own = filled[name][known]
        if min((own > 0.5).sum(), (own < 0.5).sum()) < FEWEST_OF_CLASS:
            continue
        others = [filled[other][known] for other in concepts if other != name]
        left = _residual(own, others)
        if float(left.var()) < 0.1 * float(own.var()):  # the others tell it nearly: there is nothing to hold still
            left = own - own.mean()
        pattern = left @ centred[known] / float(left @ own)
        if float(np.linalg.norm(pattern)) < 1e-9:
            continue
        reader = inverse @ pattern
        filters = reader / float(reader @ pattern)
        scores = centred @ filters
        middle = 0.5 * (scores[known][own > 0.5].mean() + scores[known][own < 0.5].mean())
        fitted[name] = Directions(
            "concept", [name], center, pattern[None], filters[None], scores[:, None], np.array([middle])
        )
    return fitted


def _filled(labels: Array) -> FloatArray:
    numbers = np.asarray(labels, np.float64)
    known = np.isfinite(numbers)
    return np.where(known, numbers, numbers[known].mean() if known.any() else 0.0)


def _residual(own: FloatArray, others: Sequence[FloatArray]) -> FloatArray:
    design = np.column_stack([np.ones(len(own)), *others])
    found: FloatArray = own - design @ np.linalg.lstsq(design, own, rcond=None)[0]
    return found


def auc(basis: Directions, component: int, values: FloatArray, labels: Array) -> float | None:
    """Return how well a score tells the classes of ``labels`` ``[n]`` apart, 0.5 to 1; None if only one class is there."""
    known, upper = rows(labels), classes(labels)
    if not known.any() or len(np.unique(upper[known])) < 2:
        return None
    area = statistics.auc(basis.encode(values[known])[:, component], upper[known])
    return max(area, 1.0 - area)


def ranked(
    agent: Agent,
    episodes: Episodes,
    site: str,
    free: Directions,
    directions: Mapping[str, tuple[Directions, float | None]],
    counts: tuple[int, int],
    rng: np.random.Generator,
) -> list[Candidate]:
    """Return the ``counts[0]`` components of ``free`` with the largest sensitivity, and ``counts[1]`` of the best read concepts.

    Of concepts that are read alike, half are those that the action depends on most, and half those that it depends on least: they
    may be held and not needed.

    Args:
        agent: the agent.
        episodes: with observations.
        site: of the bases.
        free: directions without labels.
        directions: direction and AUC by concept.
        counts: components, concepts.
        rng: draws steps.
    """
    sizes = sensitivities(agent, episodes, site, free, rng)
    order = [component for component in np.argsort(-sizes, kind="stable") if np.isfinite(sizes[component])]
    components = [
        Candidate(free, int(component), free.names[component], float(sizes[component])) for component in order
    ]
    named = []
    for name, (basis, area) in directions.items():
        size = float(sensitivities(agent, episodes, site, basis, rng)[0])
        named.append(Candidate(basis, 0, f"the concept “{name}”", size, name, area))
    named.sort(key=lambda candidate: (-round((candidate.auc or 0.0) / ALIKE), -candidate.sensitivity))
    return [*components[: counts[0]], *_both_ends(named, counts[1])]


def _both_ends(named: list[Candidate], count: int) -> list[Candidate]:
    """Return the first of concepts in order, and the last of those that are read as well as they."""
    if len(named) <= count:
        return named
    enough = round((named[count - 1].auc or 0.0) / ALIKE)
    alike = [candidate for candidate in named if round((candidate.auc or 0.0) / ALIKE) >= enough]
    first = -(-count // 2)
    return alike[:first] + alike[len(alike) - (count - first) :]


def _vectors(values: Tensor) -> FloatArray:
    """Return values as ``[n, channels]``: positions of images are averaged."""
    pooled = values.flatten(2).mean(2) if values.dim() > 2 else values
    found: FloatArray = pooled.double().numpy()
    return found
