"""Loads a policy from an algorithm's checkpoint, without the algorithm."""

from __future__ import annotations

from pathlib import Path

from ray.rllib.core import (
    COMPONENT_LEARNER,
    COMPONENT_LEARNER_GROUP,
    COMPONENT_RL_MODULE,
    DEFAULT_MODULE_ID,
)
from ray.rllib.core.rl_module.rl_module import RLModule

from rlhf_ray.rllib.policy import CollectorPolicy
from rlhf_ray.rllib.rllib_internals import skip_notes


def load_policy(checkpoint: Path) -> CollectorPolicy:
    """Load the policy from an algorithm's checkpoint. Needs no running Ray.

    Raises:
        ValueError: the folder is not a checkpoint with a policy.
    """
    path = checkpoint / COMPONENT_LEARNER_GROUP / COMPONENT_LEARNER / COMPONENT_RL_MODULE / DEFAULT_MODULE_ID
    if not path.is_dir():
        raise ValueError(f"{checkpoint} is not a checkpoint with a policy.")
    skip_notes()
    return CollectorPolicy(RLModule.from_checkpoint(path))
