"""The exact DARD distance of reward tables, which the sampled one is compared with."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.measure.distances import _coverage, _distance, closed
from rlhf_ray.measure.mdp import TabularMDP


def dard(first: Array, second: Array, mdp: TabularMDP, coverage: Array | None = None) -> float:
    """Compute the DARD distance of two reward tables. Arguments as for `epic`.

    Default coverage: uniform over states and actions, next states as likely as in ``mdp``. Actions in the canonicalisation are
    drawn from the coverage's marginal.
    """
    weights = _coverage(mdp, mdp.transitions if coverage is None else coverage)
    states, actions = weights.sum((1, 2)), weights.sum((0, 2))
    onward = mdp.transitions.copy()
    onward[mdp.terminal] = np.eye(mdp.states)[mdp.terminal][:, None]
    canonical = []
    for table in (first, second):
        reward = closed(table, mdp, states)
        means = np.einsum("sat,a,sat->s", reward, actions, onward)
        # E R(S', A, S'') for each pair (s, s'): S' follows s and S'' follows s', both under A.
        crossed = np.einsum("a,sau,aut->st", actions, onward, np.einsum("uav,tav->aut", reward, onward), optimize=True)
        canonical.append(
            reward + mdp.gamma * means[None, None, :] - means[:, None, None] - mdp.gamma * crossed[:, None, :]
        )
    return _distance(canonical, first, second, weights)
