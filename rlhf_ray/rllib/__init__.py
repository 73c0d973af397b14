"""RLlib's side of the ring: the only package that imports RLlib."""

from rlhf_ray.rllib.algorithm import PreferencePPO
from rlhf_ray.rllib.config import PreferencePPOConfig

__all__ = ["PreferencePPO", "PreferencePPOConfig"]
