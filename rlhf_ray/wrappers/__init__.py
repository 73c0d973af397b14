"""Learned rewards for other reinforcement-learning libraries, as environment wrappers. Needs Ray, but not RLlib."""

from rlhf_ray.wrappers.replay import relabel_replay_buffer
from rlhf_ray.wrappers.single import HumanPreferencesEnv
from rlhf_ray.wrappers.vector import HumanPreferencesVectorEnv

__all__ = ["HumanPreferencesEnv", "HumanPreferencesVectorEnv", "relabel_replay_buffer"]
