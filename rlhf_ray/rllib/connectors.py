"""Connectors for use with custom ones: the reward model sees the environment's own observations and actions.

Env-to-module connectors may change observations, and learner connectors may change rewards. If a user sets such connectors,
episodes keep the environment's own observations, and the learned reward replaces the environment's in the learner's episodes before
any custom connector runs. Actions need no copy: RLlib scales those in episodes after the module-to-env connectors.
"""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.module_to_env import NormalizeAndClipActions
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rlhf_ray.data.arrays import Array
from rlhf_ray.policies.env_actions import to_env_actions
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID

OBSERVATION = "environment_observation"
"""Key in an episode's infos."""


def environment_observations(episode: Any, before: int = 0) -> Array:
    """Return the environment's own observations ``[before + n + 1, …]`` of an episode of ``n`` steps.

    Args:
        episode: a piece of an episode.
        before: number of steps before it, at most its lookback.
    """
    wanted = {"indices": slice(-before, None), "neg_index_as_lookback": True}
    infos = episode.get_infos(**wanted)
    if len(infos) and OBSERVATION in infos[0]:
        return np.stack([info[OBSERVATION] for info in infos])
    observations: Array = episode.get_observations(**wanted)
    return observations


class ToEnvActions(ConnectorV2):  # type: ignore[misc]
    """Gives the environment the actions of `to_env_actions`, in place of RLlib's `NormalizeAndClipActions`.

    RLlib's leaves all components of an action as they are where one has no bounds.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        """Add the environment's actions to the policy's."""
        batch[Columns.ACTIONS_FOR_ENV] = copy.deepcopy(batch[Columns.ACTIONS])
        space = self.action_space
        self.foreach_batch_item_change_in_place(
            batch=batch,
            column=Columns.ACTIONS_FOR_ENV,
            func=lambda action, *_: to_env_actions(action, space) if isinstance(space, gym.spaces.Box) else action,
        )
        return batch


class GivesEnvActions:
    """A mixin to put before an RLlib `AlgorithmConfig`, so that its env runners convert actions by `ToEnvActions`."""

    def build_module_to_env_connector(self, env: Any = None, spaces: Any = None) -> Any:
        """Build RLlib's pipeline, with our conversion of actions."""
        pipeline = super().build_module_to_env_connector(env, spaces)  # type: ignore[misc]
        pipeline.insert_before(NormalizeAndClipActions, ToEnvActions())
        pipeline.remove(NormalizeAndClipActions)
        return pipeline


class KeepObservations(ConnectorV2):  # type: ignore[misc]
    """Stores each observation in its infos, before an env-to-module pipeline changes it."""

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        """Store the newest observation of each episode."""
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            info = episode.infos[-1]
            if OBSERVATION not in info:
                # Copy the dict: the environment may reuse it.
                episode.infos.data[-1] = {**info, OBSERVATION: np.array(episode.observations[-1])}
        return batch

    def get_state(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """Return a non-empty state: RLlib matches states to connectors by position and skips empty ones."""
        return {"keeps": OBSERVATION}

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the constant state."""
        return self.get_state()


class RewardFirst(ConnectorV2):  # type: ignore[misc]
    """Puts the learned reward into copies of the learner's episodes, before custom connectors.

    The originals keep the true return. A reward that reads history sees the steps before an episode's piece, too: its lookback,
    which `PreferenceConfig` makes as long as a fragment. Otherwise, without custom connectors, `LearnedReward` does the same for a
    whole batch at the end of the pipeline, which is faster.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, metrics: Any = None, **kwargs: Any) -> Any:
        """Replace the rewards; the step that RLlib appends to each episode gets 0."""
        module = rl_module[REWARD_MODULE_ID].unwrapped()
        ensemble = module.ensemble
        appended = int(Columns.LOSS_MASK in batch)
        copies, rewards, mixtures = [], [], []
        for episode in episodes:
            steps = len(episode) - appended
            before = int(episode.observations.lookback) if ensemble.reads_history else 0
            observations = environment_observations(episode, before)[: before + steps + 1]
            earlier = episode.get_actions(indices=slice(-before, None), neg_index_as_lookback=True)
            actions = to_env_actions(earlier, module.action_space)[: before + steps]
            device = ensemble.version.device
            members = ensemble.episode_rewards(
                torch.as_tensor(observations, device=device),
                torch.as_tensor(actions, device=device),
                bool(episode.is_terminated),
            )
            learned = ensemble.combine(members)[before:].cpu().numpy()
            own = np.asarray(episode.get_rewards(slice(0, steps)), learned.dtype)
            mixed = module.mixed(learned, own)
            copied = copy.copy(episode)
            copied.rewards = copy.deepcopy(episode.rewards)
            copied.set_rewards(new_data=np.append(mixed, np.zeros(appended, mixed.dtype)))
            copies.append(copied)
            rewards.append(learned)
            mixtures.append(mixed)
        episodes[:] = copies
        if metrics is not None:
            every = np.concatenate(rewards)
            metrics.log_dict(
                {
                    "learned_reward_mean": float(every.mean()),
                    "learned_reward_std": float(every.std()),
                    "reward_version": int(ensemble.version),
                }
                | ({"mixed_reward_mean": float(np.concatenate(mixtures).mean())} if module.mix else {}),
                key=DEFAULT_MODULE_ID,
                window=1,
            )
        return batch
