"""Doctor: checks that the installation and the machines are fit for training. Each finding has a status and a remedy.

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
from typing import Literal

import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlhf_ray.data import system

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


def _judged(check: str, good: bool, seen: str, remedy: str, otherwise: Status = "warning") -> Finding:
    """Return the finding of a check: ok if it is ``good``, else ``otherwise`` with the remedy."""
    return Finding(check, "ok", seen) if good else Finding(check, otherwise, seen, remedy)


def python(version: str, wanted: str) -> Finding:
    """Check that the package supports this Python."""
    good = version in SpecifierSet(wanted)
    seen = version if good else f"{version}, but {PACKAGE} needs {wanted}"
    return _judged(
        "Python", good, seen, "Install a supported Python and run `make setup PYTHON=python3.11`.", "problem"
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
    seen = "; ".join(wrong) or ", ".join(there)
    return _judged("packages", not wrong, seen, "Install rlhf-ray again; in a checkout, run `make setup`.", "problem")


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
        seen = "not installed (optional)" if absent else "; ".join(wrong) or "installed"
        again = f"`pip install '/path/to/rlhf_ray[{name}]'`, or `make setup EXTRAS={name}` in a checkout"
        findings.append(_judged(f"extra {name}", absent or not wrong, seen, f"Install the extra again: {again}."))
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
    remedy = "Actors with several threads each slow each other down on a small machine: unset OMP_NUM_THREADS or set it to 1."
    return _judged("torch threads", count == 1, f"{count} per process", remedy)


def cpus(count: int) -> Finding:
    """Check that this machine has enough CPUs."""
    remedy = f"A run keeps {CPUS} busy; with fewer it works, but takes longer."
    return _judged("CPUs", count >= CPUS, f"{count} on this machine", remedy)


def memory(available: int | None) -> Finding:
    """Check that enough memory is free; ``available`` is None if unknown."""
    if available is None:
        return Finding("memory", "ok", "unknown: this system has no /proc/meminfo")
    remedy = (
        f"A run on images uses {_size(MEMORY)}, and Ray kills processes when memory runs out: close other programs, or reduce "
        "ppo.num_envs and fragments.pool."
    )
    return _judged("memory", available >= MEMORY, f"{_size(available)} available", remedy)


def disk(path: Path, free: int, writable: bool) -> Finding:
    """Check that a folder for runs is writable and has space."""
    if not writable:
        remedy = "Change to a folder that you own, or choose one with --run-dir."
        return Finding("disk for runs", "problem", f"{path} is not writable", remedy)
    remedy = "Free space, or choose a folder on another disk with --run-dir."
    return _judged("disk for runs", free >= DISK, f"{path}: {_size(free)} free", remedy)


def token_file(path: Path) -> Finding:
    """Check that other users can't read Ray's token."""
    if not path.exists():
        return Finding("token file", "ok", f"none yet at {path}; Ray creates one when needed")
    open_to_others = bool(path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH))
    seen = f"others on this machine can read {path}" if open_to_others else str(path)
    remedy = f"Anyone with the token can run code as you: `chmod 600 {path}`."
    return _judged("token file", not open_to_others, seen, remedy)


def temp_folder(node: str, path: str, free: int, total: int) -> Finding:
    """Check that Ray has disk space for logs and spilled objects."""
    full = free < (1 - FULL) * total
    stops = f"; Ray stops using a disk that is {FULL:.0%} full" if full else ""
    seen = f"{path}: {_size(free)} of {_size(total)} free{stops}"
    remedy = (
        "Free space there, or start Ray with another folder (`ray start --temp-dir`, or RAY_TMPDIR for a local run)."
    )
    return _judged(f"Ray's folder on {node}", free >= DISK and not full, seen, remedy, "problem" if full else "warning")


def object_store(node: str, size: float, shared_memory: int | None) -> Finding:
    """Check that the object store is large enough and fits in shared memory."""
    fits = shared_memory is None or size <= shared_memory
    seen = _size(size) + ("" if shared_memory is None else f", with {_size(shared_memory)} of shared memory")
    remedy = f"Fragments of images may not fit: `ray start --object-store-memory={OBJECT_STORE:.0f}`."
    if not fits:
        remedy = (
            "Ray then keeps objects on disk, which is slow. In Docker, set --shm-size; elsewhere, use a larger /dev/shm or a "
            "smaller --object-store-memory."
        )
    return _judged(f"object store on {node}", fits and size >= OBJECT_STORE, seen, remedy)


def gpus(node: str, ray_gpus: float, torch_gpus: int, devices: int) -> Finding:
    """Check that the operating system, torch and Ray agree on the number of GPUs."""
    good = devices == torch_gpus == ray_gpus
    seen = f"{devices} in the machine, {torch_gpus} visible to torch, {ray_gpus:g} to Ray"
    remedy = "To train on them, install a CUDA build of torch and a matching driver, and check CUDA_VISIBLE_DEVICES."
    if ray_gpus > torch_gpus:
        remedy = (
            "A process that gets a GPU from Ray would find none: install a CUDA build of torch and a driver, or run `ray start "
            "--num-gpus=0`."
        )
    elif torch_gpus > ray_gpus:
        remedy = f"To train on them, start Ray with --num-gpus={torch_gpus}."
    seen = "none; training runs on the CPU" if good and not devices else seen
    return _judged(f"GPUs on {node}", good, seen, remedy, "problem" if ray_gpus > torch_gpus else "warning")


def versions(node: str, theirs: dict[str, str], mine: dict[str, str]) -> Finding:
    """Check that a node has the same versions of Python and packages as this machine."""
    different = [f"{name} {theirs[name]} (here {version})" for name, version in mine.items() if theirs[name] != version]
    seen = ", ".join(different or [f"{name} {version}" for name, version in theirs.items()])
    remedy = "Actors need the same versions on every node: install them."
    return _judged(f"versions on {node}", not different, seen, remedy, "problem")


def token(modes: Sequence[str]) -> Finding:
    """Check that every node requires a token before running code; ``modes`` are their RAY_AUTH_MODE."""
    without = sum(mode != "token" for mode in modes)
    seen = f"{without} of {len(modes)} nodes run code from anyone who can reach them (RAY_AUTH_MODE is not token)"
    remedy = (
        "Run `ray get-auth-token --generate` once, copy ~/.ray/auth_token to every node, and set RAY_AUTH_MODE=token before `ray "
        "start` and before training."
    )
    seen = seen if without else "Ray requires a token"
    return _judged("token", not without, seen, remedy, "problem" if len(modes) > 1 else "warning")


def dashboard(url: str | None) -> Finding:
    """Check that Ray's dashboard, which runs code for anyone who reaches it, listens on the loopback interface only."""
    if not url:
        return Finding("dashboard", "ok", "not started")
    local = url.removeprefix("http://").rpartition(":")[0].strip("[]") in ("127.0.0.1", "localhost", "::1")
    seen = f"{url}, reachable only from that machine" if local else f"{url} is reachable from other machines"
    tunnel = "`ssh -L 8265:127.0.0.1:8265 HEAD`"
    remedy = f"Start the head with --dashboard-host=127.0.0.1 and reach it through an SSH tunnel: {tunnel}."
    return _judged("dashboard", local, seen, remedy, "problem")


def ports(taken: Sequence[int]) -> Finding:
    """Check that the ports of `ray start --head` are free."""
    seen = f"something listens on {', '.join(map(str, taken))}" if taken else "free for a Ray head here"
    remedy = (
        "A local run needs none of them. To use the Ray head that listens there, set RAY_ADDRESS (or --address); otherwise start "
        "yours on other ports: `ray start --head` with --port, --dashboard-port, --ray-client-server-port."
    )
    return _judged("ports", not taken, seen, remedy)


def cluster_cpus(count: float) -> Finding:
    """Check that Ray has the CPUs that a run claims."""
    remedy = f"A run claims {CPUS} and would wait for them forever: add a node, or use `ray start --num-cpus={CPUS}`."
    return _judged("CPUs in Ray", count >= CPUS, f"{count:g}", remedy, "problem")


def _size(size: float) -> str:
    return f"{size / GB:.1f} GB"
