"""Dynamics: how components drive each other from step to step within a behaviour: as observed, and by the agent's own gradients.

All matrices are ``[to, from]``: row i, column j says how component i later depends on component j now.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from scipy.stats import norm
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray, IntArray
from rlhf_ray.interpret.agent.world_model.simulate import World, simulate
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.measure.statistics import discoveries, pearson

PERMUTATIONS = 200
FEWEST = 5
"""Steps per component that a behaviour needs."""
RATE = 0.05
"""False discovery rate."""
STRONG = 0.2
"""Size from which on an entry's sign counts."""


@dataclass(frozen=True)
class LaggedPairs:
    """Steps of one behaviour and what came after them.

    Attributes:
        before: scores ``[n, k]``.
        after: scores of the same episodes ``lag`` steps later, ``[n, k]``.
        episodes: the episode of each, ``[n]``.
    """

    before: FloatArray
    after: FloatArray
    episodes: IntArray


def pairs(scores: FloatArray, real: BoolArray, labels: IntArray, lag: int = 1) -> dict[int, LaggedPairs]:
    """Return the pairs of each behaviour: from its own steps, and no others.

    Args:
        scores: ``[episodes, T, k]``.
        real: which steps are no padding, ``[episodes, T]``.
        labels: the behaviour of each step, ``[episodes, T]``; steps below 0 are left out.
        lag: steps between before and after; both are in the same episode.
    """
    kept = real[:, lag:] & real[:, : real.shape[1] - lag] & (labels[:, : real.shape[1] - lag] >= 0)
    found = {}
    for name in np.unique(labels[:, : real.shape[1] - lag][kept]):
        rows, steps = np.nonzero(kept & (labels[:, : real.shape[1] - lag] == name))
        found[int(name)] = LaggedPairs(scores[rows, steps], scores[rows, steps + lag], rows)
    return found


@dataclass(frozen=True)
class Lagged:
    """How scores depend on those ``lag`` steps before, in one behaviour.

    Attributes:
        rows: pairs of steps.
        correlation: ``[k, k]``, over the behaviour's pairs.
        regression: ``[k, k]``: change of score i for 1 of score j, the other scores held.
        p: of the regression, ``[k, k]``, against the pairing of each step with one at another time.
        significant: which entries are, at a false discovery rate of 5 % (Benjamini and Hochberg 1995).
    """

    rows: int
    correlation: FloatArray
    regression: FloatArray
    p: FloatArray
    significant: BoolArray


