"""The agents by name: which configuration (and so which algorithm) trains an experiment."""

from __future__ import annotations

from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.rllib.ppo import PreferencePPOConfig
from rlhf_ray.rllib.sac import PreferenceSACConfig
from rlhf_ray.settings import AgentName, Experiment

AGENTS: dict[AgentName, type[PreferenceConfig]] = {"ppo": PreferencePPOConfig, "sac": PreferenceSACConfig}
"""Configuration of each agent. A new one takes a line here, a group of settings and a file like `rlhf_ray.rllib.sac`."""


def preference_config(experiment: Experiment) -> PreferenceConfig:
    """Build the configuration of the experiment's agent."""
    return AGENTS[experiment.agent].from_experiment(experiment)
