"""The policies of runs."""

from __future__ import annotations

from rlhf_ray.rllib.policy import CollectorPolicy
from rlhf_ray.rllib.saved_policy import load_policy
from rlhf_ray.runs.folder import RunFolder


def newest_policy(folder: RunFolder) -> tuple[CollectorPolicy, int]:
    """The policy in a run's newest whole checkpoint, and the iteration it is from. The run may be going on.

    Raises:
        SettingError: there is none yet.
    """
    while True:
        checkpoint = folder.checkpoint()
        try:
            return load_policy(checkpoint), int(checkpoint.name)
        except (OSError, ValueError):
            if checkpoint.exists():  # else the run has replaced it by a newer one meanwhile
                raise
