"""Jobs: `rlhf-ray` commands that run in a cluster, submitted over its dashboard's HTTP address."""

from __future__ import annotations

import asyncio
import getpass
import logging
import os
import shlex
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from ray.exceptions import AuthenticationError
from ray.job_submission import JobStatus, JobSubmissionClient

from rlhf_ray.actors import access
from rlhf_ray.actors.cluster import look
from rlhf_ray.cluster.upload import check_upload
from rlhf_ray.data.places import in_job
from rlhf_ray.data.system import TORCH_THREADS

ADDRESS = "http://127.0.0.1:8265"
"""Default address: this machine's dashboard, or a cluster's forwarded by `ray dashboard cluster.yaml`."""

STOP_WITHIN = 600
"""Seconds that `ray job stop` waits for a run to save a checkpoint and evaluate before killing it. Ray's default is 3."""

TRIES = 10
"""Failed attempts to reach the cluster, one second apart, before giving up on following a job."""


def connect(address: str | None = None) -> JobSubmissionClient:
    """Connect to the cluster at ``address``.

    Args:
        address: the dashboard's address. Defaults to ``RAY_API_SERVER_ADDRESS``, ``RAY_ADDRESS``, or this machine's dashboard.

    Returns:
        A client for jobs.

    Raises:
        NoAccessError: nothing answers there, or the cluster rejects this machine's token.
    """
    if address is not None:
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # otherwise Ray would prefer the environment's value
    elif in_job():
        os.environ.pop(
            "RAY_API_SERVER_ADDRESS", None
        )  # use the job's own cluster, whatever its node's environment says
    asked = os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or ADDRESS
    look(asked)
    try:
        return JobSubmissionClient(asked)
    except AuthenticationError as error:
        raise access.refused(asked) from error
    except ConnectionError as error:
        raise access.silent(asked, str(error).splitlines()[0].rstrip(".")) from error
    except Exception as error:
        remedy = "Name the address of a cluster's dashboard with --address."
        raise access.NoAccessError(
            f"The server at {asked} is not a Ray dashboard ({str(error).splitlines()[0]})", remedy
        ) from error


def submit(
    client: JobSubmissionClient,
    words: Sequence[str],
    *,
    working_dir: Path | None = None,
    env: dict[str, str] | None = None,
    cpus: float | None = None,
    gpus: float | None = None,
) -> str:
    """Submit ``rlhf-ray WORDS …`` to the cluster.

    Args:
        client: the cluster's client.
        words: the command line; the first word is the command.
        working_dir: folder to upload; its code takes precedence over what is installed there.
        env: additional environment variables of the job and its actors.
        cpus: CPUs that the run's own process claims. With this, it may run on any node that has them, otherwise on the head.
        gpus: GPUs that it claims.

    Returns:
        The job's id.

    Raises:
        NoAccessError: the cluster doesn't answer.
        SettingError: ``working_dir`` is too large to upload.
    """
    variables = {TORCH_THREADS: os.environ.get(TORCH_THREADS) or "1", "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WITHIN)}
    runtime_env: dict[str, Any] = {"env_vars": variables | (env or {})}
    if working_dir is not None:
        runtime_env["working_dir"] = str(working_dir)
        if excluded := check_upload(working_dir):
            runtime_env["excludes"] = excluded
    try:
        job: str = client.submit_job(
            entrypoint=shlex.join(["rlhf-ray", *words]),
            runtime_env=runtime_env,
            metadata={"user": getpass.getuser()},
            entrypoint_num_cpus=cpus,
            entrypoint_num_gpus=gpus,
        )
    except OSError as error:  # includes errors of requests
        raise access.silent(client.get_address(), error) from error
    return job


def follow(client: JobSubmissionClient, job: str, show: Callable[[str], None]) -> JobStatus:
    """Show a job's output until it ends. Reconnects if the connection breaks.

    Args:
        client: the cluster's client.
        job: the job's id.
        show: called with new output.

    Returns:
        The job's final status.

    Raises:
        ConnectionError: the cluster doesn't answer any more. The job may still be running.
    """
    shown = 0
    # Silence Ray's message that the connection was closed, which it always is at the end.
    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.ERROR)

    async def tail() -> None:
        nonlocal shown
        seen = 0  # a new connection starts at the first line
        async for text in client.tail_job_logs(job):
            new = text[max(0, shown - seen) :]
            seen += len(text)
            shown = max(shown, seen)
            if new:
                show(new)

    lost = 0
    while True:
        try:
            asyncio.run(tail())
            status: JobStatus = client.get_job_status(job)
            if status.is_terminal():
                if rest := client.get_job_logs(job)[shown:]:
                    show(rest)
                return status
            lost = 0
        except (RuntimeError, OSError, aiohttp.ClientError) as error:  # requests' errors are OSErrors
            lost += 1
            if lost == TRIES:
                raise ConnectionError(f"lost the connection to {client.get_address()} ({error})") from error
        time.sleep(1.0)
