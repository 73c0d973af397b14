"""Doctor: checks that the installation and the machines are fit for training. Each finding has a verdict and a remedy.

A check is a function of plain facts, so tests need no broken machine. `examine_machine` gathers the facts of this machine;
`rlhf_ray.cluster.examination` gathers those of a Ray cluster, with an `Examiner` on each node.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shutil
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlhf_ray.data import system
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

PACKAGE = "rlhf-ray"
GB = 1e9

MEMORY = 3 * GB
"""Free memory below which runs may be killed: a run on images used 2.4 GB, Ray included."""
DISK = 2 * GB
"""Free disk space below which a long run may fill the disk: preferences on images grow by a few MB per round."""
FULL = 0.95
"""Disk usage at which Ray stops storing objects on disk (its local_fs_capacity_threshold)."""
OBJECT_STORE = 200e6
"""Object store size in bytes below which fragments of image environments may not fit."""
CPUS = 2
"""CPUs that a run claims at least: one for RLlib's algorithm, one for the ring."""

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``problem``: training fails or is unsafe. ``remedy`` is set unless ``status`` is ``ok``."""

    check: str
    status: Status
    seen: str
    remedy: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """Facts about one node of a cluster, gathered on it. Sizes in bytes."""

    versions: dict[str, str]
    auth_mode: str
    torch_gpus: int
    gpu_devices: int
    """Number of NVIDIA GPUs that the operating system shows."""
    shared_memory: int | None
    temp_free: int
    temp_total: int


class Examiner:
    """Gathers the facts of its node. Ray runs one on each."""

    def examine(self, temp: str) -> NodeFacts:
        """Return the facts. ``temp`` is Ray's folder."""
        disk = shutil.disk_usage(temp)
        return NodeFacts(
            versions=own_versions(),
            auth_mode=os.environ.get("RAY_AUTH_MODE", "disabled").lower(),
            torch_gpus=torch.cuda.device_count(),
            gpu_devices=len(list(Path("/dev").glob("nvidia[0-9]*"))),
            shared_memory=system.shared_memory(),
            temp_free=disk.free,
            temp_total=disk.total,
        )


def own_versions() -> dict[str, str]:
    """Return the versions that must match on every node. CPU and GPU builds of a release count as one version."""
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in (PACKAGE, "ray", "torch")}
    return {"Python": platform.python_version()} | versions


def examine_machine() -> list[Finding]:
    """Run all checks of this installation and machine that need no Ray."""
    metadata = importlib.metadata.metadata(PACKAGE)
    requirements = [Requirement(line) for line in importlib.metadata.requires(PACKAGE) or []]
    runs = Path("runs") if Path("runs").is_dir() else Path()
    return [
        python(platform.python_version(), metadata["Requires-Python"]),
        packages([r for r in requirements if _needed(r)], installed),
        *extras(metadata.get_all("Provides-Extra") or [], requirements, installed),
        threads(torch.get_num_threads()),
        cpus(system.usable_cores()),
        memory(system.available_memory()),
        disk(runs.absolute(), shutil.disk_usage(runs).free, os.access(runs, os.W_OK)),
        token_file(Path.home() / ".ray" / "auth_token"),
    ]


def _judged(check: str, good: bool, otherwise: Status = "warning", about: str = "", **facts: Any) -> Finding:
    """Put a check into the words of ``doctor.toml``: NAME, NAME_seen and, unless it is good, NAME_remedy."""
    facts["good"] = good
    name, seen = (WORDS.text(key, **facts) for key in (check, f"{check}_seen"))
    title = f"{name} on {about}" if about else name
    return (
        Finding(title, "ok", seen) if good else Finding(title, otherwise, seen, WORDS.text(f"{check}_remedy", **facts))
    )


def python(version: str, wanted: str) -> Finding:
    """Check that the package supports this Python."""
    return _judged(
        "python", version in SpecifierSet(wanted), "problem", version=version, package=PACKAGE, wanted=wanted
    )


