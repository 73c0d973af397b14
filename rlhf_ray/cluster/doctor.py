"""Doctor: checks that the installation, this machine and Ray are fit for training. Each finding has a status and a remedy.

A check of the machine is a function of plain facts, so tests need no broken machine.
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

import ray
import torch
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from rlhf_ray.actors.access import NoAccessError
from rlhf_ray.actors.cluster import start_ray
from rlhf_ray.data import system

PACKAGE = "rlhf-ray"
GB = 1e9

MEMORY = 3 * GB
"""Free memory below which runs may be killed: a run on images used 2.4 GB, Ray included."""
DISK = 2 * GB
"""Free disk space below which a long run may fill the disk: preferences on images grow by a few MB per round."""
CPUS = 2
"""CPUs that a run claims at least: one for RLlib's algorithm, one for the ring."""

Status = Literal["ok", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """The result of a check. ``problem``: training fails or is unsafe. ``remedy`` is empty if ``status`` is ``ok``."""

    check: str
    status: Status
    seen: str
    remedy: str = ""


def examine_machine() -> list[Finding]:
    """Run all checks of this installation and machine that need no Ray."""
    requirements = [Requirement(line) for line in importlib.metadata.requires(PACKAGE) or []]
    needed = [one for one in requirements if one.marker is None or one.marker.evaluate({"extra": ""})]
    runs = Path("runs") if Path("runs").is_dir() else Path()
    return [
        python(platform.python_version(), importlib.metadata.metadata(PACKAGE)["Requires-Python"]),
        packages(needed, installed),
        threads(torch.get_num_threads()),
        cpus("CPUs", system.usable_cores()),
        memory(system.available_memory()),
        disk(runs.absolute(), shutil.disk_usage(runs).free, os.access(runs, os.W_OK)),
        token_file(Path.home() / ".ray" / "auth_token"),
    ]


def examine_ray() -> list[Finding]:
    """Start Ray, or connect to it, as training would, and check what it has."""
    try:
        start_ray(CPUS)
    except NoAccessError as error:
        return [Finding("Ray", "problem", error.seen, error.remedy)]
    except Exception as error:  # any error here is a finding
        remedy = "Check that RAY_ADDRESS's cluster runs the same Ray and Python; see /tmp/ray/session_latest/logs."
        return [Finding("Ray", "problem", f"doesn't start: {error}", remedy)]
    nodes = sum(bool(node["Alive"]) for node in ray.nodes())
    return [
        Finding("Ray", "ok", f"runs, with {nodes} node{'s' if nodes > 1 else ''}"),
        token(os.environ.get("RAY_AUTH_MODE", "disabled").lower(), nodes),
        cpus("CPUs in Ray", int(ray.cluster_resources().get("CPU", 0.0))),
    ]


def installed(name: str) -> str | None:
    """Return the installed version of a package, or None."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def python(version: str, wanted: str) -> Finding:
    """Check that the package supports this Python."""
    if version in SpecifierSet(wanted):
        return Finding("Python", "ok", version)
    remedy = "Install a supported Python and run `make setup PYTHON=python3.11`."
    return Finding("Python", "problem", f"{version}, but {PACKAGE} needs {wanted}", remedy)


def packages(requirements: Sequence[Requirement], version: Callable[[str], str | None]) -> Finding:
    """Check that the required packages are installed in supported versions."""
    found = {requirement: version(requirement.name) for requirement in requirements}
    wrong = [
        f"{requirement.name} is {has or 'missing'}, not {requirement.specifier}"
        for requirement, has in found.items()
        if has is None or not requirement.specifier.contains(has, prereleases=True)
    ]
    if not wrong:
        return Finding("packages", "ok", ", ".join(f"{requirement.name} {has}" for requirement, has in found.items()))
    return Finding("packages", "problem", "; ".join(wrong), "Install rlhf-ray again; in a checkout, run `make setup`.")


def threads(count: int) -> Finding:
    """Check that torch uses one thread per process."""
    remedy = "Actors with several threads each slow each other down on a small machine: unset OMP_NUM_THREADS or set it to 1."
    return _finding("torch threads", count == 1, f"{count} per process", remedy)


def cpus(check: str, count: int) -> Finding:
    """Check that there are enough CPUs."""
    return _finding(check, count >= CPUS, str(count), f"A run keeps {CPUS} busy; with fewer it takes longer.")


def memory(available: int | None) -> Finding:
    """Check that enough memory is free; ``available`` is None if unknown."""
    seen = "unknown: this system has no /proc/meminfo" if available is None else f"{available / GB:.1f} GB available"
    remedy = "Ray kills processes when memory runs out: close programs, or reduce ppo.num_envs and fragments.pool."
    return _finding("memory", available is None or available >= MEMORY, seen, remedy)


def disk(path: Path, free: int, writable: bool) -> Finding:
    """Check that a folder for runs is writable and has space."""
    if not writable:
        return Finding("disk for runs", "problem", f"{path} is not writable", "Choose another folder with --run-dir.")
    remedy = "Free space, or choose a folder on another disk with --run-dir."
    return _finding("disk for runs", free >= DISK, f"{path}: {free / GB:.1f} GB free", remedy)


def token_file(path: Path) -> Finding:
    """Check that other users can't read Ray's token."""
    if not path.exists():
        return Finding("token file", "ok", f"none yet at {path}; Ray creates one when needed")
    closed = not path.stat().st_mode & (stat.S_IRGRP | stat.S_IROTH)
    seen = str(path) if closed else f"others on this machine can read {path}"
    return _finding("token file", closed, seen, f"Anyone with the token can run code as you: `chmod 600 {path}`.")


def token(mode: str, nodes: int) -> Finding:
    """Check that Ray requires a token before it runs code; ``mode`` is RAY_AUTH_MODE."""
    if mode == "token":
        return Finding("token", "ok", "Ray requires a token")
    seen = f"Ray runs code from anyone who can reach it (RAY_AUTH_MODE is {mode})"
    remedy = (
        "Run `ray get-auth-token --generate` once, copy ~/.ray/auth_token to every node, and set RAY_AUTH_MODE=token before "
        "`ray start` and before training."
    )
    return Finding("token", "problem" if nodes > 1 else "warning", seen, remedy)


def _finding(check: str, good: bool, seen: str, remedy: str) -> Finding:
    return Finding(check, "ok", seen) if good else Finding(check, "warning", seen, remedy)
