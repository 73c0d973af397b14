"""Makes batches of environments that tools can question, by name."""

from __future__ import annotations

from typing import Any

import gymnasium

from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.envs.cuerun import CueRunBatch
from rlhf_ray.envs.gym_batch import GymBatch
from rlhf_ray.envs.minirun import MiniRunBatch
from rlhf_ray.envs.procgen_batch import ProcgenBatch
from rlhf_ray.envs.registry import PROCGEN_PREFIX, procgen_game_and_mode
from rlhf_ray.envs.static_bounce import StaticBounceBatch

OWN: dict[str, Any] = {batch.name: batch for batch in (MiniRunBatch, CueRunBatch, StaticBounceBatch)}
"""Worlds that are batches themselves, by id."""


def make_batch(name: str, n: int, **options: Any) -> EnvBatch:
    """Make ``n`` copies of an environment.

    Args:
        name: as for `make_env`.
        n: number of copies.
        **options: as for `make_env`.

    Raises:
        ValueError: no environment has this name; the message lists the closest ones.
        SettingError: an option is invalid.
    """
    if name in OWN:
        return OWN[name](n, **options)  # type: ignore[no-any-return]
    if name.startswith(PROCGEN_PREFIX):
        procgen_game_and_mode(name)
        return ProcgenBatch(name, n, **options)
    return GymBatch(name, n, **options)


class BatchCreator:
    """Makes copies of the environment ``name``, also in a process that doesn't know it.

    Pickling it includes an environment that a script registered under that name.

    Args:
        name: as for `make_batch`.
    """

    def __init__(self, name: str):
        self.name = name
        self._registered = gymnasium.registry.get(name)

    def __call__(self, n: int) -> EnvBatch:
        """Make ``n`` copies."""
        if self._registered is not None:
            gymnasium.registry.setdefault(self.name, self._registered)
        return make_batch(self.name, n)
