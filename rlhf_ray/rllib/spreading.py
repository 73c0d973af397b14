"""Env runners on different nodes, where no placement group says where they go."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import ray
from ray.rllib.algorithms import algorithm
from ray.rllib.env.env_runner_group import EnvRunnerGroup


class _SpreadGroup(EnvRunnerGroup):  # type: ignore[misc]
    """An `EnvRunnerGroup` that asks Ray to spread its actors. RLlib has no setting for it outside of placement groups."""

    @property
    def _remote_args(self) -> dict[str, Any]:
        return self._arguments

    @_remote_args.setter
    def _remote_args(self, arguments: dict[str, Any]) -> None:
        self._arguments = arguments | {"scheduling_strategy": "SPREAD"}


@contextlib.contextmanager
def spread_env_runners() -> Iterator[None]:
    """Within it, algorithms that are set up spread their env runners over the cluster.

    By itself Ray fills the node of the caller to half first, which is where the learner and the ring's actors are. In a trial of
    Tune's nothing changes: its placement group has a place for each.
    """
    if ray.util.get_current_placement_group() is not None:
        yield
        return
    before = algorithm.EnvRunnerGroup
    algorithm.EnvRunnerGroup = _SpreadGroup
    try:
        yield
    finally:
        algorithm.EnvRunnerGroup = before
