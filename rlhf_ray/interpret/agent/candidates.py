"""Directions of concepts, and the components worth an intervention, by how much the action depends on them to first order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import draw_steps
from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.labels import classes, rows, usable
from rlhf_ray.measure.statistics import auc

FITTED, GRADIENTS = 6000, 1000
"""Steps that directions are fitted to; steps whose gradients are taken."""
AHEAD = 5
"""Steps on which a memory may still show: an LSTM's cell, or a unit that is only copied, says nothing at once."""
MIXED = 0.2
"""Share of what two concepts tell of a component from which on the second is part of what it reads: of forty levels, the best of
ten concepts tells half as much by chance."""
FEWEST_OF_CLASS = 10
"""Steps of each class that a direction apart from other concepts needs."""


@dataclass(frozen=True)
class Candidate:
    """A component that an intervention may change.

    Attributes:
        basis: its basis.
        components: their numbers: one, or all directions of a concept.
        name: for people.
        sensitivity: by how much the log-odds of the chosen action (Box: the means) change with a standard deviation of its score,
            to first order: the mean over moments, of the action now or up to 5 steps on, whichever is largest.
        concept: what the component was fitted to; empty if nothing.
        auc: how well its (first) score tells the concept's classes apart, on other levels; None without a concept.
        reads: of a component without a concept, the concept whose classes its score tells apart best; empty if none well enough.
        mixed: the other concept that it reads as well; empty if none. See `mixed_with`.
    """

    basis: Directions
    components: tuple[int, ...]
    name: str
    sensitivity: float
    concept: str = ""
    auc: float | None = None
    reads: str = ""
    mixed: str = ""


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


def separate_directions(values: FloatArray, concepts: Mapping[str, Array]) -> dict[str, Directions]:
    """Fit a direction for each concept that holds the others still: one component each.

    The pattern is how the values' mean differs between the concept's classes at equal values of all other concepts, by least
    squares. The plain difference of means would hold the other concepts' directions as well: where the saw is, the pit is not. The
    filter is the reader with the least variance from anything else (inverse covariance times pattern).

    Args:
        values: ``[n, size]``.
        concepts: ``[n]`` of each: yes or no, or numbers, which are told apart at their median; NaN where not defined.
    """
    concepts = {name: np.where(rows(each), classes(each), np.nan) for name, each in concepts.items()}
    center = np.asarray(values, np.float64).mean(0)
    centred = values - center
    covariance = centred.T @ centred / max(len(values), 1)
    ridge = 1e-3 * float(np.trace(covariance)) / max(len(covariance), 1) + 1e-12
    inverse = np.linalg.inv(covariance + ridge * np.eye(len(covariance)))
    fitted: dict[str, Directions] = {}
    known_or_mean = {name: filled(each) for name, each in concepts.items()}
    for name, labels in concepts.items():
        known = np.isfinite(np.asarray(labels, np.float64))
        own = known_or_mean[name][known]
        if min((own > 0.5).sum(), (own < 0.5).sum()) < FEWEST_OF_CLASS:
            continue
        others = [known_or_mean[other][known] for other in concepts if other != name]
        left = residual(own, others)
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


def filled(labels: Array) -> FloatArray:
    """Return labels ``[n]`` with their mean where they are unknown."""
    numbers = np.asarray(labels, np.float64)
    known = np.isfinite(numbers)
    return np.where(known, numbers, numbers[known].mean() if known.any() else 0.0)


def residual(own: FloatArray, others: Sequence[FloatArray]) -> FloatArray:
    """Return what a linear combination of ``others`` and a constant leaves of ``own`` ``[n]``."""
    design = np.column_stack([np.ones(len(own)), *others])
    found: FloatArray = own - design @ np.linalg.lstsq(design, own, rcond=None)[0]
    return found


def strongest(
    agent: Agent, episodes: Episodes, site: str, free: Directions, count: int, rng: np.random.Generator
) -> list[Candidate]:
    """Return the ``count`` components of directions without labels that the action depends on most.

    Args:
        agent: the agent.
        episodes: with observations.
        site: of the directions.
        free: the directions.
        count: how many.
        rng: draws steps.
    """
    sizes = sensitivities(agent, episodes, site, free, rng)
    order = [int(component) for component in np.argsort(-sizes, kind="stable") if np.isfinite(sizes[component])]
    return [Candidate(free, (number,), free.names[number], float(sizes[number])) for number in order[:count]]


def with_concepts(
    candidates: Sequence[Candidate], values: FloatArray, concepts: Mapping[str, Array], least: float
) -> list[Candidate]:
    """Say of components what they read: the concept whose classes their score tells apart best, in either sense.

    Args:
        candidates: components that were fitted to no concept.
        values: what the site holds on other levels, ``[n, size]``.
        concepts: the same steps' labels, ``[n]`` of each.
        least: area under the ROC curve from which on a component reads a concept.
    """
    named = []
    for candidate in candidates:
        scores = candidate.basis.encode(values)[:, candidate.components[0]]
        areas: dict[str, float] = {}
        for name, concept in concepts.items():
            known = rows(concept)
            if usable(concept):
                area = auc(scores[known], classes(np.asarray(concept)[known]), 0.5)
                areas[name] = max(area, 1.0 - area)
        best = max(areas, key=lambda name: areas[name], default="")
        if best and areas[best] >= least:
            candidate = replace(candidate, reads=best, auc=areas[best], mixed=mixed_with(scores, concepts, best))
        named.append(candidate)
    return named


def mixed_with(scores: FloatArray, concepts: Mapping[str, Array], best: str) -> str:
    """Return the concept that tells most of scores ``[n]`` that ``best`` doesn't: at least `MIXED` of what both tell; else "".

    What they tell is variance, by least squares on each concept's number and on its class.
    """

    def of(name: str) -> list[FloatArray]:
        concept = np.asarray(concepts[name], np.float64)
        return [filled(concept), filled(np.where(rows(concept), classes(concept), np.nan))]

    spread = max(float(scores.var()), 1e-300)
    left = float(residual(scores, of(best)).var()) / spread
    beside = {
        name: float(residual(scores, [*of(best), *of(name)]).var()) / spread
        for name, concept in concepts.items()
        if name != best and usable(concept)
    }
    other = min(beside, key=lambda name: beside[name], default="")
    return other if other and left - beside[other] >= MIXED * (1.0 - beside[other]) else ""


def _vectors(values: Tensor) -> FloatArray:
    """Return values as ``[n, channels]``: positions of images are averaged."""
    pooled = values.flatten(2).mean(2) if values.dim() > 2 else values
    found: FloatArray = pooled.double().numpy()
    return found
