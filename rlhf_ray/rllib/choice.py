"""The agents by name: the configurations, and so the algorithms, that train an experiment."""

from __future__ import annotations

from typing import Any, NamedTuple

from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.rllib.ppo import PreferencePPO, PreferencePPOConfig
from rlhf_ray.rllib.reference import ExpertPPOConfig, ReferencePPOConfig, ReferenceSACConfig
from rlhf_ray.rllib.sac import PreferenceSAC, PreferenceSACConfig
from rlhf_ray.settings import AgentName, Experiment


class AgentKind(NamedTuple):
    """The classes of an agent.

    Attributes:
        algorithm, config: learn from preferences.
        reference: configuration on the normalised true reward, otherwise set up like ``config``.
        expert: configuration on the true reward, to record an expert's behaviour.
    """

    algorithm: type[Any]
    config: type[PreferenceConfig]
    reference: type[Any]
    expert: type[Any]


AGENTS: dict[AgentName, AgentKind] = {
    "ppo": AgentKind(PreferencePPO, PreferencePPOConfig, ReferencePPOConfig, ExpertPPOConfig),
    "sac": AgentKind(PreferenceSAC, PreferenceSACConfig, ReferenceSACConfig, ReferenceSACConfig),
}
"""A new agent takes an entry here, a file like `rlhf_ray.rllib.sac`, and a group of settings in `rlhf_ray.settings.experiment`."""


def preference_config(experiment: Experiment) -> PreferenceConfig:
    """Build the configuration of the experiment's agent."""
    return AGENTS[experiment.agent].config.from_experiment(experiment)


def reference_config(experiment: Experiment) -> Any:
    """Build the configuration of the experiment's agent on the normalised true reward."""
    return AGENTS[experiment.agent].reference.from_experiment(experiment)


def expert_config(experiment: Experiment) -> Any:
    """Build the configuration of the experiment's expert."""
    return AGENTS[experiment.agent].expert.from_experiment(experiment)
