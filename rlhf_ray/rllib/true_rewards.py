"""The environment's own rewards stay out of the agent's sight.

Episodes have them, for the true return, callbacks and teachers. A user's connectors, which decide what the policy sees, can't read
them; and rollouts come to the learner without them, so that neither its replay nor its batches nor its losses ever hold one.
"""

from __future__ import annotations

import copy
import dataclasses
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from ray.rllib.connectors.connector_pipeline_v2 import ConnectorPipelineV2
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import EnvToModulePipeline
from ray.rllib.connectors.module_to_env import ModuleToEnvPipeline
from ray.rllib.core.columns import Columns
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from rlhf_ray.data.errors import PartError
from rlhf_ray.data.vector_rollout import VectorRollout


def take_off(data: TrainingData, config: Any) -> None:
    """Replace the rewards that a learner is given by NaN, unless its configuration mixes them in or learns from them alone."""
    checked = getattr(config, "checked", None)
    if checked is not None and not checked.experiment.reward_mix and data.episodes:
        data.episodes = [_without_rewards(sample) for sample in data.episodes]


def _without_rewards(sample: Any) -> Any:
    if isinstance(sample, VectorRollout):
        return dataclasses.replace(sample, rewards=np.full_like(sample.rewards, np.nan))
    copied, rewards = copy.copy(sample), sample.rewards
    copied.rewards = InfiniteLookbackBuffer(np.full(len(rewards.data), np.nan), rewards.lookback)
    return copied


class HiddenRewards(InfiniteLookbackBuffer):  # type: ignore[misc]
    """Stands for rewards in what connectors get. Its length is known; reading it raises a `PartError` that names the connector."""

    def __init__(self, rewards: Any):
        self.count, self.lookback = len(rewards), getattr(rewards, "lookback", 0)
        self.finalized = getattr(rewards, "finalized", True)
        self.space = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, item: Any) -> Any:
        return self.data

    def __iter__(self) -> Iterator[Any]:
        return iter(self.data)

    def __array__(self, *arguments: Any, **keywords: Any) -> Any:
        return self.data

    @property
    def data(self) -> Any:
        """What is hidden."""
        frame, name = sys._getframe(), "A connector"
        while (caller := frame.f_back) is not None:
            frame, its = caller, caller.f_locals.get("self")
            if isinstance(its, ConnectorV2) and not isinstance(its, ConnectorPipelineV2):
                name = type(its).__name__
                break
        raise PartError(
            f"The connector {name} of env_runners() reads the environment's own reward, which an agent that learns from "
            "preferences must not see: remove it, or what it does with rewards."
        )


ATTRIBUTES = tuple({*SingleAgentEpisode.__slots__} - {"rewards"})
"""What connectors may change of an episode."""


class _WithoutRewards(ConnectorPipelineV2):  # type: ignore[misc]
    def __call__(self, *, episodes: Sequence[SingleAgentEpisode], **given: Any) -> Any:
        """Run the connectors (called by RLlib)."""
        if Columns.REWARDS in given:
            given[Columns.REWARDS] = HiddenRewards(given[Columns.REWARDS])
        shown = [copy.copy(episode) for episode in episodes]  # a connector may keep one, and read it later
        for episode in shown:
            episode.rewards = HiddenRewards(episode.rewards)
        result = super().__call__(episodes=shown, **given)
        for episode, seen in zip(episodes, shown, strict=True):
            for name in ATTRIBUTES:
                setattr(episode, name, getattr(seen, name))
        return result


class EnvToModuleWithoutRewards(_WithoutRewards, EnvToModulePipeline):  # type: ignore[misc]
    """RLlib's pipeline, whose connectors can't read rewards."""


class ModuleToEnvWithoutRewards(_WithoutRewards, ModuleToEnvPipeline):  # type: ignore[misc]
    """RLlib's pipeline, whose connectors can't read rewards."""
