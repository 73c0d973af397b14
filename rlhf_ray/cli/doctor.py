"""`rlhf-ray doctor`: check the installation, this machine and Ray."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from dataclasses import dataclass

from rlhf_ray.cli.arguments import parse_arguments


@dataclass(frozen=True)
class Doctor:
    """Check the installation, this machine and Ray, and suggest fixes. Exits with code 1 if there is a problem."""

    address: str | None = None
    """Address of the Ray cluster to check. Default: RAY_ADDRESS, or a local Ray started for the check. With a dashboard URL
    (http://…), the check runs as a job on the cluster."""
    json: bool = False
    """Print a JSON list instead of lines."""


def run(words: list[str]) -> None:
    """Run the command."""
    command = parse_arguments(Doctor, "rlhf-ray doctor", words, Doctor())
    if command.address is not None:
        os.environ["RAY_ADDRESS"] = command.address
    if "://" in os.environ.get("RAY_ADDRESS", ""):
        from rlhf_ray.cli.cluster import relay

        relay(os.environ["RAY_ADDRESS"], ["doctor", *(["--json"] if command.json else [])])
        return

    from rlhf_ray.actors.access import show_token

    if os.environ.get("RAY_ADDRESS"):
        show_token()

    from rlhf_ray.cluster.doctor import Finding, examine_machine
    from rlhf_ray.cluster.examination import examine_cluster, examine_ports
    from rlhf_ray.runs.train import quiet

    def show(findings: list[Finding]) -> list[Finding]:
        for finding in [] if command.json else findings:
            print(f"{finding.status:<8} {finding.check:<26} {finding.seen}")
            if finding.remedy:
                print(f"{'':<35} → {finding.remedy}")
        return findings

    quiet()
    findings = show(examine_machine())
    if not os.environ.get("RAY_ADDRESS"):
        findings += show([examine_ports()])
    findings += show(examine_cluster())
    if command.json:
        print(json.dumps([dataclasses.asdict(finding) for finding in findings], indent=2))
    if any(finding.status == "problem" for finding in findings):
        sys.exit(1)
