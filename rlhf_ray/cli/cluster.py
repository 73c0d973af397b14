"""`rlhf-ray submit`: run a command on a cluster; `rlhf-ray doctor`: check the installation, this machine and Ray.

Imports Ray only after `access.show_token`: Ray reads its token once, on import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlhf_ray.actors import access
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError


@dataclass(frozen=True)
class Submit:
    """Run an `rlhf-ray` command as a Ray job on a cluster and show its output. Ctrl-C detaches; the job keeps running.

    The command follows --, such as `rlhf-ray submit -- train pendulum --seed 3` or `-- train --resume runs/…`. Relative run folders
    are below the home folder on the cluster.
    """

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


def submit(words: list[str]) -> None:
    """Run `rlhf-ray submit`."""
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options: Submit = parse_arguments(Submit, "rlhf-ray submit", own)
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
        client, command, working_dir=options.working_dir, env=variables, cpus=options.cpus, gpus=options.gpus
    )
    where = "" if options.address is None else f" --address {options.address}"
    print(
        f"submitted job {job}; `ray job list{where}` shows it, `ray job stop{where} {job}` stops it with a checkpoint",
        flush=True,
    )
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


def _variables(given: Sequence[str]) -> dict[str, str]:
    pairs = [variable.partition("=") for variable in given]
    for variable, (name, equals, _) in zip(given, pairs, strict=True):
        if not name or not equals:
            raise SettingError(f"--env is {variable!r}; it must be NAME=VALUE.")
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True)
class Doctor:
    """Check the installation, this machine and Ray, and suggest fixes. Exits with code 1 if there is a problem."""

    address: str | None = None
    """Address of the Ray cluster to check, HOST:PORT. Default: RAY_ADDRESS, or a local Ray started for the check."""


def doctor(words: list[str]) -> None:
    """Run `rlhf-ray doctor`."""
    command = parse_arguments(Doctor, "rlhf-ray doctor", words, Doctor())
    if command.address is not None:
        os.environ["RAY_ADDRESS"] = command.address
    if "://" in (address := os.environ.get("RAY_ADDRESS", "")):
        raise SettingError(
            f"--address is {address}, a dashboard's: give HOST:PORT, or check the cluster from inside: `rlhf-ray submit -- doctor`."
        )
    if address:
        access.show_token()

    from rlhf_ray.cluster.doctor import examine_machine, examine_ray
    from rlhf_ray.runs.quiet import quiet

    quiet()
    problem = False
    for examine in (examine_machine, examine_ray):
        for finding in examine():
            print(f"{finding.status:<8} {finding.check:<16} {finding.seen}", flush=True)
            if finding.remedy:
                print(f"{'':<25} → {finding.remedy}", flush=True)
            problem |= finding.status == "problem"
    if problem:
        sys.exit(1)
