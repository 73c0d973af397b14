"""The checks of `rlhf_ray.cluster.doctor` that need Ray: whether it starts, and the state of its nodes."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlhf_ray.actors.access import NoAccessError
from rlhf_ray.actors.cluster import start_ray
from rlhf_ray.cluster import doctor
from rlhf_ray.cluster.doctor import Examiner, Finding, NodeFacts

HEAD_PORTS = (6379, 8265, 10001)
"""Ports of `ray start --head`: the cluster's, the dashboard's and the Ray client's."""
PATIENCE_S = 120.0
"""Seconds that a node may take to run an actor; on a busy machine, importing torch takes most of a minute."""


def examine_ports() -> Finding:
    """Check which of a Ray head's ports are taken on this machine."""

    def taken(port: int) -> bool:
        with socket.socket() as probe:
            probe.settimeout(1.0)
            return probe.connect_ex(("127.0.0.1", port)) == 0

    return doctor.ports([port for port in HEAD_PORTS if taken(port)])


def examine_cluster() -> list[Finding]:
    """Run all checks that need Ray. Starts it, or connects to it, as training would."""
    try:
        start_ray(doctor.CPUS)
    except NoAccessError as error:
        return [Finding("Ray", "problem", error.seen, error.remedy)]
    except Exception as error:  # any error here is a finding
        remedy = (
            "If RAY_ADDRESS is set, check that its cluster runs the same Ray and Python. Otherwise, see the logs in "
            "/tmp/ray/session_latest/logs."
        )
        return [Finding("Ray", "problem", f"doesn't start: {error}", remedy)]
    nodes = [node for node in ray.nodes() if node["Alive"]]
    url = ray.init(ignore_reinit_error=True, logging_level="ERROR").dashboard_url
    facts = list(_examine(nodes))
    modes = [fact.auth_mode for fact in facts if isinstance(fact, NodeFacts)]
    findings = [
        Finding("Ray", "ok", f"runs, with {len(nodes)} node{'s' if len(nodes) > 1 else ''}"),
        *([doctor.token(modes)] if modes else []),
        doctor.dashboard(url),
        doctor.cluster_cpus(ray.cluster_resources().get("CPU", 0.0)),
    ]
    for node, fact in zip(nodes, facts, strict=True):
        findings += [fact] if isinstance(fact, Finding) else _of_node(node, fact)
    return findings


def _examine(nodes: list[dict[str, Any]]) -> Iterator[NodeFacts | Finding]:
    """Yield each node's facts, from an actor on it; or a finding if the actor fails."""
    options: dict[str, Any] = {
        "num_cpus": 0,
        "runtime_env": {"env_vars": {"RAY_EXPERIMENTAL_NOSET_CUDA_VISIBLE_DEVICES": "1"}},
    }
    actors = [
        ray.remote(Examiner)
        .options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False), **options)
        .remote()
        for node in nodes
    ]
    asked = [actor.examine.remote(_temp(node)) for actor, node in zip(actors, nodes, strict=True)]
    for node, answer in zip(nodes, asked, strict=True):
        try:
            yield ray.get(answer, timeout=PATIENCE_S)
        except Exception as error:  # any error here is a finding
            what = str(error).strip().splitlines()[-1:] or [type(error).__name__]
            yield Finding(
                f"actor on {_name(node)}",
                "problem",
                f"doesn't run: {what[0]}",
                "Check that rlhf_ray is installed there, for the same Python; see `ray list nodes` and the node's logs.",
            )


def _of_node(node: dict[str, Any], fact: NodeFacts) -> list[Finding]:
    name, resources = _name(node), node["Resources"]
    return [
        Finding(f"actor on {name}", "ok", "runs"),
        doctor.versions(name, fact.versions, doctor.own_versions()),
        doctor.temp_folder(name, _temp(node), fact.temp_free, fact.temp_total),
        doctor.object_store(name, resources.get("object_store_memory", 0.0), fact.shared_memory),
        doctor.gpus(name, resources.get("GPU", 0.0), fact.torch_gpus, fact.gpu_devices),
    ]


def _name(node: dict[str, Any]) -> str:
    return str(node["NodeManagerAddress"])


def _temp(node: dict[str, Any]) -> str:
    """Return Ray's folder on a node, from FOLDER/session_…/sockets/plasma_store."""
    return str(Path(node["ObjectStoreSocketName"]).parents[2])
