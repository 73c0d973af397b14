"""Identify an environment by its code: results about it are kept as long as it does the same."""

from __future__ import annotations

import gymnasium as gym

from rlhf_ray.data.errors import Fault, SettingError
from rlhf_ray.data.identity import identify, installed
from rlhf_ray.envs.registry import make_env


def identity_of(name: str | None) -> str:
    """Return a hash of an environment's registration, and of the instance that is made by it if its class is a user's own.

    Args:
        name: as for `rlhf_ray.envs.make_env`. One that can't be made is its name.
    """
    if name is None:
        return ""
    try:
        env = make_env(name)
    except (Fault, ImportError, SettingError, ValueError, gym.error.Error):
        return name
    made = env.unwrapped
    own = made if not installed(type(made).__module__) else type(made)
    found = identify(name, gym.registry.get(name.rpartition(":")[2]), own)
    env.close()  # type: ignore[no-untyped-call]
    return found
