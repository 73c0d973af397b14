"""Dataset examples: the steps that the reward values most and least, and those at its quantiles."""

from __future__ import annotations

from dataclasses import dataclass

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.functions import RewardFunction

QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)


@dataclass(frozen=True)
class Examples:
    """Steps of one kind.

    Attributes:
        kind: "highest", "lowest", "quantile 0.5", "highest with action 2", …
        indices: their indices in the data, in order: the most extreme first.
        rewards: their rewards.
    """

    kind: str
    indices: IntArray
    rewards: FloatArray


def examples(reward: RewardFunction, data: Transitions, count: int = 8) -> list[Examples]:
    """Choose examples: highest, lowest, nearest to each of `QUANTILES`, and highest and lowest for each discrete action.

    Equal rewards are in the order of the data. The quantiles are steps of the data: with ``n`` steps sorted by reward, quantile
    ``q`` is number ``round(q * (n - 1))``.

    Args:
        reward: the reward function.
        data: the steps.
        count: steps of each kind; quantiles have one.
    """
    if not len(data):
        return []
    values = reward.of(data)
    up, down = np.argsort(values, kind="stable"), np.argsort(-values, kind="stable")
    found = [
        Examples("highest", down[:count], values[down[:count]]),
        Examples("lowest", up[:count], values[up[:count]]),
    ]
    for share in QUANTILES:
        at = up[[round(share * (len(up) - 1))]]
        found.append(Examples(f"quantile {share:g}", at, values[at]))
    if isinstance(reward.action_space, gym.spaces.Discrete):
        for action in np.unique(data.actions):
            taken = np.flatnonzero(data.actions == action)
            for kind, order in (("highest", down), ("lowest", up)):
                at = order[np.isin(order, taken)][:count]
                found.append(Examples(f"{kind} with action {action}", at, values[at]))
    return found
