"""Makes batches of environments that tools can question, by name."""

from __future__ import annotations

from typing import Any

from rlhf_ray.data.errors import SettingError
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.envs.cuerun import CueRunBatch
from rlhf_ray.envs.minirun import MiniRunBatch
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
        SettingError: no batch can be made of this environment.
    """
    if name in OWN:
        return OWN[name](n, **options)
    raise SettingError(f"There is no batch of {name!r}; choose from {', '.join(OWN)}.")
