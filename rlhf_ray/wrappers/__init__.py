"""Learned rewards for other reinforcement-learning libraries, as environment wrappers. Needs Ray, but not RLlib."""

from rlhf_ray.wrappers.environments import HumanPreferencesEnv, HumanPreferencesVectorEnv
from rlhf_ray.wrappers.replay import relabel_replay_buffer

__all__ = ["HumanPreferencesEnv", "HumanPreferencesVectorEnv", "relabel_replay_buffer"]
