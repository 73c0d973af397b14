"""How to preprocess a reward, and what that minimises: how sparse or smooth the reward is on given steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.distances import TabularMDP
from rlhf_ray.settings.checks import Count, Share, check_values

Objective: TypeAlias = Literal["sparse_l1", "sparse_log", "smooth_l1", "smooth_log"]
PotentialKind: TypeAlias = Literal["auto", "tabular", "linear", "mlp"]

STEPS = 10_000
"""Most recorded steps in an objective."""


@dataclass(frozen=True)
class Options:
    """How to preprocess a reward."""

    objective: Objective = "sparse_l1"
    """What to minimise: sparse_l1 or sparse_log (rewards that are 0 on most steps), smooth_l1 or smooth_log (rewards that change
    little from step to step)."""
    potential: PotentialKind = "auto"
    """Potential: tabular, linear or mlp. auto: tabular for numbered states, linear for vectors, mlp for images."""
    gamma: Share = 0.99
    """Discount of the shaping; that of the agent."""
    shift: bool | None = None
    """Whether a constant may be subtracted. It changes what is optimal if episodes can end. None: only if no step terminates."""
    hidden: tuple[int, ...] = (64,)
    """Units in each hidden layer of an mlp potential."""
    steps: Count = 1000
    """Gradient steps for an mlp potential."""
    seed: int = 0
    """Random seed."""

    def __post_init__(self) -> None:
        check_values(self)


@dataclass(frozen=True)
class Problem:
    """The steps on which a reward shall become sparse or smooth.

    * ``sparse_l1``: mean of ``|r|``; ``sparse_log``: mean of ``log(1 + |r|)``;
    * ``smooth_l1``, ``smooth_log``: the same of ``r_i - r_j`` over *adjacent* steps: the next step of the same episode, or, of an
      MDP, any step from the state that the first one leads to. The order of rows never matters.

    Weights add up to 1.
    """

    steps: Transitions
    weights: FloatArray  # [n]
    pairs: IntArray  # [pairs, 2]: rows of adjacent steps
    pair_weights: FloatArray  # [pairs]

    @staticmethod
    def of_steps(steps: Transitions, rng: np.random.Generator) -> Problem:
        """Take recorded steps: all of them, or episodes drawn until there are `STEPS` steps."""
        if len(steps) > STEPS:
            names, counts = np.unique(steps.episodes, return_counts=True)
            order = rng.permutation(len(names))
            kept = np.cumsum(counts[order]) <= STEPS
            kept[0] = True
            steps = steps[np.isin(steps.episodes, names[order[kept]])][:STEPS]
        order = np.lexsort((steps.steps, steps.episodes))
        episodes, numbers = steps.episodes[order], steps.steps[order]
        following = (episodes[1:] == episodes[:-1]) & (numbers[1:] == numbers[:-1] + 1)
        pairs = np.stack([order[:-1][following], order[1:][following]], 1)
        return Problem(steps, _uniform(len(steps)), pairs, _uniform(len(pairs)))

    @staticmethod
    def of_mdp(mdp: TabularMDP, seen: Array) -> Problem:
        """Take every possible step of an MDP: states and actions weigh the same, next states as likely as they are.

        ``seen`` ``[states, *observation_shape]``: the observation of each state.
        """
        possible = (mdp.transitions > 0) & ~mdp.terminal[:, None, None]
        states, actions, nexts = np.nonzero(possible)
        chances = mdp.transitions[states, actions, nexts]
        unknown, episodes = np.full(len(states), np.nan), np.arange(len(states))
        columns = seen[states], actions, seen[nexts], mdp.terminal[nexts]
        steps = Transitions(*columns, unknown, episodes, np.zeros(len(states), np.int64))
        starts = np.searchsorted(states, np.arange(mdp.states + 1))  # np.nonzero orders by state
        counts = (starts[1:] - starts[:-1])[nexts]
        first = np.repeat(np.arange(len(states)), counts)
        second = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts) + starts[nexts[first]]
        pair_weights = chances[first] * chances[second]
        return Problem(steps, chances / chances.sum(), np.stack([first, second], 1), pair_weights / pair_weights.sum())

    def loss(self, rewards: FloatArray, objective: Objective) -> float:
        """Compute the objective of rewards ``[n]``; 0 if it is over pairs and there are none."""
        values, weights = self.terms(rewards, objective)
        sizes = np.abs(values)
        return float(weights @ (np.log1p(sizes) if objective.endswith("log") else sizes))

    def terms(self, rewards: Any, objective: Objective) -> tuple[Any, FloatArray]:
        """Return the values whose size the objective measures, and their weights. ``rewards`` may have more axes after ``n``."""
        if objective.startswith("sparse"):
            return rewards, self.weights
        return rewards[self.pairs[:, 0]] - rewards[self.pairs[:, 1]], self.pair_weights


def _uniform(count: int) -> FloatArray:
    return np.full(count, 1 / max(1, count))
