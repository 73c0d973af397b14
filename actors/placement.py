"""Placement: where in the cluster a run's processes go, and what is missing where they do not fit."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy

from rlhf_ray.actors.ray_internals import free_resources
from rlhf_ray.data.errors import SettingError

logger = logging.getLogger(__name__)

CPUS = {
    "pool": 0.0,
    "gatherer": 0.2,
    "page": 0.0,
    "store": 0.0,
    "collector": 0.2,
    "reward_trainer": 0.5,
    "evaluator": 0.1,
}
"""CPUs each actor claims. In the synchronous ring one of them works at a time, in the asynchronous one only the reward trainer
works hard, so that together they claim one. The store claims none, to fit on the node it has to be on however full that is.
The evaluator is there in sweeps alone, which wait for it (rlhf_ray/sweeps/trial.py)."""

HOST = "host"
"""Role of the actor that those are in that share a process (`rlhf_ray.actors.host.ActorHost`)."""

NODES_WITHIN = 600.0
"""Seconds that a cluster is given to grow: a machine that an autoscaler orders takes minutes."""

SAY_EVERY = 60.0
"""Seconds between two messages that a run waits."""

Bundle = Mapping[str, float]
"""Resources that have to be on one node, by name."""


def ring_bundles(gpus: float) -> list[dict[str, float]]:
    """What the ring's actors claim: together, rounded up to whole CPUs, and before that the reward trainer where it has a GPU.

    Args:
        gpus: of the reward trainer (`RewardModelSettings.gpus`).
    """
    apart = {"reward_trainer"} if gpus else set()
    together = sum(cpus for role, cpus in CPUS.items() if role not in apart)
    return [
        *({"CPU": CPUS[role], "GPU": gpus} for role in apart),
        {"CPU": float(math.ceil(round(together, 6)))},
    ]


def one_machine() -> bool:
    """Whether Ray's cluster has a single node now."""
    return sum(bool(node["Alive"]) for node in ray.nodes()) == 1


def of_ring(role: str, gpus: float = 0.0) -> Any:
    """The scheduling strategy of one of the ring's actors, which claims so many GPUs.

    They stay on the caller's node, where the store's folder is, so that clips and labels travel between processes and not
    between machines; all but the store, the page and the pool, which write to that folder, elsewhere where there is no room, or
    no GPU. In one of Tune's trials they go where the
    trial has room for them: anywhere else they could take an env runner's place.
    """
    here = ray.get_runtime_context().get_node_id()
    if role in ("store", "page", "pool"):
        return NodeAffinitySchedulingStrategy(here, soft=False)
    group = ray.util.get_current_placement_group()
    if group is None and role == HOST:
        return NodeAffinitySchedulingStrategy(here, soft=False)
    if group is None:
        return NodeAffinitySchedulingStrategy(here, soft=True, _spill_on_unavailable=True)
    index = group.bundle_count - (2 if gpus else 1)  # as in `ring_bundles`, which come last
    return PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)


def await_room(
    bundles: Sequence[Bundle],
    *,
    nodes_within: float,
    say: Callable[[str], None] = logger.warning,
    look_every: float = 1.0,
) -> None:
    """Return once the cluster has room for ``bundles``, saying what it waits for.

    A cluster that is only busy is waited for as long as it takes.

    Args:
        bundles: each has to fit on one node.
        nodes_within: seconds that a cluster whose nodes are too few or too small is given to grow.
        say: is told what is waited for.
        look_every: seconds between two looks.

    Raises:
        SettingError: the cluster's nodes would be too few or too small even if nothing else ran on them.
    """
    started = time.monotonic()
    said_at = -SAY_EVERY
    while True:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        short = missing(bundles, nodes)
        free = free_resources() if short is None else []
        if short is None and missing(bundles, free) is None:
            return
        waited = time.monotonic() - started
        if short is not None and waited >= nodes_within:
            raise SettingError(
                f"This run does not fit on the Ray cluster: {short}. Lower ppo.num_env_runners, ppo.num_learners, "
                "ppo.gpus_per_learner or reward_model.gpus, or add nodes."
            )
        if waited - said_at >= SAY_EVERY:
            said_at = waited
            say(
                f"waiting for nodes: {short}"
                if short is not None
                else f"waiting until other runs leave room: {missing(bundles, free)} of what is free"
            )
        time.sleep(look_every)


def missing(bundles: Sequence[Bundle], nodes: Sequence[Bundle]) -> str | None:
    """What it takes that ``nodes`` with so many resources do not have, in words; None where all ``bundles`` fit on them."""
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
        f"it takes {needed} in {len(bundles)} pieces, and there are {there} on {len(nodes)} nodes; "
        f"{len(lacking)} pieces find no node, the first of them ({alone})"
    )