def installed(name: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages(requirements: Sequence[Requirement], version: Callable[[str], str | None]) -> Finding:
    """Check that the required packages are installed in supported versions."""
    wrong = _wrong(requirements, version)
    there = [f"{requirement.name} {version(requirement.name)}" for requirement in requirements]
    return _judged("packages", not wrong, "problem", wrong=wrong, there=there)


def extras(
    names: Sequence[str], requirements: Sequence[Requirement], version: Callable[[str], str | None]
) -> list[Finding]:
    """Check each optional extra: installed completely, or not at all.

    Nothing records which extras were installed, and single packages of an extra come with other packages. So an extra counts as
    installed if its first package, which it is for, and at least half of its packages are there.
    """
    findings = []
    for name in names:
        # Extras included in this one are checked separately.
        of_extra = [r for r in requirements if _needed(r, name) and not _needed(r) and r.name != PACKAGE]
        there = [version(r.name) is not None for r in of_extra]
        wrong = _wrong(of_extra, version)
        absent = not there or (bool(wrong) and (not there[0] or sum(there) < len(there) / 2))
        findings.append(_judged("extra", not wrong or absent, name=name, wrong=wrong, absent=absent))
    return findings


def _needed(requirement: Requirement, extra: str = "") -> bool:
    """Return whether this Python needs a package, with an extra or without."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def _wrong(requirements: Sequence[Requirement], version: Callable[[str], str | None]) -> list[str]:
    found = {r: version(r.name) for r in requirements}
    return [
        f"{r.name} is missing (needs {r.name}{r.specifier})" if has is None else f"{r.name} is {has}, not {r.specifier}"
        for r, has in found.items()
        if has is None or not r.specifier.contains(has, prereleases=True)
    ]


def threads(count: int) -> Finding:
    """Check that torch uses one thread per process."""
    return _judged("threads", count == 1, count=count)


def cpus(count: int) -> Finding:
    """Check that this machine has enough CPUs."""
    return _judged("cpus", count >= CPUS, count=count, cpus=CPUS)


def memory(available: int | None) -> Finding:
    """Check that enough memory is free; ``available`` is None if unknown."""
    size = None if available is None else _size(available)
    return _judged("memory", available is None or available >= MEMORY, available=size, needed=_size(MEMORY))


def disk(path: Path, free: int, writable: bool) -> Finding:
    """Check that a folder for runs is writable and has space."""
    status: Status = "warning" if writable else "problem"
    return _judged("disk", writable and free >= DISK, status, path=path, free=_size(free), writable=writable)


def token_file(path: Path) -> Finding:
    """Check that other users can't read Ray's token."""
    exists = path.exists()
    open_to_others = exists and bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    return _judged("token_file", not open_to_others, path=path, exists=exists)


def temp_folder(node: str, path: str, free: int, total: int) -> Finding:
    """Check that Ray has disk space for logs and spilled objects."""
    full = free < (1 - FULL) * total
    facts = {"path": path, "free": _size(free), "total": _size(total), "full": FULL if full else None}
    return _judged("temp_folder", free >= DISK and not full, "problem" if full else "warning", node, **facts)


def object_store(node: str, size: float, shared_memory: int | None) -> Finding:
    """Check that the object store is large enough and fits in shared memory."""
    fits = shared_memory is None or size <= shared_memory
    shared = None if shared_memory is None else _size(shared_memory)
    facts = {"size": _size(size), "shared": shared, "fits": fits, "least": OBJECT_STORE}
    return _judged("object_store", fits and size >= OBJECT_STORE, "warning", node, **facts)


def gpus(node: str, ray_gpus: float, torch_gpus: int, devices: int) -> Finding:
    """Check that the operating system, torch and Ray agree on the number of GPUs."""
    status: Status = "problem" if ray_gpus > torch_gpus else "warning"
    good = devices == torch_gpus == ray_gpus
    return _judged("gpus", good, status, node, ray=ray_gpus, torch=torch_gpus, devices=devices)


def versions(node: str, theirs: dict[str, str], mine: dict[str, str]) -> Finding:
    """Check that a node has the same versions of Python and packages as this machine."""
    different = [f"{name} {theirs[name]} (here {version})" for name, version in mine.items() if theirs[name] != version]
    seen = different or [f"{name} {version}" for name, version in theirs.items()]
    return _judged("versions", not different, "problem", node, seen=seen)


def token(modes: Sequence[str]) -> Finding:
    """Check that every node requires a token before running code; ``modes`` are their RAY_AUTH_MODE."""
    without = sum(mode != "token" for mode in modes)
    return _judged("token", not without, "problem" if len(modes) > 1 else "warning", without=without, nodes=len(modes))


def dashboard(url: str | None) -> Finding:
    """Check that Ray's dashboard, which runs code for anyone who reaches it, listens on the loopback interface only."""
    host = (url or "localhost:").removeprefix("http://").rpartition(":")[0].strip("[]")
    return _judged("dashboard", host in ("127.0.0.1", "localhost", "::1"), "problem", url=url)


def ports(taken: Sequence[int]) -> Finding:
    """Check that the ports of `ray start --head` are free."""
    return _judged("ports", not taken, taken=taken)


def cluster_cpus(count: float) -> Finding:
    """Check that Ray has the CPUs that a run claims."""
    return _judged("cluster_cpus", count >= CPUS, "problem", count=count, cpus=CPUS)


def _size(size: float) -> str:
    return f"{size / GB:.1f} GB"
