"""Connectors: the environment's actions in env runners, and rewards that read the steps before in the learner."""

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

from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID


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


class HistoryReward(ConnectorV2):  # type: ignore[misc]
    """Puts a learned reward that reads history into copies of the learner's episodes, which keep the true return.

    It sees the steps before an episode's piece, too: its lookback, which `PreferenceConfig` makes as long as a fragment. Other
    rewards come from `LearnedReward`, for a whole batch at the end of the pipeline, which is faster.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, metrics: Any = None, **kwargs: Any) -> Any:
        """Replace the rewards; the step that RLlib appends to each episode gets 0."""
        module = rl_module[REWARD_MODULE_ID].unwrapped()
        ensemble = module.ensemble
        appended = int(Columns.LOSS_MASK in batch)
        copies, rewards, mixtures = [], [], []
        for episode in episodes:
            steps = len(episode) - appended
            before = int(episode.observations.lookback)
            whole: dict[str, Any] = {"indices": slice(-before, None), "neg_index_as_lookback": True}
            observations = episode.get_observations(**whole)[: before + steps + 1]
            actions = to_env_actions(episode.get_actions(**whole), module.action_space)[: before + steps]
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
