"""Start: what `rlhf-ray` costs before any learning: CPU seconds of each help text and of the smallest run, and a run's memory.

CPU seconds are summed over all processes that a command starts, Ray's included, each read from /proc every 20 ms until it ends:
which depends on the load of the machine less than wall time does. How much it does, tells the yardstick: CPU seconds of
`import torch`. The smallest run is one iteration on Pendulum with four comparisons, one
evaluation episode and the report. Memory is the most that a run of a few iterations ever holds (the peak of each process's resident
set, summed), which the kernel keeps: samples would miss it.

    python benchmarks/start.py            # everything; prints a table
    python benchmarks/start.py --only run memory

Writes benchmarks/results/start.json.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.record import record

HELP = [
    f"{words} --help".strip()
    for words in ("", "train", "train pendulum", "evaluate", "record", "fit", "label", "links")
]
HELP += ["tune pendulum --help", "store --help", "submit --help", "doctor --help"]
SMALLEST = (
    "train pendulum --total-env-steps 400 --fragments.initial-env-steps 200 --preferences.comparisons 4 --preferences.rounds 1 "
    "--ppo.num-envs 1 --ppo.epochs 1 --reward-model.initial-updates 10 --evaluation-episodes 1"
)
A_FEW_ITERATIONS = "train pendulum --total-env-steps 17600 --evaluation-episodes 1"
PR_SET_CHILD_SUBREAPER = 36
YARDSTICK = [sys.executable, "-c", "import torch"]


class Family:
    """All processes that a command starts, however they are related to it, and the CPU seconds that each has taken."""

    def __init__(self) -> None:
        self.seconds: dict[int, float] = {}
        self.names: dict[int, str] = {}

    def look(self) -> set[int]:
        """Read the CPU seconds of those alive, and give their ids. Orphans are this process's children: it is their reaper."""
        alive = set()
        for process in psutil.Process().children(recursive=True):
            self.names.setdefault(process.pid, "")
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                self.seconds[process.pid] = times.user + times.system
                alive.add(process.pid)
                name = _name(process.cmdline())
                if name and not name.startswith("ray::IDLE"):
                    self.names[process.pid] = name
        return alive

    def by_name(self) -> dict[str, float]:
        """CPU seconds of each kind of process."""
        total = Counter[str]()
        for pid, seconds in self.seconds.items():
            total[self.names[pid]] += seconds  # type: ignore[assignment]
        return {name: round(seconds, 2) for name, seconds in total.most_common()}


def _name(words: list[str]) -> str:
    """What a process is: Ray gives its workers titles, and of others the program counts."""
    if not words:
        return ""
    if words[0].startswith("ray::"):
        return words[0].partition(".")[0]
    return next((Path(word).name for word in words if not word.startswith("-") and "bin/python" not in word), "python")


def measure(words: str, folder: Path, *, memory: bool = False) -> dict[str, Any]:
    """Run a command and find out what it takes."""
    program = str(Path(sys.executable).with_name("rlhf-ray"))
    run = ["--run-dir", str(folder / "run")] if "--total-env-steps" in words else []
    return follow([program, *shlex.split(words), *run], folder, memory=memory)


def follow(command: list[str], folder: Path, *, memory: bool = False) -> dict[str, Any]:
    """Run any command and find out what it takes."""
    environment = os.environ | {"RAY_USAGE_STATS_ENABLED": "0"}
    family, peaks = Family(), dict[int, float]()
    began = time.monotonic()
    with (folder / "log").open("w+") as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment)
        while True:
            alive = family.look()
            if process.poll() is not None:
                break
            for pid in alive if memory else ():
                peaks[pid] = max(peaks.get(pid, 0.0), peak_gb(pid))
            time.sleep(0.02)
        wall = time.monotonic() - began
        _reap(family)
        if process.returncode:
            raise RuntimeError(f"{shlex.join(command)} ended with {process.returncode}: {Path(log.name).read_text()}")
    found: dict[str, Any] = {
        "cpu_seconds": round(sum(family.seconds.values()), 2),
        "wall_seconds": round(wall, 2),
        "processes": len(family.seconds),
        "cpu_seconds_of": family.by_name(),
    }
    if not memory:
        return found
    parts = Counter[str]()
    for pid, size in peaks.items():
        parts[family.names[pid]] += size  # type: ignore[assignment]
    rounded = {name: round(size, 3) for name, size in parts.items()}
    return found | {"memory_gb": round(sum(peaks.values()), 3), "memory_gb_of": rounded}


def peak_gb(pid: int) -> float:
    """The most memory that a process has held so far, in GB; 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    return next((1024 * int(line.split()[1]) / 1e9 for line in lines if line.startswith("VmHWM:")), 0.0)


def _reap(family: Family) -> None:
    """Wait for the orphans, of which there are none in the end."""
    deadline = time.monotonic() + 20.0
    while time.monotonic() < deadline:
        family.look()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.02)
    raise RuntimeError("processes are left over")


def several(words: str, times: int, *, memory: bool = False) -> dict[str, Any]:
    """The run with the median of CPU seconds."""
    found = []
    for _ in range(times):
        with tempfile.TemporaryDirectory(prefix="start") as folder:
            found.append(measure(words, Path(folder), memory=memory))
    found.sort(key=lambda one: one["cpu_seconds"])
    every = [one["cpu_seconds"] for one in found]
    return found[len(found) // 2] | {"cpu_seconds_of_all": every, "import_torch": yardstick()}


def yardstick() -> float:
    """CPU seconds of `import torch` now: the least of five."""
    with tempfile.TemporaryDirectory(prefix="start") as folder:
        return min(follow(YARDSTICK, Path(folder))["cpu_seconds"] for _ in range(5))


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=("help", "run", "memory"), default=("help", "run", "memory"))
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    outcome: dict[str, Any] = {}
    if "help" in options.only:
        outcome["help_cpu_seconds"] = {words: several(words, options.times)["cpu_seconds"] for words in HELP}
    if "run" in options.only:
        outcome["smallest_run"] = {"words": SMALLEST} | several(SMALLEST, options.times)
    if "memory" in options.only:
        outcome["memory"] = {"words": A_FEW_ITERATIONS} | several(A_FEW_ITERATIONS, 1, memory=True)
    print(json.dumps(outcome, indent=1))
    if len(options.only) == 3:
        record("start", outcome)


if __name__ == "__main__":
    main()
