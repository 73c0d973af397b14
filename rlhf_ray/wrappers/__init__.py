"""Learned rewards for those who bring their own reinforcement-learning library. Needs Ray, and not RLlib."""

from rlhf_ray.wrappers.replay import relabel_replay_buffer
from rlhf_ray.wrappers.single import HumanPreferencesEnv
from rlhf_ray.wrappers.vector import HumanPreferencesVectorEnv

__all__ = ["HumanPreferencesEnv", "HumanPreferencesVectorEnv", "relabel_replay_buffer"]
