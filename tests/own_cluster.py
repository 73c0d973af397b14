"""Programs with a Ray cluster of their own, of several nodes: a process can be in one cluster at a time."""

import os
import subprocess
import sys
from pathlib import Path


def run_in_own_cluster(program: str, *arguments: Path | str) -> str:
    """Run ``program``, which is Python, in a process of its own, and return what it printed; a failure fails the test."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=os.environ | {"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
