"""Doctor: is this installation, and are the machines, fit to train on? Each check says what it found and what to do about it.

A check is a function of plain facts, so that every verdict can be shown without a machine that deserves it. `examine_machine`
gathers those of this machine; those of a Ray cluster come from `rlhf_ray.cluster.examination`, by an `Examiner` on each node.
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

PACKAGE = "rlhf-ray"
GB = 1e9

MEMORY = 3 * GB
"""Free memory below which runs may be killed: a run on images with its Ray took 2.4 GB."""
DISK = 2 * GB
"""Free disk below which a long run may fill it: preferences on images grow by some MB for each round."""
FULL = 0.95
"""Share of a disk at which Ray refuses to put objects there (its local_fs_capacity_threshold)."""
OBJECT_STORE = 200e6
"""Bytes of the object store below which the clips of image environments may not fit together."""
CPUS = 2
"""CPUs that a run claims at least: RLlib's algorithm and the ring."""

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """What a check came to: ``problem`` if training cannot work or is unsafe; ``remedy`` says what to do if it is not ``ok``."""

    check: str
    status: Status
    seen: str
    remedy: str = ""


@dataclass(frozen=True)
class NodeFacts:
    """What there is to know about one machine of a cluster, from inside it. Sizes in bytes."""

    versions: dict[str, str]
    auth_mode: str
    torch_gpus: int
    gpu_devices: int
    """NVIDIA GPUs that the operating system shows."""
    shared_memory: int
    temp_free: int
    temp_total: int


class Examiner:
    """Gathers the facts of the machine it is on. Ray runs one on each node."""

    def examine(self, temp: str) -> NodeFacts:
        """The facts; ``temp`` is Ray's folder."""
        disk = shutil.disk_usage(temp)
        return NodeFacts(
            versions=own_versions(),
            auth_mode=os.environ.get("RAY_AUTH_MODE", "disabled").lower(),
            torch_gpus=torch.cuda.device_count(),
            gpu_devices=len(list(Path("/dev").glob("nvidia[0-9]*"))),
            shared_memory=shutil.disk_usage("/dev/shm").total,
            temp_free=disk.free,
            temp_total=disk.total,
        )


def own_versions() -> dict[str, str]:
    """The versions, here, of what must be the same on every node. Builds of a release for CPUs and GPUs are one version."""
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in (PACKAGE, "ray", "torch")}
    return {"Python": platform.python_version()} | versions


def examine_machine() -> list[Finding]:
    """All checks of this installation and this machine that need no Ray."""
    metadata = importlib.metadata.metadata(PACKAGE)
    requirements = [Requirement(line) for line in importlib.metadata.requires(PACKAGE) or []]
    runs = Path("runs") if Path("runs").is_dir() else Path()
    return [
        python(platform.python_version(), metadata["Requires-Python"]),
        packages([r for r in requirements if r.marker is None or r.marker.evaluate({"extra": ""})], installed),
        *extras(metadata.get_all("Provides-Extra") or [], requirements, installed),
        threads(torch.get_num_threads()),
        cpus(len(os.sched_getaffinity(0))),
        memory(_available_memory()),
        disk(runs.absolute(), shutil.disk_usage(runs).free, os.access(runs, os.W_OK)),
        token_file(Path.home() / ".ray" / "auth_token"),
    ]


def _judged(check: str, good: bool, seen: str, remedy: str, otherwise: Status = "warning") -> Finding:
    return Finding(check, "ok", seen) if good else Finding(check, otherwise, seen, remedy)


def python(version: str, wanted: str) -> Finding:
    """Whether this Python is one the package is made for."""
    good = version in SpecifierSet(wanted)
    seen = version if good else f"{version}, and {PACKAGE} needs {wanted}"
    remedy = "Install a Python of that range and run `make setup PYTHON=python3.11`."
    return _judged("Python", good, seen, remedy, "problem")


