"""Potential shaping: the one formula that environments, ground-truth models and preprocessing share."""

from __future__ import annotations

from typing import Any


def shaped(
    reward: Any, potential: Any, next_potential: Any, terminated: Any, gamma: float, shift: float | Any = 0.0
) -> Any:
    """Shape a reward: ``R' = R - shift + gamma (1 - terminated) Phi(s') - Phi(s)`` (Ng, Harada and Russell 1999).

    Optimal policies stay the same, because the potential of a terminal state counts as 0 and a constant adds the same to each
    step of an episode without end.

    Args:
        reward: ``[n]``, numbers, numpy arrays or torch tensors, as are the others.
        potential: ``[n]``: ``Phi(s)``, of the state before each step.
        next_potential: ``[n]``: ``Phi(s')``, of the state after it.
        terminated: ``[n]``, bool or 0 and 1: whether the step terminated the episode. Truncation does not count.
        gamma: discount.
        shift: constant to subtract.

    Returns:
        ``[n]``: the shaped reward; with tensors, differentiable in each of its arguments.
    """
    still = 1 - 1 * terminated  # an integer, so that tensors keep the precision of the potential
    return reward - shift + gamma * (still * next_potential) - potential
