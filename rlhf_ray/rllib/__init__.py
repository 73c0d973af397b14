"""RLlib's side of the ring: the only package that imports RLlib."""

from rlhf_ray.rllib.ppo import PreferencePPO, PreferencePPOConfig

__all__ = ["PreferencePPO", "PreferencePPOConfig"]
