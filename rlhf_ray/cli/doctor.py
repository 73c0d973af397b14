"""`rlhf-ray doctor`: check the installation, this machine and Ray."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data.errors import SettingError


@dataclass(frozen=True)
class Doctor:
    """Check the installation, this machine and Ray, and suggest fixes. Exits with code 1 if there is a problem."""

    address: str | None = None
    """Address of the Ray cluster to check, HOST:PORT. Default: RAY_ADDRESS, or a local Ray started for the check."""


def run(words: list[str]) -> None:
    """Run the command."""
    command = parse_arguments(Doctor, "rlhf-ray doctor", words, Doctor())
    if command.address is not None:
        os.environ["RAY_ADDRESS"] = command.address
    if "://" in (address := os.environ.get("RAY_ADDRESS", "")):
        raise SettingError(
            f"--address is {address}, a dashboard's: give HOST:PORT, or check the cluster from inside: `rlhf-ray submit -- doctor`."
        )

    from rlhf_ray.actors.access import show_token

    if address:
        show_token()

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
