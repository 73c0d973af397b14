"""Environments by name in RLlib's registry, and how their copies step on several cores."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
from ray import tune

from rlhf_ray import envs
from rlhf_ray.data.system import usable_cores, within_bound
from rlhf_ray.rllib.rllib_internals import env_creator
from rlhf_ray.settings import Experiment


def register_environment(config: Any, name: str) -> None:
    """Register a name that `rlhf_ray.envs.make_env` accepts with RLlib, unless it is registered already."""
    if env_creator(name) is None:
        tune.register_env(name, envs.EnvCreator(name))
    if _is_ours(name) and gym.VectorizeMode(config.gym_env_vectorize_mode) is gym.VectorizeMode.SYNC:
        config.env_runners(gym_env_vectorize_mode="vector_entry_point")


def env_threads(experiment: Experiment) -> dict[str, Any]:
    """Return the options of the environment by which its copies step in threads or processes, as the agent's settings say."""
    agent, name = experiment.agent_settings, experiment.environment
    if isinstance(agent.env_threads, int):
        threads = within_bound(agent.env_threads)
        return envs.thread_options(name, threads, threads if _is_ours(name) else 1)
    return envs.thread_options(name, max(1, usable_cores() // max(1, agent.num_env_runners)))


def _is_ours(name: str) -> bool:
    """Return whether a name of RLlib's is made by `rlhf_ray.envs`, which takes its options, and not by a creator of the user's."""
    return isinstance(env_creator(name), envs.EnvCreator)
