"""Locations: of run folders (a submitted job writes to the home folder, not to its temporary working folder), and of settings."""

from __future__ import annotations

import os
from pathlib import Path

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable in which Ray passes a submitted job its configuration."""


def in_job() -> bool:
    """Return whether this process belongs to a job submitted to a cluster."""
    return JOB in os.environ


def config_folder() -> Path:
    """Return the folder of what this user's commands remember. It may not exist, and there may be no right to make it."""
    given = os.environ.get("XDG_CONFIG_HOME")
    try:
        return Path(given or Path.home() / ".config", "rlhf_ray")
    except RuntimeError:  # the user has no home
        return Path(os.devnull, "rlhf_ray")


def run_path(path: Path | str) -> Path:
    """Return the location of a run folder: relative to the home folder in a submitted job, unchanged otherwise.

    A job's working folder is a copy of the submitted files, which Ray deletes after the job.
    """
    return (Path.home() if in_job() else Path()) / path
