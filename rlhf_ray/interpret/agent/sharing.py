"""What a concept shares with others: the directions of its own part, together with theirs.

LEACE of the part that others don't tell leaves what these tell. Where an agent acts on none of the others, that is the concept's:
without their parts as well, nothing of it is left. One direction of all would leave what the others predict wrongly, with a sign of
its own, which an agent that takes the best action hears however small it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rlhf_ray.interpret.agent.erasure import GONE, MOST, Erasure, Held, Target, Whitened
from rlhf_ray.interpret.directions.controls import removed_variance
from rlhf_ray.measure import statistics


def of_own_part(erasure: Erasure) -> bool:
    """Return whether it is only of the part of the concept that others don't tell, and the rest is read better than `GONE`."""
    return bool(erasure.others) and erasure.shared > GONE


def sharing(found: Mapping[str, Erasure], fit: Held, name: str) -> list[str]:
    """Return the concepts that are held and tell of a concept beyond chance: those that what it shares may belong to."""
    own, shares = fit.first(name), []
    for other in found[name].others:
        known = np.isfinite(own) & np.isfinite(fit.first(other))
        area = statistics.auc(fit.first(other)[known], own[known] == 1, 0.5)
        if other in found and max(area, 1.0 - area) > GONE:
            shares.append(other)
    return shares


def with_shared(
    found: Mapping[str, Erasure], fit: Held, test: Held, name: str, shares: Sequence[str]
) -> Erasure | None:
    """Return the erasure of a concept with its own directions and those of others; None if they are more than `MOST`.

    Args:
        found: the erasures of their own parts.
        fit: what directions are fitted to.
        test: of held-out levels.
        name: of the concept.
        shares: the others; see `sharing`.
    """
    metric, own, target = Whitened(fit.values), found[name], Target.of(0, fit, test, name, ())
    if target is None or not shares:
        return None
    patterns = np.concatenate([own.basis.patterns, *(found[other].basis.patterns for other in shares)])
    ways = np.linalg.qr(((patterns @ metric.axes.T) / metric.spread).T)[0].T
    basis = metric.basis(own.basis.part([0]), ways, fit.values, fit.first(name))
    variance = removed_variance(basis, range(len(basis)), fit.values)
    left = [side - side @ ways.T @ ways for side in (metric(fit.values), metric(test.values))]
    area = target.linear(*left)[0]
    whole = replace(
        own,
        basis=basis,
        erased=area,
        shared=area,
        bound=target.bound,
        variance=variance,
        others=(),
    )
    return whole if len(basis) <= MOST else None
