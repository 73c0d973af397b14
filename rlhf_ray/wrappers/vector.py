"""HumanPreferencesVectorEnv: `HumanPreferencesEnv` for gymnasium's vector environments."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv, VectorWrapper
from gymnasium.vector.utils import concatenate, create_empty_array

from rlhf_ray.data.arrays import Array, BoolArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.wrappers.recorder import Recorder
from rlhf_ray.wrappers.taught import Taught, Transform, seen_space, transform_for
from rlhf_ray.wrappers.teaching import Teaching, Wait, check_wait


class HumanPreferencesVectorEnv(Taught, VectorWrapper):
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

    def __init__(
        self,
        env: VectorEnv[Any, Any, Any],
        *,
        total_env_steps: int,
        fragments: FragmentSettings | None = None,
        preferences: PreferenceSettings | None = None,
        reward_model: RewardModelSettings | Path | str | None = None,
        folder: Path | str | None = None,
        observation_transform: Transform | None = None,
        ask: bool = True,
        fit: bool = True,
        wait: Wait = False,
        labelling: LabellingSettings | None = None,
        seed: int = 0,
    ):
        self._open = False  # until __init__ succeeds: gymnasium closes environments on deletion
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, AutoresetMode):
            raise SettingError(
                f"metadata['autoreset_mode'] of {env} is {mode!r}; set it to the gymnasium.vector.AutoresetMode that the "
                "environment uses."
            )
        space = _space(env, observation_transform)
        if preferences is not None and preferences.asks_people and ask and not is_image(space):
            raise SettingError(
                "preferences.teacher is 'human', but a vector environment can only show image observations to people: use "
                "HumanPreferencesEnv, and its share() for more environments."
            )
        check_wait(preferences, wait)
        teaching = Teaching(
            space,
            env.single_action_space,
            total_env_steps=total_env_steps,
            fragments=fragments,
            preferences=preferences,
            reward_model=reward_model,
            folder=folder,
            ask=ask,
            fit=fit,
            seed=seed,
            labelling=labelling,
            waits=wait == "always",
            title=env.spec.id if env.spec else str(env),
            fps=float(env.metadata.get("render_fps") or 15),
        )
        VectorWrapper.__init__(self, env)
        see = transform_for(env.single_observation_space, observation_transform)
        self._join(teaching, Recorder(env.num_envs, mode), see, wait)
        self._started = np.zeros(env.num_envs)

    def _reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        mask = (arguments.get("options") or {}).get("reset_mask")
        which = np.ones(self.num_envs, bool) if mask is None else np.array(mask, bool)
        observations, infos = self.env.reset(**arguments)
        self._last = self._see(observations)
        self._recorder.begin(which)
        self._started[which] = time.perf_counter()
        return copy.deepcopy(observations), infos

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step the environments; returns the learned rewards (see the class).

        Raises:
            Exception: an actor failed permanently.
        """
        given = np.array(actions, self._action_dtype)
        observations, true, terminated, truncated, infos = self.env.step(
            copy.deepcopy(actions)
        )  # some change or reuse arrays
        observations = copy.deepcopy(observations)
        before, self._last = self._last, self._see(observations)
        true, terminated, truncated = np.array(true, np.float64), np.asarray(terminated), np.asarray(truncated)
        ended = terminated | truncated
        after = self._final(infos, ended) if self._recorder.autoreset is AutoresetMode.SAME_STEP else self._last
        rewards, learned, real, episodes = self._take(before, given, true, terminated, truncated, after)
        infos = infos | {
            "true_reward": true,
            "_true_reward": real,
            "reward_is_learned": learned,
            "_reward_is_learned": np.ones(self.num_envs, bool),
        }
        if episodes is not None:
            which, returns, lengths = episodes
            seconds = np.where(which, np.round(time.perf_counter() - self._started, 6), 0.0)
            if "episode" not in infos:
                infos |= {"episode": {"r": returns, "l": lengths, "t": seconds}, "_episode": which}
            self._started[which] = time.perf_counter()
        return observations, rewards.copy(), terminated, truncated, infos

    def _see(self, observations: Any) -> Array:
        """The reward model's observations; a copy, because some environments reuse their arrays."""
        seen = observations if self._transform is None else self._transform(observations)
        return self._array(seen)

    def _see_all(self, observations: Any) -> Array:
        return self._see(observations)

    def _final(self, infos: dict[str, Any], ended: Array) -> Array:
        """The reward model's observations after the step, before ended episodes were reset."""
        if not ended.any():
            return self._last
        final = self._last.copy()
        space = self.env.single_observation_space
        for i in np.flatnonzero(ended):
            batch = concatenate(space, [infos["final_obs"][i]], create_empty_array(space, 1))
            final[i] = self._see(batch)[0]
        return final

    def _play(self, choose: Callable[[Any], Any], env_steps: int, seed: int) -> None:
        observations, _ = self._reset(seed=seed)
        until = self._teaching.env_steps + env_steps
        while self._teaching.env_steps < until:
            if self._recorder.autoreset is AutoresetMode.DISABLED and self._recorder.over.any():
                observations, _ = self._reset(options={"reset_mask": self._recorder.over.copy()})
            observations, *_ = self.step(choose(observations))

    def _mix(self, random: BoolArray, drawn: Any, chosen: Any) -> Any:
        chosen = np.asarray(chosen)
        return np.where(random.reshape(-1, *[1] * (chosen.ndim - 1)), drawn, chosen)


def _space(env: VectorEnv[Any, Any, Any], transform: Transform | None) -> gym.spaces.Box:
    seen = None if transform is None else np.asarray(transform(env.observation_space.sample()))[0]
    return seen_space(
        env.single_observation_space, seen, env.single_action_space, env.spec.id if env.spec else str(env)
    )
