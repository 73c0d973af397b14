"""Tabular Markov decision processes, solved exactly."""

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
