"""Beside users' own connectors: the reward model sees what the environment showed, whatever they make of it.

An env-to-module connector may change observations, and a learner connector rewards. So where such connectors are set, episodes keep
the environment's own observations, and the learned reward is in the learner's episodes before a user's connector sees them: it
stands there for the environment's, as in any RLlib algorithm. Of actions nothing has to be kept: RLlib scales those in the episodes
after a module-to-env connector has changed them.
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
from rlhf_ray.rllib.actions import to_env_actions
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID

OBSERVATION = "environment_observation"
"""Key in an episode's infos."""


def environment_observations(episode: Any) -> Array:
    """The observations ``[n + 1, …]`` of an episode of ``n`` steps as the environment gave them."""
    infos = episode.get_infos()
    if len(infos) and OBSERVATION in infos[0]:
        return np.stack([info[OBSERVATION] for info in infos])
    observations: Array = episode.get_observations()
    return observations


class KeepObservations(ConnectorV2):  # type: ignore[misc]
    """Keeps each observation in its infos, before an env-to-module pipeline changes it."""

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, **kwargs: Any) -> Any:
        """Keep the newest observation of each episode."""
        for episode in self.single_agent_episode_iterator(episodes, agents_that_stepped_only=False):
            info = episode.infos[-1]
            if OBSERVATION not in info:
                # In a copy: the environment may use its own dict again.
                episode.infos.data[-1] = {**info, OBSERVATION: np.array(episode.observations[-1])}
        return batch

    def get_state(self, *arguments: Any, **keywords: Any) -> dict[str, Any]:
        """Something: RLlib merges the i-th state of a pipeline by its i-th connector, and leaves empty states out."""
        return {"keeps": OBSERVATION}

    def merge_states(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """The same."""
        return self.get_state()


class RewardFirst(ConnectorV2):  # type: ignore[misc]
    """Puts the learned reward into copies of the learner's episodes, before the user's own connectors.

    The env runner counts the true return from the originals. `LearnedReward` does the same for a whole batch at the end of the
    pipeline, which is faster, where there are no such connectors.
    """

    def __call__(self, *, rl_module: Any, batch: Any, episodes: Any, metrics: Any = None, **kwargs: Any) -> Any:
        """Replace the rewards; the step that RLlib appends to each episode has none."""
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
