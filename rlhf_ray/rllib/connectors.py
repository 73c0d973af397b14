"""Connectors for use with custom ones: the reward model sees the environment's own observations and actions.

Env-to-module connectors may change observations, and learner connectors may change rewards. If a user sets such connectors,
episodes keep the environment's own observations, and the learned reward replaces the environment's in the learner's episodes before
any custom connector runs. Actions need no copy: RLlib scales those in episodes after the module-to-env connectors.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.columns import Columns

from rlhf_ray.data.arrays import Array
from rlhf_ray.policies.env_actions import to_env_actions
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID

OBSERVATION = "environment_observation"
"""Key in an episode's infos."""


def environment_observations(episode: Any) -> Array:
    """Return the environment's own observations ``[n + 1, …]`` of an episode of ``n`` steps."""
    infos = episode.get_infos()
    if len(infos) and OBSERVATION in infos[0]:
        return np.stack([info[OBSERVATION] for info in infos])
    observations: Array = episode.get_observations()
    return observations


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

    The originals keep the true return. Without custom connectors, `LearnedReward` does the same for a whole batch at the end of
    the pipeline, which is faster.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, metrics: Any = None, **kwargs: Any) -> Any:
        """Replace the rewards; the step that RLlib appends to each episode gets 0."""
        module = rl_module[REWARD_MODULE_ID].unwrapped()
        appended = int(Columns.LOSS_MASK in batch)
        copies, rewards = [], []
        for episode in episodes:
            steps = len(episode) - appended
            observations = environment_observations(episode)[: steps + 1]
            actions = to_env_actions(episode.get_actions(), module.action_space)[:steps]
            ended = np.zeros(steps, dtype=bool)
            ended[-1:] = episode.is_terminated
            of_steps = (observations[:-1], actions, observations[1:], ended)
            arguments = [torch.as_tensor(values, device=module.ensemble.version.device) for values in of_steps]
            learned = module.ensemble.member_rewards(*arguments).mean(0).cpu().numpy()
            copied = copy.copy(episode)
            copied.rewards = copy.deepcopy(episode.rewards)
            copied.set_rewards(new_data=np.append(learned, np.zeros(appended, learned.dtype)))
            copies.append(copied)
            rewards.append(learned)
        episodes[:] = copies
        if metrics is not None:
            every = np.concatenate(rewards)
            metrics.log_dict(
                {
                    "learned_reward_mean": float(every.mean()),
                    "learned_reward_std": float(every.std()),
                    "reward_version": int(module.ensemble.version),
                },
                key=DEFAULT_MODULE_ID,
                window=1,
            )
        return batch
