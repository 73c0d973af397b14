"""Environments of other packages by their ids: `seals` and, through shimmy, the DeepMind Control Suite.

Both are imported only when one of their environments is made.

``seals/CartPole-v0``, ``seals/MountainCar-v0``, ``seals/Ant-v1``, … are those of `imitation`'s experiments: episodes of one
length, and positions among MuJoCo's observations. ``dm_control/cartpole-balance-v0``, … have observations flattened to one vector,
float32, in the order of their names, and episodes of 1,000 steps.
"""

from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
from gymnasium.wrappers import DtypeObservation, FlattenObservation, TimeLimit

SEALS_PREFIX = "seals/"
CONTROL_PREFIX = "dm_control/"
CONTROL_STEPS = 1_000
"""Steps of an episode of the DeepMind Control Suite."""


def register_external(name: str) -> None:
    """Register the ids of the package that the environment ``name`` belongs to, if it is one of these.

    Raises:
        ImportError: the package is not installed.
    """
    if name.startswith(SEALS_PREFIX):
        try:
            import seals  # noqa: F401 - registers its ids
        except ImportError as error:
            raise ImportError(f"{name} needs seals: pip install seals ({error}).") from error
        # Their environments are of MuJoCo's v4 ids, and gymnasium says at each that v5 is newer.
        warnings.filterwarnings("ignore", message=".*v4.*out of date.*")
    if name.startswith(CONTROL_PREFIX):
        try:
            import shimmy
            from dm_control import suite  # noqa: F401 - shimmy registers nothing without it
        except ImportError as error:
            raise ImportError(
                f"{name} needs shimmy and dm_control: pip install 'shimmy[dm-control]>=2' 'mujoco<4' ({error})."
            ) from error
        gymnasium.register_envs(shimmy)


def control(name: str, **options: Any) -> gymnasium.Env[Any, Any]:
    """Make the environment of the DeepMind Control Suite with the registered id ``name``.

    A task may end its episodes early; ``fixed/`` and ``absorbing/`` don't take these ids.
    """
    made: Any = FlattenObservation(gymnasium.make(name, **options))
    return TimeLimit(DtypeObservation(made, np.float32), CONTROL_STEPS)