def installed(name: str) -> str | None:
    """The installed version of a package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def packages(requirements: Sequence[Requirement], version: Callable[[str], str | None]) -> Finding:
    """Whether the packages that are required are there, in versions that fit."""
    wrong = _wrong(requirements, version)
    if not wrong:
        return Finding("packages", "ok", ", ".join(f"{r.name} {version(r.name)}" for r in requirements))
    return Finding("packages", "problem", "; ".join(wrong), "Run `make setup`, which installs the versions asked for.")


def extras(
    names: Sequence[str], requirements: Sequence[Requirement], version: Callable[[str], str | None]
) -> list[Finding]:
    """Of each optional extra, whether it is installed, and rightly."""
    findings = []
    for name in names:
        # What an extra takes from others is looked at with those.
        of_extra = [r for r in requirements if r.marker and r.marker.evaluate({"extra": name}) and r.name != PACKAGE]
        check, remedy = f"extra {name}", f"Run `make setup EXTRAS={name}`."
        wrong = _wrong(of_extra, version)
        if not wrong:
            findings.append(Finding(check, "ok", "installed"))
        elif not any(version(r.name) for r in of_extra):
            findings.append(Finding(check, "ok", "not installed; it is optional"))
        else:
            findings.append(Finding(check, "warning", "; ".join(wrong), remedy))
    return findings


def _wrong(requirements: Sequence[Requirement], version: Callable[[str], str | None]) -> list[str]:
    found = {r: version(r.name) for r in requirements}
    return [
        f"{r.name} is missing ({r.name}{r.specifier} is asked for)"
        if has is None
        else f"{r.name} is {has}, not {r.specifier}"
        for r, has in found.items()
        if has is None or not r.specifier.contains(has, prereleases=True)
    ]


def threads(count: int) -> Finding:
    """Whether torch keeps to one thread."""
    remedy = (
        "Several actors with several threads each slow each other down on a small machine: unset OMP_NUM_THREADS or set "
        "it to 1."
    )
    return _judged("torch threads", count == 1, f"{count} for each process", remedy)


def cpus(count: int) -> Finding:
    """Whether this machine's CPUs are enough."""
    remedy = f"A run keeps {CPUS} busy: it works with fewer, and takes longer."
    return _judged("CPUs", count >= CPUS, f"{count} on this machine", remedy)


def memory(available: int | None) -> Finding:
    """Whether enough memory is free; None where the system does not tell."""
    if available is None:
        return Finding("memory", "ok", "unknown: this system has no /proc/meminfo")
    remedy = (
        f"A run on images takes {_size(MEMORY)}, and Ray kills processes when memory runs out: end other programs, or make "
        "ppo.num_envs and fragments.pool smaller."
    )
    return _judged("memory", available >= MEMORY, f"{_size(available)} available", remedy)


def disk(path: Path, free: int, writable: bool) -> Finding:
    """Whether a folder for runs can be written to and has room."""
    check = "disk for runs"
    if not writable:
        remedy = "Change to a folder of yours, or name one: --run-dir."
        return Finding(check, "problem", f"{path} cannot be written to", remedy)
    remedy = "Make room, or name a folder on another disk: --run-dir."
    return _judged(check, free >= DISK, f"{path}: {_size(free)} free", remedy)


def token_file(path: Path) -> Finding:
    """Whether nobody else can read Ray's token."""
    if not path.exists():
        return Finding("token file", "ok", f"none yet at {path}; Ray makes one when it first needs it")
    open_to_others = path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    seen = f"others on this machine can read {path}" if open_to_others else str(path)
    remedy = f"Whoever has the token can run code as you: `chmod 600 {path}`."
    return _judged("token file", not open_to_others, seen, remedy)


def temp_folder(node: str, path: str, free: int, total: int) -> Finding:
    """Whether Ray has room for logs and objects that memory does not hold."""
    check, seen = f"Ray's folder on {node}", f"{path}: {_size(free)} of {_size(total)} free"
    remedy = (
        "Make room there, or start Ray with another folder (`ray start --temp-dir`, or RAY_TMPDIR for a local run)."
    )
    if free < (1 - FULL) * total:
        return Finding(check, "problem", f"{seen}; Ray stops using a disk that is {FULL:.0%} full", remedy)
    return _judged(check, free >= DISK, seen, remedy)


