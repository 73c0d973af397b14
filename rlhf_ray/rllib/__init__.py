"""RLlib integration: the algorithm, its configuration, connectors and env runners. Only this package imports RLlib."""

from rlhf_ray.rllib.ppo import PreferencePPO, PreferencePPOConfig

__all__ = ["PreferencePPO", "PreferencePPOConfig"]
