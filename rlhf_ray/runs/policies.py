"""Load the policies of runs."""

from __future__ import annotations

from rlhf_ray.rllib.checkpoint_parts import load_policy
from rlhf_ray.rllib.policy import CollectorPolicy
from rlhf_ray.runs.folder import RunFolder


def newest_policy(folder: RunFolder) -> tuple[CollectorPolicy, int]:
    """The policy in a run's newest complete checkpoint, and its iteration. The run may still be running.

    Raises:
        SettingError: there is no checkpoint yet.
    """
    while True:
        checkpoint = folder.checkpoint()
        try:
            return load_policy(checkpoint), int(checkpoint.name)
        except (OSError, ValueError):
            if checkpoint.exists():  # otherwise the run has just replaced it with a newer one
                raise
