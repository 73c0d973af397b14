"""What preprocessing minimises: how sparse or smooth a reward is on given steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import torch

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.measure.mdp import TabularMDP

Objective: TypeAlias = Literal["sparse_l1", "sparse_log", "smooth_l1", "smooth_log"]
OBJECTIVES: tuple[Objective, ...] = get_args(Objective)

STEPS = 10_000
"""Most recorded steps in an objective."""


@dataclass(frozen=True)
class Problem:
    """The steps on which a reward shall become sparse or smooth.

    * ``sparse_l1``: mean of ``|r|``; ``sparse_log``: mean of ``log(1 + |r|)``;
    * ``smooth_l1``, ``smooth_log``: the same of ``r_i - r_j`` over *adjacent* steps: the next step of the same episode, or, of an
      MDP, any step from the state that the first one leads to. The order of rows never matters.

    Attributes:
        steps: the steps.
        weights: ``[n]``: adds up to 1.
        pairs: ``[pairs, 2]``: rows of adjacent steps.
        pair_weights: ``[pairs]``: adds up to 1.
    """

    steps: Transitions
    weights: FloatArray
    pairs: IntArray
    pair_weights: FloatArray

    @staticmethod
    def of_steps(steps: Transitions, rng: np.random.Generator, most: int = STEPS) -> Problem:
        """Take recorded steps: all of them, or episodes drawn until there are ``most`` steps."""
        if len(steps) > most:
            names, counts = np.unique(steps.episodes, return_counts=True)
            order = rng.permutation(len(names))
            kept = np.cumsum(counts[order]) <= most
            kept[0] = True
            steps = steps[np.isin(steps.episodes, names[order[kept]])][:most]
        order = np.lexsort((steps.steps, steps.episodes))
        episodes, numbers = steps.episodes[order], steps.steps[order]
        following = (episodes[1:] == episodes[:-1]) & (numbers[1:] == numbers[:-1] + 1)
        pairs = np.stack([order[:-1][following], order[1:][following]], 1)
        return Problem(steps, _uniform(len(steps)), pairs, _uniform(len(pairs)))

    @staticmethod
    def of_mdp(mdp: TabularMDP, observations: Array | None = None) -> Problem:
        """Take every possible step of an MDP: states and actions weigh the same, next states as likely as they are.

        Args:
            mdp: the MDP.
            observations: ``[states, *observation_shape]``: the observation of each state. None: its number.
        """
        possible = (mdp.transitions > 0) & ~mdp.terminal[:, None, None]
        states, actions, nexts = np.nonzero(possible)
        chances = mdp.transitions[states, actions, nexts]
        seen = np.arange(mdp.states) if observations is None else observations
        steps = Transitions(
            seen[states],
            actions,
            seen[nexts],
            mdp.terminal[nexts],
            np.full(len(states), np.nan),
            np.arange(len(states)),
            np.zeros(len(states), np.int64),
        )
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

    def sizes(self, values: torch.Tensor, objective: Objective) -> torch.Tensor:
        """Return ``|x|`` or ``log(1 + |x|)`` of tensors."""
        return torch.log1p(values.abs()) if objective.endswith("log") else values.abs()


def _uniform(count: int) -> FloatArray:
    return np.full(count, 1 / max(1, count))
