"""A policy out of an algorithm's checkpoint, without the algorithm."""

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


def load_policy(checkpoint: Path) -> CollectorPolicy:
    """The policy in an algorithm's checkpoint, without building the algorithm. Needs no running Ray."""
    path = checkpoint / COMPONENT_LEARNER_GROUP / COMPONENT_LEARNER / COMPONENT_RL_MODULE / DEFAULT_MODULE_ID
    if not path.is_dir():
        raise ValueError(f"{checkpoint} is no checkpoint with a policy.")
    return CollectorPolicy(RLModule.from_checkpoint(path))
