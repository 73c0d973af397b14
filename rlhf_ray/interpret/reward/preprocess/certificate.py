"""What is known about a preprocessed reward: how much better it is, how far from the best, and that it is equivalent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.distances import TabularMDP, epic
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.reward.functions.shaped import ShapedReward

EQUIVALENT = 1e-4
"""Bound of the equivalence residual: 32-bit potentials a hundred times the reward's size leave 1e-5."""
MOST = 8_000_000
"""Most entries of a table ``[states, actions, states]`` that is solved."""


@dataclass(frozen=True)
class Certificate:
    """What is known about a preprocessed reward. None is unknown: EPIC distance and optimal actions need the MDP."""

    objective: str  # what was minimised
    before: float  # the objective of the original reward on the steps
    after: float  # that of the new one; computed from the new reward itself, not taken from the solver
    lower_bound: float | None  # no potential of this kind has less
    gap: float | None  # after - lower_bound
    dual_residual: float  # infeasibility of the bound's proof; 0 without a bound
    solver: str  # "linear programme" or "Adam"
    status: str  # what the solver said, and whether it converged
    mean_size_before: float  # mean of |r| on the steps, whatever the objective
    mean_size_after: float
    nonzero_before: float  # share of the steps whose reward is not 0
    nonzero_after: float
    equivalence_residual: float  # see `equivalence_residual`
    epic: float | None  # distance of both rewards
    optimal_actions_unchanged: bool | None  # whether each state's set of optimal actions is the same
    gamma: float  # discount of the shaping
    shift: float  # the constant that was subtracted
    warnings: list[str]
    record: list[tuple[int, float]]  # (gradient steps, objective) of a descent

    @property
    def equivalent(self) -> bool:
        """Whether nothing speaks against equivalence."""
        return self.equivalence_residual < EQUIVALENT and self.optimal_actions_unchanged is not False

    def __str__(self) -> str:
        parts = [
            f"{self.objective.replace('_', ' ')} {self.before:.4g} → {self.after:.4g}",
            f"non-zero steps {self.nonzero_before:.1%} → {self.nonzero_after:.1%}",
            f"equivalence residual {self.equivalence_residual:.1e}",
        ]
        if self.gap is not None:
            parts.insert(1, f"at most {max(self.gap, 0):.1e} above the best possible")
        if self.optimal_actions_unchanged is not None:
            unchanged = self.optimal_actions_unchanged
            parts.append("optimal actions unchanged in every state" if unchanged else "OPTIMAL ACTIONS CHANGED")
        return "; ".join([*parts, self.status])


def equivalence_residual(before: RewardFunction, after: ShapedReward, steps: Transitions) -> float:
    """Compare discounted returns over all unbroken stretches of episodes.

    Returns:
        The largest difference of the new return from what shaping may change: the original return, the potential at both ends and
        the constant. Relative to the largest reward or potential.
    """
    order = np.lexsort((steps.steps, steps.episodes))
    steps = steps[order]
    new = np.ones(len(steps), bool)
    new[1:] = (steps.episodes[1:] != steps.episodes[:-1]) | (steps.steps[1:] != steps.steps[:-1] + 1)
    starts = np.flatnonzero(new)
    ends = np.append(starts[1:], len(steps)) - 1
    ages = np.arange(len(steps)) - np.repeat(starts, ends - starts + 1)
    discount = after.gamma**ages
    rewards = before.of(steps)
    change = np.add.reduceat(discount * (after.of(steps) - rewards + after.shift), starts)
    first = after.potential(steps.observations[starts])
    last = np.where(steps.terminated[ends], 0, after.potential(steps.next_observations[ends]))
    allowed = after.gamma ** (ages[ends] + 1) * last - first
    scale = max(float(np.abs(rewards).max()), float(np.abs(first).max()), float(np.abs(last).max()), 1e-12)
    return float(np.abs(change - allowed).max() / scale)


def in_mdp(
    before: RewardFunction, after: RewardFunction, mdp: TabularMDP, observations: Array
) -> tuple[float, bool, list[str]]:
    """Compare two rewards in an MDP: EPIC distance, whether optimal actions are the same, and warnings."""
    tables = [table_of(reward, mdp, observations) for reward in (before, after)]
    optimal = [mdp.optimal_actions(table) for table in tables]
    differing = int((optimal[0] != optimal[1]).any(1).sum())
    warnings = [f"The optimal actions of {differing} of {mdp.states} states changed."] if differing else []
    return epic(tables[0], tables[1], mdp), not differing, warnings


def table_of(reward: RewardFunction, mdp: TabularMDP, observations: Array) -> FloatArray:
    """Evaluate a reward on all steps between states of an MDP, ``[states, actions, states]``; out of terminal states it is 0.

    ``observations``: of the states, ``[states, *observation_shape]``. Actions are numbered from 0.
    """
    table = np.zeros((mdp.states, mdp.actions, mdp.states))
    live = np.flatnonzero(~mdp.terminal)
    actions = np.repeat(np.arange(mdp.actions), mdp.states)
    nexts = np.tile(np.arange(mdp.states), mdp.actions)
    at_once = max(1, 65536 // len(actions))
    for start in range(0, len(live), at_once):
        some = live[start : start + at_once]
        count = len(some)
        made = reward(
            observations[np.repeat(some, len(actions))],
            np.tile(actions, count),
            observations[np.tile(nexts, count)],
            mdp.terminal[np.tile(nexts, count)],
        )
        table[some] = made.reshape(count, mdp.actions, mdp.states)
    return table


@dataclass(frozen=True)
class Tables:
    """An environment as a table."""

    mdp: TabularMDP
    reward: FloatArray  # the true one, [states, actions, states]
    observations: Array  # of each state, [states, *observation_shape]


def tables_of(env: Any, gamma: float) -> Tables | None:
    """Return the tables of an environment that offers ``mdp_tables``; None if it has none, or too large ones.

    The discount is at most 0.9999: tables are solved for episodes without a time limit.
    """
    inner = env.unwrapped
    if not hasattr(inner, "mdp_tables"):
        return None
    try:
        transitions, reward, initial, terminal = inner.mdp_tables()
    except SettingError:
        return None
    if transitions.size > MOST:
        return None
    states = len(initial)
    seen = inner.state_observations() if hasattr(inner, "state_observations") else np.arange(states)
    return Tables(TabularMDP(transitions, initial, min(gamma, 0.9999), terminal), reward, np.asarray(seen))
