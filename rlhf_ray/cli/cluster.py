"""`rlhf-ray submit | ps | stop`: manage runs on a cluster.

Imports Ray only after `access.show_token`: Ray reads its token once, on import.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro

from rlhf_ray.actors import access
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.cli.help import Usage
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import in_job

WIDTH = 80
"""Line width of `ps`; long names may exceed it."""

ENDED = ("succeeded", "failed", "stopped")
"""Final states of jobs."""

USAGE = Usage(
    ("rlhf-ray submit [--address URL] [--working-dir FOLDER] [--OPTION VALUE …] -- COMMAND …",),
    text="""COMMAND is the part after `rlhf-ray`, such as `train pendulum --seed 3` or `train --resume runs/…`. It runs on the
    cluster; its output is shown here. Relative run folders are below the home folder on the cluster.""",
)


@dataclass(frozen=True)
class Submit:
    """Run an `rlhf-ray` command as a Ray job on a cluster and show its output. Ctrl-C detaches; the job keeps running."""

    address: str | None = None
    """URL of the cluster's dashboard. Default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS or http://127.0.0.1:8265."""
    working_dir: Path | None = None
    """Folder to upload, except files in its .gitignore. Its code runs instead of the code installed on the cluster."""
    env: tuple[str, ...] = ()
    """Environment variables for the job, as NAME=VALUE. Everyone with the cluster's token can read them, so pass no secrets."""
    cpus: float | None = None
    """CPUs for the run's own process (including the learner), on any node that has them. Default: runs on the head node."""
    gpus: float | None = None
    """GPUs for the run's own process, on any node that has them."""
    follow: bool = True
    """Show the job's output until it ends."""


@dataclass(frozen=True)
class Ps:
    """List the runs on a cluster: running ones, and pending and finished jobs."""

    address: str | None = None
    """Address of the cluster. Default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS or http://127.0.0.1:8265."""
    json: bool = False
    """Print a JSON list instead."""


@dataclass(frozen=True)
class Stop:
    """Stop a run on a cluster like Ctrl-C: after the current iteration, with a checkpoint to resume from. Waits until it ends."""

    run: tyro.conf.Positional[str]
    """Name, folder or job id of the run, as listed by `rlhf-ray ps`."""
    address: str | None = None
    """Address of the cluster. Default: RAY_API_SERVER_ADDRESS, RAY_ADDRESS or http://127.0.0.1:8265."""


def submit(words: list[str]) -> None:
    """Run `rlhf-ray submit`."""
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options: Submit = parse_arguments(Submit, "rlhf-ray submit", own, usage=USAGE)
    if not command:
        raise SettingError("no command is given; write it after --: `rlhf-ray submit -- train pendulum`.")
    if options.working_dir is not None and not options.working_dir.is_dir():
        raise SettingError(f"--working-dir is {options.working_dir}, which does not exist; give an existing folder.")
    access.show_token()

    from ray.job_submission import JobStatus

    from rlhf_ray.cluster import jobs

    client, variables = jobs.connect(options.address), _variables(options.env)
    if variables:
        print(
            f"rlhf-ray: everyone with the cluster's token can read the values of {', '.join(variables)}. Store secrets in a file "
            "on the nodes instead (docs/cluster.md, Keys).",
            file=sys.stderr,
        )
    job = jobs.submit(
        client,
        command,
        working_dir=options.working_dir,
        env=variables,
        cpus=options.cpus,
        gpus=options.gpus,
    )
    where = "" if options.address is None else f" --address {options.address}"
    print(f"submitted job {job}; `rlhf-ray ps{where}` shows it, `rlhf-ray stop {job}{where}` stops it", flush=True)
    if not options.follow:
        return
    try:
        status = jobs.follow(client, job, lambda text: print(text, end="", flush=True))
    except KeyboardInterrupt:
        print(f"\njob {job} keeps running")
        return
    except ConnectionError as error:
        sys.exit(
            f"rlhf-ray: {error}. If the cluster is up, the job keeps running. If it is down, restart it and resume the run: "
            "rlhf-ray submit -- train --resume RUN."
        )
    print(f"job {job} {status.lower()}")
    if status != JobStatus.SUCCEEDED:
        sys.exit(1)


def ps(words: list[str]) -> None:
    """Run `rlhf-ray ps`."""
    options: Ps = parse_arguments(Ps, "rlhf-ray ps", words)
    if not _inside(options.address):
        relay(options.address, ["ps", *(["--json"] if options.json else [])])
        return

    from rlhf_ray.actors import announced

    rows = listed(announced.runs(), submitted())
    if options.json:
        print(json.dumps(rows, indent=2))
    elif not rows:
        print("no runs")
    else:
        print("\n".join(in_lines(rows)))


def stop(words: list[str]) -> None:
    """Run `rlhf-ray stop`."""
    options: Stop = parse_arguments(Stop, "rlhf-ray stop", words)
    if not _inside(options.address):
        relay(options.address, ["stop", options.run])
        return

    from rlhf_ray.actors import announced
    from rlhf_ray.cluster import jobs

    row = find(listed(announced.runs(), submitted()), options.run)
    if row["folder"] is None:
        jobs.connect().stop_job(row["job"])
        print(f"{row['job']}: stopped before the run started")
        return
    print(f"{row['name']}: stopping after the current iteration", flush=True)
    announced.stop(row["folder"])
    print(f"{row['name']}: stopped; resume with `{going_on_with(row)}`")


def going_on_with(row: dict[str, Any]) -> str:
    """The command that resumes a stopped run or sweep."""
    return f"rlhf-ray {'tune' if row.get('sweep') else 'train'} --resume {row['folder']}"


