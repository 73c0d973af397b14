"""Where run folders lie: in the process of a job of a cluster elsewhere than on one's own machine."""

from __future__ import annotations

import os
from pathlib import Path

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The environment variable in which Ray tells the process of a submitted job what it was submitted with."""


def in_job() -> bool:
    """Whether this is the process of a job that was submitted to a cluster."""
    return JOB in os.environ


def run_path(path: Path | str) -> Path:
    """Where a run's folder lies: in a submitted job, relative to the home folder.

    A job's working folder is a copy of the files it was submitted with, which Ray deletes after it.
    """
    return (Path.home() if in_job() else Path()) / path
