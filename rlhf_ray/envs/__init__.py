"""Environments by name, including a few of our own.

Importing this package registers ``rlhf_ray/CartPoleFixed-v0``, ``AcrobotFixed-v0``, ``HopperFixed-v0``, ``MovingDot-v0``,
``Pong-v0`` and the worlds whose reward is known (``CoinFlip-v0``, ``EmptyMaze10-v0``, …) with gymnasium. Procgen's games need the
``procgen`` extra, Hopper ``mujoco``, Pong and ``ALE/…`` ``atari``; each is imported only when an environment is made.
"""

from rlhf_ray.envs.batches import make_batch
from rlhf_ray.envs.likeness import carried_state
from rlhf_ray.envs.processes import EnvApart
from rlhf_ray.envs.registry import (
    EnvCreator,
    is_natively_vectorised,
    make_env,
    make_vector_env,
    register,
    steps_together,
    thread_options,
)
from rlhf_ray.envs.spaces import check_spaces
from rlhf_ray.envs.views import View, Viewed, notes, view_of, viewed

__all__ = [
    "EnvApart",
    "EnvCreator",
    "View",
    "Viewed",
    "carried_state",
    "check_spaces",
    "is_natively_vectorised",
    "make_batch",
    "make_env",
    "make_vector_env",
    "notes",
    "register",
    "steps_together",
    "thread_options",
    "view_of",
    "viewed",
]

register()
