"""Environments by name, and the few of our own.

Importing this package registers ``rlhf_ray/CartPoleFixed-v0`` and ``rlhf_ray/MovingDot-v0`` with gymnasium. Procgen's
games need the ``procgen`` extra, and are imported when the first of them is made.
"""

from rlhf_ray.envs.registry import EnvCreator, is_natively_vectorised, make_env, make_vector_env, register
from rlhf_ray.envs.spaces import action_size, check_spaces, is_image

__all__ = [
    "EnvCreator",
    "action_size",
    "check_spaces",
    "is_image",
    "is_natively_vectorised",
    "make_env",
    "make_vector_env",
    "register",
]

register()
