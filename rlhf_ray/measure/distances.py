"""Tabular Markov decision processes, solved exactly; the exact EPIC distance of two reward tables; what DARD and STARC are.

`rlhf_ray.reward.sampled_distances` measures any two reward functions.

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

from dataclasses import dataclass

import numpy as np

from rlhf_ray.data.arrays import Array, BoolArray, FloatArray

TOLERANCE = 1e-8
"""Actions are equally good if their values differ by less than this share of the largest value."""


@dataclass(frozen=True)
class TabularMDP:
    """An environment whose states and actions are numbered from 0.

    A terminal state ends the episode: its value is 0, whatever its transitions are. Rewards are tables that broadcast to
    ``[states, actions, states]``.

    Args:
        transitions: ``[states, actions, states]``: probability of each next state.
        initial: ``[states]``: probability of each first state.
        gamma: discount, 0 ≤ gamma < 1.
        terminal: ``[states]`` bool. None: no state is.

    Raises:
        ValueError: shapes don't match, probabilities don't add up to 1, or gamma is out of range.
    """

    transitions: FloatArray
    initial: FloatArray
    gamma: float
    terminal: BoolArray = None  # type: ignore[assignment]  # an array from __post_init__ on

    def __post_init__(self) -> None:
        transitions, initial = (np.asarray(table, np.float64) for table in (self.transitions, self.initial))
        states = len(transitions)
        if transitions.ndim != 3 or transitions.shape[2] != states or initial.shape != (states,):
            raise ValueError(
                f"transitions must be [S, A, S] and initial [S]; got {list(transitions.shape)} and {list(initial.shape)}."
            )
        terminal = np.zeros(states, bool) if self.terminal is None else np.asarray(self.terminal, bool)
        if terminal.shape != (states,):
            raise ValueError(f"terminal has shape {list(terminal.shape)}; it must be [{states}].")
        if not np.allclose(transitions[~terminal].sum(2), 1) or not np.isclose(initial.sum(), 1):
            raise ValueError("Probabilities of next states and of first states must each add up to 1.")
        if transitions.min() < 0 or initial.min() < 0:
            raise ValueError("Probabilities must not be negative.")
        if not 0 <= self.gamma < 1:
            raise ValueError(f"gamma is {self.gamma}; it must be 0 or more and below 1.")
        for name, value in (("transitions", transitions), ("initial", initial), ("terminal", terminal)):
            object.__setattr__(self, name, value)

    @property
    def states(self) -> int:
        """Number of states."""
        return len(self.transitions)

    @property
    def actions(self) -> int:
        """Number of actions."""
        return int(self.transitions.shape[1])

    def uniform(self) -> FloatArray:
        """Return the uniformly random policy, ``[states, actions]``."""
        return np.full((self.states, self.actions), 1 / self.actions)

    def expected_rewards(self, reward: Array) -> FloatArray:
        """Average ``reward`` over next states: ``[states, actions]``, 0 in terminal states."""
        table = np.broadcast_to(reward, self.transitions.shape)
        expected: FloatArray = np.einsum("sat,sat->sa", self.transitions, table)
        expected[self.terminal] = 0
        return expected

    def values(self, reward: Array, policy: FloatArray) -> FloatArray:
        """Compute the value of each state under ``policy`` ``[states, actions]`` by a linear solve, ``[states]``."""
        step = self._steps(policy)
        rewards = (policy * self.expected_rewards(reward)).sum(1)
        return np.linalg.solve(np.eye(self.states) - self.gamma * step, rewards)

    def action_values(self, reward: Array, values: FloatArray) -> FloatArray:
        """Compute the value of each action if the next state is worth ``values``: ``[states, actions]``, 0 if terminal."""
        later = self.transitions @ np.where(self.terminal, 0, values)
        result: FloatArray = self.expected_rewards(reward) + self.gamma * later
        result[self.terminal] = 0
        return result

    def optimal_values(self, reward: Array) -> FloatArray:
        """Compute the optimal action values ``[states, actions]`` by policy iteration, which is exact."""
        best = np.zeros(self.states, int)
        everywhere = np.arange(self.states)
        while True:
            values = self.values(reward, np.eye(self.actions)[best])
            result = self.action_values(reward, values)
            scale = max(1e-300, float(np.abs(result).max()))
            better = result.max(1) > result[everywhere, best] + 1e-12 * scale  # ties don't change the policy: it ends
            if not better.any():
                return result
            best = np.where(better, result.argmax(1), best)

    def optimal_actions(self, reward: Array, tolerance: float = TOLERANCE) -> BoolArray:
        """Find the optimal actions of each state, ``[states, actions]`` bool; all of them in terminal states.

        Args:
            reward: the reward.
            tolerance: actions within this share of the largest absolute value (or reward) of the best one count as equal.
        """
        result = self.optimal_values(reward)
        scale = max(float(np.abs(result).max()), float(np.abs(self.expected_rewards(reward)).max()))
        optimal: BoolArray = result >= result.max(1, keepdims=True) - tolerance * scale
        return optimal

    def optimal_policy(self, reward: Array, tolerance: float = TOLERANCE) -> FloatArray:
        """Return the policy that draws uniformly among the optimal actions, ``[states, actions]``."""
        optimal = self.optimal_actions(reward, tolerance)
        policy: FloatArray = optimal / optimal.sum(1, keepdims=True)
        return policy

    def policy_return(self, reward: Array, policy: FloatArray) -> float:
        """Compute the expected discounted return of ``policy`` from the first state."""
        return float(self.initial @ self.values(reward, policy))

    def _steps(self, policy: FloatArray) -> FloatArray:
        step: FloatArray = np.einsum("sa,sat->st", policy, self.transitions)
        step[self.terminal] = 0
        return step


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
    """Compute the EPIC distance of two reward tables, 0 to 1.

    Args:
        first: reward that broadcasts to ``[states, actions, states]``.
        second: the other reward.
        mdp: gives shape, gamma and terminal states; its transitions are not used.
        coverage: ``[states, actions, states]``: weight of each step. None: all equal. Its marginals are the distributions of
            actions and next states in the canonicalisation.
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
    """Fill in the rewards ``[states, actions, states]`` of steps out of terminal states so that shaping cancels there.

    See the module's docstring; ``states [states]`` is the distribution of the other states X, 0 for terminal ones.
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
