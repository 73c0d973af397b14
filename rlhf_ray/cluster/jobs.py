"""Jobs: `rlhf-ray` commands that run in a cluster, submitted over the HTTP address of its dashboard."""

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
from rlhf_ray.data.places import in_job

ADDRESS = "http://127.0.0.1:8265"
"""Where the dashboard of this machine's Ray listens, and where `ray dashboard cluster.yaml` brings a cluster's."""

STOP_WITHIN = 600
"""Seconds that `ray job stop` gives a run to end by itself: it writes a checkpoint and evaluates first. Ray's own are 3."""

TRIES = 10
"""Times that a job's cluster may fail to answer, a second apart, before following the job is given up."""

RELAYED = "RLHF_RAY_RELAYED"
"""Environment variable of the jobs that `relay` submits, which do not submit themselves again."""

COMMAND = "command"
"""Key of a job's metadata: the `rlhf-ray` command that it runs, as ``train`` or ``tune``."""


def connect(address: str | None = None) -> JobSubmissionClient:
    """A client for the cluster at ``address``.

    Args:
        address: of the dashboard; ``RAY_API_SERVER_ADDRESS``, ``RAY_ADDRESS`` or that of this machine unless given.

    Raises:
        NoAccessError: nothing answers there, or it does not take this machine's token.
    """
    if address is not None:
        os.environ["RAY_API_SERVER_ADDRESS"] = address  # or Ray takes what the environment says
    elif in_job():
        os.environ.pop("RAY_API_SERVER_ADDRESS", None)  # the job's own cluster, whatever its node's environment says
    asked = os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or ADDRESS
    look(asked)
    try:
        return JobSubmissionClient(asked)
    except AuthenticationError as error:
        raise access.refused(asked) from error
    except ConnectionError as error:
        raise access.silent(asked, str(error).splitlines()[0].rstrip(".")) from error
    except Exception as error:
        remedy = "Name that of a cluster's dashboard: --address."
        raise access.NoAccessError(
            f"What answers at {asked} is no Ray dashboard ({str(error).splitlines()[0]})", remedy
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
    """Have the cluster run ``rlhf-ray WORDS …``; returns the job's id.

    Args:
        client: of the cluster.
        words: of the command line, the first of them the command.
        working_dir: folder to send along, whose code goes before what is installed there.
        env: more environment variables, of the job and its actors.
        cpus: that the run's own process claims; it may then be on any node that has them, else it is on the head.
        gpus: the same of GPUs.

    Raises:
        NoAccessError: the cluster answers no more.
    """
    variables = {"OMP_NUM_THREADS": os.environ["OMP_NUM_THREADS"], "RAY_JOB_STOP_WAIT_TIME_S": str(STOP_WITHIN)}
    runtime_env: dict[str, Any] = {"env_vars": variables | (env or {})}
    if working_dir is not None:
        runtime_env["working_dir"] = str(working_dir)
    try:
        job: str = client.submit_job(
            entrypoint=shlex.join(["rlhf-ray", *words]),
            runtime_env=runtime_env,
            metadata={COMMAND: words[0], "user": getpass.getuser()},
            entrypoint_num_cpus=cpus,
            entrypoint_num_gpus=gpus,
        )
    except OSError as error:  # as those of requests are
        raise access.silent(client.get_address(), error) from error
    return job


def follow(client: JobSubmissionClient, job: str, show: Callable[[str], None]) -> JobStatus:
    """Show what a job prints until it is over, also when the connection breaks meanwhile.

    Args:
        client: of the cluster.
        job: its id.
        show: is given what was printed since.

    Returns:
        How it ended.

    Raises:
        ConnectionError: the cluster does not answer any more. The job may go on.
    """
    shown = 0
    # Or Ray says that the connection was closed, as it is at the end.
    logging.getLogger("ray.dashboard.modules.job.sdk").setLevel(logging.ERROR)

    async def tail() -> None:
        nonlocal shown
        seen = 0  # a new connection begins at the first line
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
                raise ConnectionError(f"the connection to {client.get_address()} is lost ({error})") from error
        time.sleep(1.0)


def relay(client: JobSubmissionClient, words: Sequence[str], show: Callable[[str], None]) -> bool:
    """Run ``rlhf-ray WORDS …`` in the cluster, as if it had been called there, and leave no trace of the job.

    Args:
        client: of the cluster.
        words: of the command line.
        show: is given what the command prints.

    Returns:
        Whether it ended well.
    """
    job = submit(client, words, env={RELAYED: "1"})
    printed = ""

    def take(text: str) -> None:
        # Ray's own lines come first.
        nonlocal printed
        before, printed = _own_lines(printed, job), printed + text
        show(_own_lines(printed, job)[len(before) :])

    status = follow(client, job, take)
    if status == JobStatus.FAILED and not _own_lines(printed, job):
        show(f"{client.get_job_info(job).message}\n")
    client.delete_job(job)
    return bool(status == JobStatus.SUCCEEDED)


def _own_lines(printed: str, job: str) -> str:
    _, entrypoint, after = printed.partition(f"Running entrypoint for job {job}:")
    return after.partition("\n")[2] if entrypoint else ""
