"""HumanPreferencesVectorEnv: `HumanPreferencesEnv` for gymnasium's vector environments."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorWrapper

from rlhf_ray.wrappers.wrapper import PreferenceWrapper


class HumanPreferencesVectorEnv(PreferenceWrapper, VectorWrapper):
    """Replaces the rewards of a `gymnasium.vector` environment with learned ones.

    Arguments, methods and behaviour are those of `HumanPreferencesEnv`, with these differences::

        envs = HumanPreferencesVectorEnv(gym.make_vec("Pendulum-v1", num_envs=8), total_env_steps=100_000, wait=True)

    - ``observation_transform`` gets the environment's batch of observations: the same ``lambda observation:
      observation["pov"]`` selects the batch of images.
    - ``infos["true_reward"]`` and ``infos["reward_is_learned"]`` are arrays ``[num_envs]`` with the masks
      ``infos["_true_reward"]`` and ``infos["_reward_is_learned"]``. When episodes end, ``infos["episode"]`` has the arrays
      ``r`` (true returns), ``l`` and ``t``, and ``infos["_episode"]`` is the mask of ended episodes, like
      `gymnasium.wrappers.vector.RecordEpisodeStatistics`.
    - All autoreset modes work: `AutoresetMode.NEXT_STEP` (the step that resets has reward 0.0, does not count, and its mask is
      False), ``SAME_STEP`` (the last observations must be in ``infos["final_obs"]``, as in gymnasium's environments) and
      ``DISABLED``. Fragments never cross the end of an episode.

    Args:
        env: the vector environment, with ``metadata["autoreset_mode"]``.
        total_env_steps: environment steps, summed over all ``num_envs`` environments.
        fragments, preferences, reward_model, folder, observation_transform, ask, fit, wait, seed: see `HumanPreferencesEnv`.
        labelling: see `HumanPreferencesEnv`; people see observations that are images.

    Raises:
        SettingError: a setting does not match the others or the environment.
    """

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments; returns the learned rewards (see the class).

        Raises:
            Exception: an actor failed permanently.
        """
        observations, rewards, terminated, truncated, infos, news = self._step(actions)
        return observations, rewards, np.asarray(terminated), np.asarray(truncated), infos | news
