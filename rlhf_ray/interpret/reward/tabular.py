"""Environments that are tables: their MDP, true reward and the observation of each state."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.measure.distances import TabularMDP

MOST = 8_000_000
"""Most entries of a table ``[states, actions, states]`` that is solved."""


@dataclass(frozen=True)
class Tables:
    """An environment as a table.

    Attributes:
        mdp: the MDP.
        reward: the true reward, ``[states, actions, states]``.
        observations: the observation of each state, ``[states, *observation_shape]``.
    """

    mdp: TabularMDP
    reward: FloatArray
    observations: Array


def tables_of(env: Any, gamma: float) -> Tables | None:
    """Return the tables of an environment that offers ``mdp_tables``; None if it has none, or too large ones.

    Args:
        env: the environment.
        gamma: discount, at most 0.9999: tables are solved for episodes without a time limit.
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
