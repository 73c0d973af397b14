"""Learned rewards for those who bring their own reinforcement-learning library. Needs Ray, and not RLlib."""

from rlhf_ray.wrappers.single import HumanPreferencesEnv
from rlhf_ray.wrappers.vector import HumanPreferencesVectorEnv

__all__ = ["HumanPreferencesEnv", "HumanPreferencesVectorEnv"]
