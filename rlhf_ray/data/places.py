"""Locations: of run folders (a submitted job writes to the home folder, not to its temporary working folder), and of settings."""

import contextlib
import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path

JOB = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""Environment variable in which Ray passes a submitted job its configuration."""


def in_job() -> bool:
    """Return whether this process belongs to a job submitted to a cluster."""
    return JOB in os.environ


RUNS = "runs"
"""Folder of new runs and sweeps."""


def make_run_folder(name: str, seed: int, job: str = "") -> Path:
    """Make a folder under runs/ that did not exist: another process never gets the same one.

    It is called by what is trained on, the seed, the time, and the job that this process belongs to.

    Raises:
        OSError: it can't be made; names it.
    """
    moment = datetime.fromtimestamp(time.time(), UTC).strftime("%Y%m%d-%H%M%S")
    short = re.sub(r"[^\w.-]+", "-", name)  # a colon (module:Id-v0) would break scp, lists of paths and Windows
    path = first = run_path(RUNS) / "-".join(filter(None, [short, f"seed{seed}", moment, job]))
    number = 1
    while True:
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
        number += 1
        path = first.with_name(f"{first.name}-{number}")


def config_folder() -> Path:
    """Return the folder of what this user's commands remember. It may not exist, and there may be no right to make it."""
    try:
        return Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "rlhf_ray")
    except RuntimeError:  # the user has no home
        return Path(os.devnull, "rlhf_ray")


def run_path(path: Path | str) -> Path:
    """Return the location of a run folder: relative to the home folder in a submitted job, unchanged otherwise.

    A job's working folder is a copy of the submitted files, which Ray deletes after the job.
    """
    return (Path.home() if in_job() else Path()) / path
