"""The true return from which an environment counts as learned, to tell a run that falls short of it."""

from __future__ import annotations

from collections.abc import Mapping

import gymnasium

THRESHOLDS: Mapping[str, float] = {
    "Pendulum-v1": -250.0,
    "rlhf_ray/CartPoleFixed-v0": 475.0,
    "rlhf_ray/AcrobotFixed-v0": -200.0,
}
"""Of environments that are registered without one: about nine tenths of the way from random actions to PPO on the true reward
(docs/results.md); CartPoleFixed has CartPole-v1's."""


def reward_threshold(name: str) -> float | None:
    """Return the true return of an episode from which the environment ``name`` counts as learned; None if nobody says one.

    It is gymnasium's ``reward_threshold``, which `gymnasium.register` takes, or one of `THRESHOLDS`. Variants such as ``fixed/ID``
    have none: their episodes pay other returns.
    """
    spec = gymnasium.registry.get(name.partition(":")[2] or name)
    registered = None if spec is None else spec.reward_threshold
    return THRESHOLDS.get(name) if registered is None else float(registered)
