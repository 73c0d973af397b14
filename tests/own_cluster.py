"""Programs with a Ray cluster of their own, of several nodes: a process can be in one cluster at a time."""

import os
from pathlib import Path

from tests.command_line import run_python


def run_in_own_cluster(program: str, *arguments: Path | str) -> str:
    """Run ``program``, which is Python, in a process of its own, and return what it printed; a failure fails the test."""
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    return run_python(program, *arguments, env=os.environ | {"PYTHONPATH": path}, timeout=600).stdout