def submitted() -> list[dict[str, Any]]:
    """The jobs submitted by `submit` to the connected cluster; empty if the cluster has no dashboard."""
    from rlhf_ray.cluster import jobs

    try:
        client = jobs.connect()
    except SettingError:
        return []
    return [
        {
            "job": job.submission_id,
            "state": str(job.status.value).lower(),
            "started": (job.start_time or 0) / 1000,
            "since": (job.end_time or job.start_time or 0) / 1000,
            "user": job.metadata.get("user"),
            "command": job.entrypoint,
        }
        for job in client.list_jobs()
        if job.submission_id and (job.metadata or {}).get(jobs.COMMAND, "ps") not in ("ps", "stop")
    ]


def listed(runs: Sequence[dict[str, Any]], of_jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The rows of `ps`, oldest first.

    Args:
        runs: the active runs (`rlhf_ray.actors.announced.runs`).
        of_jobs: the jobs (`submitted`). A job with an active run is listed as that run.
    """
    going_on = {run["job"] for run in runs}
    names = ("name", "folder", "environment", "env_steps", "total_env_steps", "labels", "total_labels", "pages", "node")
    rows = [dict.fromkeys((*names, "command", "pid")) | run for run in runs]
    rows += [dict.fromkeys((*names, "pid")) | job for job in of_jobs if job["job"] not in going_on]
    return sorted(rows, key=lambda row: float(row["started"]))


def find(rows: Sequence[dict[str, Any]], run: str) -> dict[str, Any]:
    """Find a row by the run's name, folder or job id.

    Raises:
        SettingError: no row matches, several match, or the run has ended.
    """
    named = [row for row in rows if run == row["job"] or _ends_with(row["folder"], run)]
    alive = [row for row in named if row["state"] not in ENDED]
    if len(alive) == 1:
        return alive[0]
    if alive:
        raise SettingError(
            f"{len(alive)} runs are called {run}; give the folder of one: {', '.join(str(row['folder']) for row in alive)}."
        )
    if named:
        raise SettingError(f"{run} has already ended ({named[0]['state']}).")
    raise SettingError(
        f"No run on this cluster is called {run}; it has {', '.join(str(row['name'] or row['job']) for row in rows) or 'none'}."
    )


def _ends_with(folder: str | None, run: str) -> bool:
    """Return whether ``folder`` is ``run``: its path, its name, or a path to it from a folder above, such as ``runs/NAME``."""
    parts = Path(run).parts
    return folder is not None and bool(parts) and Path(folder).parts[-len(parts) :] == parts


def in_lines(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The lines of `ps`: each run's full name on its own line, for copying, then its details wrapped at `WIDTH`."""
    names = Counter(row["name"] for row in rows)
    lines = []
    for row in rows:
        # Runs with the same name are listed by folder.
        lines.append((row["name"] if names[row["name"]] == 1 else row["folder"]) or row["job"])
        ended, span = row["state"] in ENDED, _span(time.time() - row["since"])
        said = [
            f"{row['state']} {span} ago" if ended else f"{row['state']} for {span}",
            row["environment"] or (row["command"] or "").removeprefix("rlhf-ray "),
            _of(row["env_steps"], row["total_env_steps"], "env steps"),
            _of(row["labels"], row["total_labels"], "labels"),
            f"of {row['user']}" if row["user"] else "",
            *(row["pages"] or ()),
        ]
        lines += textwrap.wrap(
            ", ".join(filter(None, said)),
            WIDTH,
            initial_indent="  ",
            subsequent_indent="  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
    return lines


def _of(done: int | None, total: int | None, what: str) -> str:
    return "" if total is None else f"{done or 0}/{total} {what}"


def _span(seconds: float) -> str:
    for unit, size in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"


def _inside(address: str | None) -> bool:
    """Connect to the cluster directly if possible: from one of its jobs, or with an address that is not a dashboard URL."""
    of_others = None if in_job() else os.environ.get("RAY_API_SERVER_ADDRESS")
    named = address or of_others or os.environ.get("RAY_ADDRESS")
    if not named or "://" in named:
        return False
    os.environ.pop("RAY_API_SERVER_ADDRESS", None)  # otherwise it would list another cluster's jobs
    os.environ["RAY_ADDRESS"] = named
    access.show_token()

    from rlhf_ray.actors.cluster import start_ray

    start_ray(0)
    return True


def relay(address: str | None, words: Sequence[str]) -> None:
    """Run ``rlhf-ray WORDS …`` on the cluster with the dashboard at ``address``, and show its output.

    Raises:
        SettingError: the cluster is unreachable, or this process is itself such a relayed job.
    """
    access.show_token()

    from rlhf_ray.cluster import jobs

    if os.environ.get(jobs.RELAYED):
        raise SettingError(
            f"This job of `rlhf-ray {words[0]}` can't find its own cluster and would submit itself again; give the cluster's "
            "address: --address HOST:6379."
        )

    try:
        ended_well = jobs.relay(jobs.connect(address), words, lambda text: print(text, end="", flush=True))
    except ConnectionError as error:
        sys.exit(f"rlhf-ray: {error}")
    if not ended_well:
        sys.exit(1)


def _variables(given: Sequence[str]) -> dict[str, str]:
    pairs = [variable.partition("=") for variable in given]
    for variable, (name, equals, _) in zip(given, pairs, strict=True):
        if not name or not equals:
            raise SettingError(f"--env is {variable!r}; it must be NAME=VALUE.")
    return {name: value for name, _, value in pairs}