def object_store(node: str, size: float, shared_memory: int) -> Finding:
    """Whether the object store is large enough and lies in memory."""
    check, seen = f"object store on {node}", f"{_size(size)}, with {_size(shared_memory)} of shared memory"
    if size > shared_memory:
        remedy = (
            "Ray keeps objects on disk then, which is slow. In Docker: --shm-size; else a larger /dev/shm or a smaller "
            "--object-store-memory."
        )
        return Finding(check, "warning", seen, remedy)
    remedy = f"Clips of images may not fit: `ray start --object-store-memory={OBJECT_STORE:.0f}`."
    return _judged(check, size >= OBJECT_STORE, seen, remedy)


def gpus(node: str, ray_gpus: float, torch_gpus: int, devices: int) -> Finding:
    """Whether the GPUs that are there, those that torch can use and those that Ray gives out are the same."""
    check, seen = f"GPUs on {node}", f"{devices} in the machine, {torch_gpus} visible to torch, {ray_gpus:g} to Ray"
    if devices == torch_gpus == ray_gpus:
        return Finding(check, "ok", seen if devices else "none; training runs on the CPU")
    if ray_gpus > torch_gpus:
        remedy = (
            "What asks Ray for a GPU would find none: install a CUDA build of torch and its driver, or "
            "`ray start --num-gpus=0`."
        )
    elif torch_gpus > ray_gpus:
        remedy = f"To train on them, start Ray with --num-gpus={torch_gpus}."
    else:
        remedy = (
            "To train on them, install a CUDA build of torch and a driver that fits, and look at CUDA_VISIBLE_DEVICES."
        )
    return Finding(check, "problem" if ray_gpus > torch_gpus else "warning", seen, remedy)


def versions(node: str, theirs: dict[str, str], mine: dict[str, str]) -> Finding:
    """Whether a node runs the same Python and packages as this machine."""
    different = [f"{name} {theirs[name]} (here {version})" for name, version in mine.items() if theirs[name] != version]
    seen = ", ".join(different or [f"{name} {version}" for name, version in theirs.items()])
    remedy = "Actors cannot move between versions: install the same on every node."
    return _judged(f"versions on {node}", not different, seen, remedy, "problem")


def token(modes: Sequence[str]) -> Finding:
    """Whether every node asks for a token before it runs somebody's code; ``modes`` are their RAY_AUTH_MODE."""
    without = sum(mode != "token" for mode in modes)
    if not without:
        return Finding("token", "ok", "Ray asks for a token")
    return Finding(
        "token",
        "problem" if len(modes) > 1 else "warning",
        f"{without} of {len(modes)} nodes run whatever code reaches them (RAY_AUTH_MODE is not token)",
        "`ray get-auth-token --generate` once, copy ~/.ray/auth_token to every node, and set RAY_AUTH_MODE=token before "
        "`ray start` and before training.",
    )


def dashboard(url: str | None) -> Finding:
    """Whether Ray's dashboard, which runs code for whoever reaches it, listens to this machine alone."""
    if not url:
        return Finding("dashboard", "ok", "not started")
    good = url.removeprefix("http://").rpartition(":")[0].strip("[]") in ("127.0.0.1", "localhost", "::1")
    seen = f"{url}, reachable from that machine only" if good else f"{url} is reachable from other machines"
    remedy = "Start the head with --dashboard-host=127.0.0.1 and reach it through an SSH tunnel: `ssh -L 8265:127.0.0.1:8265 HEAD`."
    return _judged("dashboard", good, seen, remedy, "problem")


def ports(taken: Sequence[int]) -> Finding:
    """Whether the ports that `ray start --head` wants are free."""
    seen = f"something listens on {', '.join(map(str, taken))}" if taken else "free for a Ray head here"
    remedy = (
        "A run by itself needs none of them. If it is a Ray head you want to use, set RAY_ADDRESS (or --address); if not, "
        "`ray start --head` needs others: --port, --dashboard-port, --ray-client-server-port."
    )
    return _judged("ports", not taken, seen, remedy)


def cluster_cpus(count: float) -> Finding:
    """Whether Ray has the CPUs that a run claims."""
    remedy = f"A run claims {CPUS} and would wait for them for ever: add a node, or `ray start --num-cpus={CPUS}`."
    return _judged("CPUs in Ray", count >= CPUS, f"{count:g}", remedy, "problem")


def _available_memory() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)


def _size(size: float) -> str:
    return f"{size / GB:.1f} GB"
