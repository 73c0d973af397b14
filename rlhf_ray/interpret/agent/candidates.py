"""Candidates: the components worth an intervention, by how much the action depends on them to first order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import gymnasium as gym
import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.agent import bases
from rlhf_ray.interpret.agent.agent import Agent
from rlhf_ray.interpret.agent.bases import Basis
from rlhf_ray.interpret.agent.bases.labels import classes, rows, usable
from rlhf_ray.interpret.agent.episodes import Episodes

FITTED, GRADIENTS = 6000, 1000
"""Steps that directions are fitted to; steps whose gradients are taken."""


@dataclass(frozen=True)
class Candidate:
    """A component that an intervention may change.

    Attributes:
        basis: its basis.
        component: its number.
        name: for people.
        sensitivity: by how much the log-odds of the chosen action (Box: the means) change with a standard deviation of its score,
            to first order: the mean over steps.
        concept: what the component was fitted to; empty if nothing.
        auc: how well its score tells the concept's classes apart, on other levels; None without a concept.
    """

    basis: Basis
    component: int
    name: str
    sensitivity: float
    concept: str = ""
    auc: float | None = None


def sensitivities(agent: Agent, episodes: Episodes, site: str, basis: Basis, rng: np.random.Generator) -> FloatArray:
    """Return `Candidate.sensitivity` of each component, ``[k]``, at some steps of ``episodes``, which hold observations."""
    at = np.argwhere(episodes.real)
    chosen = at[np.sort(rng.permutation(len(at))[:GRADIENTS])]
    leaves: list[Tensor] = []

    def leaf(values: Tensor) -> Tensor:
        leaves.append(values.detach().requires_grad_())
        return leaves[-1]

    with torch.enable_grad():
        step = agent.step(
            torch.as_tensor(episodes.observations[chosen[:, 0], chosen[:, 1]]),
            torch.as_tensor(episodes.memory[chosen[:, 0], chosen[:, 1]]),
            edits={site: leaf},
        )
        if isinstance(agent.action_space, gym.spaces.Discrete):
            best = step.logits.argmax(1, keepdim=True)
            rest = step.logits.scatter(1, best, -torch.inf).logsumexp(1)
            told = [step.logits.gather(1, best)[:, 0] - rest]
        else:
            told = list(step.logits.chunk(2, -1)[0].unbind(1))
        slopes = []
        for each in told:
            (slope,) = torch.autograd.grad(each.sum(), leaves[-1], retain_graph=True, allow_unused=True)
            slopes.append(torch.zeros_like(leaves[-1]) if slope is None else slope)
    values = _vectors(leaves[-1].detach())
    spread = basis.transform(values).std(0)
    size = np.zeros(len(basis))
    for slope in slopes:
        # Positions of an image move together, so their gradients add up.
        flat = (
            slope.flatten(2).sum(2) if slope.dim() > 2 and slope[0].numel() != len(basis.center) else slope.flatten(1)
        )
        size += np.abs(basis.gradient(flat.double().numpy())).mean(0)
    found: FloatArray = size * spread
    return found


def concept_directions(values: FloatArray, concepts: Mapping[str, Array], seed: int = 0) -> dict[str, Basis]:
    """Fit a direction for each concept on its own: the difference of its classes' mean values.

    Args:
        values: ``[n, size]``.
        concepts: ``[n]`` by name: yes or no, or numbers; NaN where not defined.
        seed: seeds the fit.
    """
    found: dict[str, Basis] = {}
    for name, labels in concepts.items():
        if usable(np.asarray(labels, np.float64)):
            basis = bases.fit("mean_difference", values, 1, seed, {name: labels})
            if len(basis):
                found[name] = basis
    return found


def auc(basis: Basis, component: int, values: FloatArray, labels: Array) -> float | None:
    """Return how well a score tells the classes of ``labels`` ``[n]`` apart, 0.5 to 1; None if only one class is there."""
    known, upper = rows(labels), classes(labels)
    if len(np.unique(upper[known])) < 2:
        return None
    area = float(roc_auc_score(upper[known], basis.transform(values[known])[:, component]))
    return max(area, 1.0 - area)


def concepts_at(episodes: Episodes, most: int = 1) -> dict[str, FloatArray]:
    """Return the numbers that the environment says about its state, ``[n, T]`` by name; of arrays the first ``most`` elements."""
    n, steps = episodes.actions.shape[:2]
    found: dict[str, FloatArray] = {}
    for name, values in episodes.states.items():
        if values.dtype.kind not in "biuf":
            continue
        flat = values[:, :steps].reshape(n, steps, -1).astype(np.float64)
        for at in range(min(most, flat.shape[2])):
            found[name if flat.shape[2] == 1 else f"{name}[{at}]"] = flat[:, :, at]
    return found


def ranked(
    agent: Agent,
    episodes: Episodes,
    site: str,
    given: Sequence[Basis],
    directions: Mapping[str, tuple[Basis, float | None]],
    counts: tuple[int, int],
    rng: np.random.Generator,
) -> list[Candidate]:
    """Return the ``counts[0]`` components of ``given`` with the largest sensitivity, and the ``counts[1]`` best read concepts.

    Args:
        agent: the agent.
        episodes: with observations.
        site: of the bases.
        given: bases without labels.
        directions: direction and AUC by concept.
        counts: components, concepts.
        rng: draws steps.
    """
    free: list[Candidate] = []
    for basis in given:
        sizes = sensitivities(agent, episodes, site, basis, rng)
        free += [
            Candidate(basis, at, basis.names[at], float(size)) for at, size in enumerate(sizes) if np.isfinite(size)
        ]
    named = [
        Candidate(basis, 0, f"concept {name}", float(sensitivities(agent, episodes, site, basis, rng)[0]), name, area)
        for name, (basis, area) in directions.items()
    ]
    free.sort(key=lambda each: -each.sensitivity)
    named.sort(key=lambda each: -(each.auc or 0.0))
    return [*free[: counts[0]], *named[: counts[1]]]


def _vectors(values: Tensor) -> FloatArray:
    """Return values as ``[n, channels]``: positions of images are averaged."""
    pooled = values.flatten(2).mean(2) if values.dim() > 2 else values
    found: FloatArray = pooled.double().numpy()
    return found
