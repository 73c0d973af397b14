"""Makes batches of environments that tools can question, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.envs.gym_batch import GymBatch
from rlhf_ray.envs.procgen_batch import ProcgenBatch
from rlhf_ray.envs.registry import PROCGEN_PREFIX, check_gymnasium_id, procgen_game_and_mode

BATCHES: dict[str, Callable[..., EnvBatch]] = {}
"""Batches of one's own by the registered id of their environment, each made from ``n`` and options. The module that registers an
environment may add its batch."""


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
    module, _, own = name.rpartition(":")
    if module:
        check_gymnasium_id(name)  # imports the module
    if own in BATCHES:
        return BATCHES[own](n, **options)
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
        self._registered, self._batch = gymnasium.registry.get(name), BATCHES.get(name)

    def __call__(self, n: int) -> EnvBatch:
        """Make ``n`` copies."""
        if self._registered is not None:
            gymnasium.registry.setdefault(self.name, self._registered)
        if self._batch is not None:
            BATCHES.setdefault(self.name, self._batch)
        return make_batch(self.name, n)
