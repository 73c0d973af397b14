"""Placement: where in the cluster a run's processes go, and what is missing if they don't fit."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlhf_ray.data.errors import SettingError

logger = logging.getLogger(__name__)

CPUS = {
    "pool": 0.0,
    "gatherer": 0.2,
    "page": 0.0,
    "store": 0.0,
    "collector": 0.2,
    "reward_trainer": 0.5,
}
"""CPUs that each actor claims, one in total: in the synchronous mode only one actor works at a time, in the asynchronous mode only
the reward trainer works hard. The store claims none, so that it fits on its node however busy that is."""

HOST = "host"
"""Role of the actor that hosts those sharing a process (`rlhf_ray.actors.ray_executor.ActorHost`)."""

NODES_WITHIN = 600.0
"""Seconds for a cluster to grow: an autoscaler takes minutes to add a node."""

Bundle = Mapping[str, float]
"""Resources needed on one node, by name."""


def ring_bundles(gpus: float) -> list[dict[str, float]]:
    """Return the resource bundles of the ring's actors: the reward trainer's own if it has a GPU, then the rest in whole CPUs."""
    apart = {"reward_trainer"} if gpus else set()
    together = sum(cpus for role, cpus in CPUS.items() if role not in apart)
    return [
        *({"CPU": CPUS[role], "GPU": gpus} for role in apart),
        {"CPU": float(math.ceil(round(together, 6)))},
    ]


def one_machine() -> bool:
    """Return whether Ray's cluster has a single node."""
    return sum(bool(node["Alive"]) for node in ray.nodes()) == 1


def of_ring(role: str, gpus: float = 0.0) -> Any:
    """Return the scheduling strategy of one of the ring's actors.

    Actors run on the caller's node, which has the store's folder, so that fragments and labels move between processes and not
    between machines. Only the store, the page and the pool, which write to that folder, must run there; others move elsewhere if
    the node has no room or GPU. In a Tune trial, actors run in the trial's own bundles: elsewhere they could take an env runner's
    place.
    """
    here = ray.get_runtime_context().get_node_id()
    if role in ("store", "page", "pool"):
        return NodeAffinitySchedulingStrategy(here, soft=False)
    group = ray.util.get_current_placement_group()
    if group is None and role == HOST:
        return NodeAffinitySchedulingStrategy(here, soft=False)
    if group is None:
        return NodeAffinitySchedulingStrategy(here, soft=True, _spill_on_unavailable=True)
    index = group.bundle_count - (2 if gpus else 1)  # the bundles of `ring_bundles` come last
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def await_room(
    bundles: Sequence[Bundle],
    *,
    nodes_within: float,
    say: Callable[[str], None] = logger.warning,
    say_every: float = 60.0,
) -> None:
    """Wait until the cluster has room for ``bundles``: reserve them, so that an autoscaler adds nodes, and give them back.

    A busy cluster is waited for indefinitely.

    Args:
        bundles: resource bundles; each must fit on one node.
        nodes_within: seconds that a cluster with too few or too small nodes gets to grow.
        say: called with what it waits for.
        say_every: seconds between two such messages.

    Raises:
        SettingError: the cluster's nodes would be too few or too small even when idle.
    """
    wanted = [{name: amount for name, amount in bundle.items() if amount} for bundle in bundles]
    deadline = time.monotonic() + nodes_within
    group = ray.util.placement_group([bundle for bundle in wanted if bundle])
    try:
        while not group.wait(0.5):
            short = missing(bundles, [node["Resources"] for node in ray.nodes() if node["Alive"]])
            if short is not None and time.monotonic() >= deadline:
                raise SettingError(
                    f"This run doesn't fit on the Ray cluster: {short}. Reduce ppo.num_env_runners, ppo.num_learners, "
                    "ppo.gpus_per_learner or reward_model.gpus, or add nodes."
                )
            say("waiting for other runs to free resources" if short is None else f"waiting for nodes: {short}")
            if group.wait(say_every if short is None else min(say_every, max(0.5, deadline - time.monotonic()))):
                return
    finally:
        ray.util.remove_placement_group(group)


def missing(bundles: Sequence[Bundle], nodes: Sequence[Bundle]) -> str | None:
    """Describe what ``nodes`` lack to fit all ``bundles``; None if these fit."""
    left = [dict(node) for node in nodes]
    lacking: list[Bundle] = []
    for bundle in sorted(bundles, key=lambda bundle: [-bundle.get("GPU", 0.0), -bundle.get("CPU", 0.0)]):
        for node in left:
            if all(node.get(name, 0.0) + 1e-6 >= amount for name, amount in bundle.items()):
                for name, amount in bundle.items():
                    node[name] = node.get(name, 0.0) - amount
                break
        else:
            lacking.append(bundle)
    if not lacking:
        return None
    names = sorted({name for bundle in bundles for name in bundle})
    needed = ", ".join(f"{sum(bundle.get(name, 0.0) for bundle in bundles):g} {name}" for name in names)
    there = ", ".join(f"{sum(node.get(name, 0.0) for node in nodes):g} {name}" for name in names)
    alone = " + ".join(f"{amount:g} {name}" for name, amount in lacking[0].items())
    return (
        f"it needs {needed} in {len(bundles)} bundles, but there are {there} on {len(nodes)} nodes; "
        f"{len(lacking)} bundles fit on no node, the first of them ({alone})"
    )
