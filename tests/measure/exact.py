"""The exact DARD and STARC distances of reward tables, which the sampled ones are compared with, and random MDPs."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.measure.distances import CONSTANT, TabularMDP, _coverage, _distance, closed


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


def starc(first: Array, second: Array, mdp: TabularMDP) -> float:
    """Compute the STARC distance (VAL, L2) of two reward tables that broadcast to ``[states, actions, states]``, 0 to 1."""
    directions = []
    for table in (first, second):
        canonical = advantages(table, mdp)
        norm = float(np.linalg.norm(canonical))
        is_constant = norm <= CONSTANT * float(np.abs(table).max()) * np.sqrt(canonical.size)
        directions.append(canonical * 0 if is_constant else canonical / norm)
    return min(1.0, float(np.linalg.norm(directions[0] - directions[1])) / 2)


def advantages(reward: Array, mdp: TabularMDP) -> FloatArray:
    """Compute the advantages of the uniform policy, ``[states, actions]``, 0 in terminal states: STARC's canonical reward."""
    values = mdp.values(reward, mdp.uniform())
    result = mdp.action_values(reward, values) - values[:, None]
    result[mdp.terminal] = 0
    return result


def random_mdp(states: int, actions: int, gamma: float, rng: np.random.Generator, terminals: int = 0) -> TabularMDP:
    """Draw an MDP: next states from flat Dirichlets, a uniform first state, the last ``terminals`` states terminal."""
    transitions = rng.dirichlet(np.ones(states), (states, actions))
    terminal = np.arange(states) >= states - terminals
    initial = np.where(terminal, 0, 1.0)
    return TabularMDP(transitions, initial / initial.sum(), gamma, terminal)
