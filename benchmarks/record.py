"""Writes a benchmark's outcome to benchmarks/results/, headed by its command, date, commit, machine and versions."""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
LIBRARIES = ("ray", "torch", "gymnasium", "numpy", "pyarrow")
LOAD = os.getloadavg()[0]  # before the benchmark adds its own


def about() -> dict[str, Any]:
    """Command, UTC date, commit (with ``+`` where files have changed since), machine and versions."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!benchmarks/results", ":!docs")
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    return {
        "command": shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]]),
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": git("rev-parse", "--short", "HEAD") + ("+" if changed else ""),
        "machine": {
            "cpu": cpu.group(1) if cpu else platform.processor(),
            "cores": os.cpu_count(),
            "platform": platform.platform(),
            "load_before": round(LOAD, 1),
        },
        "versions": {"python": platform.python_version()} | {name: version(name) for name in LIBRARIES},
    }


def record(name: str, outcome: dict[str, Any]) -> None:
    """Write ``outcome`` to ``benchmarks/results/<name>.json``."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps({**about(), **outcome}, indent=1) + "\n")


def record_topic(name: str, topic: str, seeds: list[int], cpu_seconds: float, rows: list[dict[str, Any]]) -> None:
    """Write a calibration topic's rows to ``benchmarks/results/<name>.json``, beside those of other topics and seeds.

    Each topic has, for each set of seeds, the commit at which it was measured, its CPU seconds and its rows.
    """
    path = RESULTS / f"{name}.json"
    topics = json.loads(path.read_text())["topics"] if path.exists() else {}
    part = {"commit": about()["commit"], "cpu_seconds": round(cpu_seconds, 1), "rows": rows}
    topics.setdefault(topic, {})[" ".join(map(str, seeds))] = part
    record(name, {"topics": {topic: dict(sorted(parts.items())) for topic, parts in sorted(topics.items())}})
