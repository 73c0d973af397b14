"""RLlib integration: the algorithms, their configurations, connectors and env runners. Only this package imports RLlib."""

from rlhf_ray.rllib.ppo import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.sac import PreferenceSAC, PreferenceSACConfig

__all__ = ["PreferencePPO", "PreferencePPOConfig", "PreferenceSAC", "PreferenceSACConfig"]