def lagged(found: LaggedPairs, permutations: int = PERMUTATIONS, seed: int = 0) -> Lagged:
    """Correlate and regress scores on those before.

    The null shifts the later scores in time, around the end, so that each series keeps its own slow changes. Its spread gives the
    p-values, as of a normal distribution: counts alone can't be below one in the number of permutations.
    """
    before, after = found.before - found.before.mean(0), found.after - found.after.mean(0)
    spread = before.std(0), after.std(0)
    varies = np.outer(spread[1] > 1e-9, spread[0] > 1e-9)
    scale = np.outer(np.maximum(spread[1], 1e-12), np.maximum(spread[0], 1e-12))
    correlation = np.where(varies, after.T @ before / max(len(before), 1) / scale, 0.0)
    gram = before.T @ before
    solve = np.linalg.pinv(gram + 1e-9 * max(float(np.trace(gram)), 1e-12) * np.eye(len(gram))) @ before.T
    regression = np.where(varies, (solve @ after).T, 0.0)
    rng = np.random.default_rng([seed, 0xD7])
    n = len(before)
    if n < 4 or permutations < 2:
        p = np.ones_like(regression)
    else:
        least = max(1, n // 10)
        null = np.stack(
            [(solve @ np.roll(after, int(rng.integers(least, n - least + 1)), 0)).T for _ in range(permutations)]
        )
        z = (regression - null.mean(0)) / np.maximum(null.std(0), 1e-12)
        p = np.where(varies, 2.0 * norm.sf(np.abs(z)), 1.0)
    return Lagged(n, correlation, regression, p, discoveries(p, RATE))


def step_jacobians(agent: Agent, basis: Directions, observations: Array, memory: Array) -> FloatArray:
    """Return how the scores after a step depend on those before it, through the agent's memory alone: ``[n, k, k]``.

    Args:
        agent: an agent with memory.
        basis: of its memory.
        observations: of the step, ``[n, …]``.
        memory: before the step, ``[n, memory_size]``.
    """
    start = torch.as_tensor(np.asarray(memory, np.float32)).requires_grad_()
    after = agent.step(torch.as_tensor(np.asarray(observations)), start).memory

    def gradient(target: Tensor) -> Tensor:
        if not target.requires_grad:  # the agent only remembers what it sees now
            return torch.zeros_like(start)
        (found,) = torch.autograd.grad(target.sum(), start, retain_graph=True, allow_unused=True)
        return torch.zeros_like(start) if found is None else found

    return _jacobians(basis, after, gradient)


def world_jacobians(
    world: World,
    agent: Agent,
    basis: Directions,
    observations: Tensor,
    actions: Tensor,
    memory: Tensor,
    steps: int,
    through_actions: bool = True,
) -> FloatArray:
    """Return how scores depend on those ``steps`` steps before, through the agent's memory and the world model: ``[n, k, k]``.

    From two steps on, an action that the memory changes changes what the agent sees. ``through_actions=False`` leaves that out.

    Args:
        world: the world model.
        agent: an agent with memory.
        basis: of its memory.
        observations: the context: see `simulate`.
        actions: the context's.
        memory: before the context's last observation.
        steps: at least 1.
        through_actions: see `simulate`.
    """
    start = memory.clone().requires_grad_()
    run = simulate(world, agent, observations, actions, start, steps, through_actions=through_actions)
    return _jacobians(basis, run.memory[:, steps], lambda target: run.gradients(target).memory[:, 0])


def _jacobians(basis: Directions, after: Tensor, gradient: Callable[[Tensor], Tensor]) -> FloatArray:
    filters = torch.as_tensor(basis.filters, dtype=after.dtype)
    rows = [basis.gradient(gradient(after @ each).detach().double().numpy()) for each in filters]
    k = len(basis)
    return np.stack(rows, 1) if rows else np.zeros((len(after), k, k))


@dataclass(frozen=True)
class GradientAgreement:
    """Whether two matrices say the same.

    Attributes:
        signs: share of the strong entries (size above 0.2 in the first) with the same sign; None without one.
        entries: how many there are.
        r: correlation of all entries.
        p: of ``r``, against the same matrices with components exchanged (Mantel 1967).
    """

    signs: float | None
    entries: int
    r: float
    p: float


def agreement(
    first: FloatArray, second: FloatArray, strong: float = STRONG, permutations: int = PERMUTATIONS, seed: int = 0
) -> GradientAgreement:
    """Compare two matrices ``[k, k]`` in sign and magnitude."""
    chosen = np.abs(first) > strong
    signs = float((np.sign(first) == np.sign(second))[chosen].mean()) if chosen.any() else None
    r = pearson(first, second, 0.0)
    rng = np.random.default_rng([seed, 0xA6])
    orders = [rng.permutation(len(first)) for _ in range(permutations)]
    null = [pearson(first, second[np.ix_(order, order)], 0.0) for order in orders]
    p = (1 + sum(abs(each) >= abs(r) for each in null)) / (1 + permutations)
    return GradientAgreement(signs, int(chosen.sum()), r, p)


@dataclass(frozen=True)
class Dynamics:
    """The dynamics of one behaviour.

    Attributes:
        behaviour: its number.
        observed: by lagged correlation and regression.
        jacobians: mean Jacobians ``[k, k]``: "memory" through the agent's memory alone; with a world model "world" and, without the
            path through actions, "world, actions cut".
        agreements: of each Jacobian with the regression.
    """

    behaviour: int
    observed: Lagged
    jacobians: dict[str, FloatArray] = field(default_factory=dict)
    agreements: dict[str, GradientAgreement] = field(default_factory=dict)


def dynamics(
    scores: FloatArray,
    real: BoolArray,
    labels: IntArray,
    jacobians: Mapping[str, Callable[[IntArray, IntArray], FloatArray]] = {},
    lag: int = 1,
    most: int = 200,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> list[Dynamics]:
    """Look at each behaviour with enough steps.

    Args:
        scores: ``[episodes, T, k]``.
        real: which steps are no padding.
        labels: the behaviour of each step, ``[episodes, T]``.
        jacobians: by name, functions of episodes ``[n]`` and steps ``[n]`` that return ``[n, k, k]`` for the same ``lag``.
        lag: steps.
        most: steps of each behaviour that Jacobians are computed at.
        permutations: for p-values.
        seed: draws.
    """
    found = []
    for name, each in pairs(scores, real, labels, lag).items():
        if len(each.before) < max(10, FEWEST * scores.shape[2]):
            continue
        observed = lagged(each, permutations, seed)
        rows, steps = np.nonzero((labels == name) & real & (_left(real) > lag))
        rng = np.random.default_rng([seed, name, 0xDA])
        some = np.sort(rng.choice(len(rows), most, replace=False)) if len(rows) > most else np.arange(len(rows))
        means = {key: function(rows[some], steps[some]).mean(0) for key, function in jacobians.items()}
        compared = {
            key: agreement(observed.regression, mean, permutations=permutations, seed=seed)
            for key, mean in means.items()
        }
        found.append(Dynamics(name, observed, means, compared))
    return found


def _left(real: BoolArray) -> IntArray:
    """Return how many steps each episode still has, this one included, ``[episodes, T]``."""
    return np.asarray(real.sum(1)[:, None] - np.arange(real.shape[1])[None])
