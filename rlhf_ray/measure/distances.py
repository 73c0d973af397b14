"""The exact EPIC distance of two reward tables, and what DARD and STARC are. `sampled_distances` measures any two reward functions.

All are 0 for rewards that differ by potential shaping and a positive factor, and 1 for a reward and its negation.

* EPIC (Gleave et al., ICLR 2021): Pearson distance of rewards, canonicalised with independent draws of states and actions. It
  looks at transitions that never happen, too.
* DARD (Wulfe et al., ICLR 2022): the same with draws of a transition model. The paper's canonical reward is
  ``R(s, a, s') + E[γ R(s', A, S'') - R(s, A, S') - γ R(S', A, S'')]``. We read it literally: there is one action A, and S' follows
  s and S'' follows s' under that action (so do the authors of STARC). With another action from s to S', shaping would cancel
  too, but distances differ, by up to 0.14 in small deterministic MDPs.
* STARC (Skalse et al., ICLR 2024): L2 distance of the rewards' advantages under the uniform policy (canonicalisation VAL), each
  divided by its norm, halved. It ignores how a reward is distributed over next states.

Episode ends. Potentials of terminal states are 0. EPIC and DARD ask for rewards of steps *out of* a terminal state T, which don't
exist; they get the mean of ``R(X, a, s') - R(X, a, T)`` over other states X, so that shaping cancels there too. A constant added to
a reward is no shaping if episodes can end, and no distance here ignores it then.

Constant rewards. A reward that is constant after canonicalisation has no direction. Two of them have distance 0; one and any other
reward have distance ``sqrt(1/2)`` (EPIC, DARD: correlation 0) or 1/2 (STARC).
"""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.measure.mdp import TabularMDP

CONSTANT = 1e-9
"""Rewards whose deviation is below this share of their largest value count as constant."""


def weighted_correlation(first: Array, second: Array, weights: Array | None = None) -> FloatArray:
    """Compute weighted correlations along the last axis. 1 between two constants, 0 between a constant and something else.

    Args:
        first: ``[…, n]``.
        second: ``[…, n]``.
        weights: ``[…, n]``, not negative. None: equal ones.

    Returns:
        ``[…]``, from -1 to 1; NaN where no weight is above 0.
    """
    first, second = np.asarray(first, np.float64), np.asarray(second, np.float64)
    weights = np.ones(np.shape(first)[-1]) if weights is None else np.asarray(weights, np.float64)
    whole = weights.sum(-1, keepdims=True)
    weights = weights / np.where(whole > 0, whole, np.nan)
    centred, deviations, constant = [], [], []
    for values in (first, second):
        rest = values - (weights * values).sum(-1, keepdims=True)
        deviation = np.sqrt((weights * rest**2).sum(-1))
        centred.append(rest)
        deviations.append(deviation)
        constant.append(deviation <= CONSTANT * np.abs(values).max(-1))
    product = (weights * centred[0] * centred[1]).sum(-1)
    neither = ~constant[0] & ~constant[1]
    correlation = np.divide(product, np.where(neither, deviations[0] * deviations[1], 1))
    return np.where(neither, np.clip(correlation, -1, 1), np.where(constant[0] & constant[1], 1.0, 0.0))


def pearson_distance(correlation: Array) -> FloatArray:
    """Convert correlations to distances, 0 to 1."""
    return np.asarray(np.sqrt((1 - correlation) / 2))


def epic(first: Array, second: Array, mdp: TabularMDP, coverage: Array | None = None) -> float:
    """Compute the EPIC distance of two reward tables.

    Args:
        first: reward that broadcasts to ``[states, actions, states]``.
        second: the other reward.
        mdp: gives shape, gamma and terminal states; its transitions are not used.
        coverage: ``[states, actions, states]``: weight of each step. None: all equal. Its marginals are the distributions of
            actions and next states in the canonicalisation.

    Returns:
        The distance, 0 to 1.
    """
    weights = _coverage(mdp, coverage)
    states, actions, nexts = weights.sum((1, 2)), weights.sum((0, 2)), weights.sum((0, 1))
    canonical = []
    for table in (first, second):
        reward = closed(table, mdp, states)
        means = np.einsum("sat,a,t->s", reward, actions, nexts)
        canonical.append(reward + mdp.gamma * means[None, None, :] - means[:, None, None])
    return _distance(canonical, first, second, weights)


def closed(reward: Array, mdp: TabularMDP, states: FloatArray) -> FloatArray:
    """Fill in the rewards of steps out of terminal states so that shaping cancels there: see the module's docstring.

    Args:
        reward: broadcasts to ``[states, actions, states]``.
        mdp: says which states are terminal.
        states: ``[states]``: distribution of the other states X; 0 for terminal ones.

    Returns:
        ``[states, actions, states]``.
    """
    table = np.array(np.broadcast_to(np.asarray(reward, np.float64), mdp.transitions.shape))
    others = np.tensordot(states, table, 1)  # [actions, next states]
    for terminal in np.flatnonzero(mdp.terminal):
        table[terminal] = others - others[:, [terminal]]
    return table


def _coverage(mdp: TabularMDP, coverage: Array | None) -> FloatArray:
    weights = np.ones(mdp.transitions.shape) if coverage is None else np.array(coverage, np.float64)
    weights[mdp.terminal] = 0
    return np.asarray(weights / weights.sum())


def _distance(canonical: list[FloatArray], first: Array, second: Array, weights: FloatArray) -> float:
    rows = []
    for canonical_table, table in zip(canonical, (first, second), strict=True):
        row = canonical_table - float((weights * canonical_table).sum())
        deviation = float(np.sqrt((weights * row**2).sum()))
        rows.append(row / deviation if deviation > CONSTANT * np.abs(table).max() else np.zeros_like(row))
    if not rows[0].any() or not rows[1].any():
        return 0.5**0.5 if rows[0].any() or rows[1].any() else 0.0
    # The same number as sqrt((1 - correlation) / 2), without its rounding near 0.
    return min(1.0, float(np.sqrt((weights * (rows[0] - rows[1]) ** 2).sum())) / 2)
