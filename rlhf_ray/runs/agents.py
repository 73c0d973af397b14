"""Load agents to look into, as people name them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym

from rlhf_ray import envs
from rlhf_ray.agents.agent import FORMS, Agent, NetworkAgent
from rlhf_ray.agents.own import own_agent
from rlhf_ray.data import consent
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import run_path
from rlhf_ray.data.spaces import take_names
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.policies import newest_agent


def named_agent(source: Path, environment: str | None) -> tuple[Agent, str, RunFolder | None]:
    """Load an agent.

    Args:
        source: a run folder, for its newest policy; a checkpoint; the folder of a saved agent (agent.json); a model of
            Stable-Baselines3; or module:Name of your own agent.
        environment: the name of its environment; None: the run's.

    Returns:
        The agent, its environment's name, and its run's folder, if it is of a run.

    Raises:
        SettingError: there is no agent, or its environment is not known.
    """
    own = consent.OWN.fullmatch(str(source)) is not None and not source.exists()
    found = RunFolder.of_policy(source)
    folder = found if not own and found.config.exists() else None
    if not own and not run_path(source).exists():
        raise SettingError(f"There is no agent at {source}; give {FORMS}.")
    if folder is not None:
        environment = environment or folder.experiment().environment
    elif environment is None:
        raise SettingError(f"{source} is no run folder; if it is an agent, name its environment with --environment.")
    assert environment is not None
    try:
        env = envs.make_env(environment)
    except (ValueError, ImportError) as error:
        raise SettingError(f"--environment: {error}") from error
    spaces = env.observation_space, env.action_space
    env.close()  # type: ignore[no-untyped-call]
    if isinstance(spaces[1], gym.spaces.MultiDiscrete):
        raise SettingError(
            f"The actions of {environment} are {spaces[1]}; the agent's report supports Discrete and Box actions: use one Discrete "
            "space with one action per combination."
        )
    if folder is not None:
        agent = newest_agent(folder)
    elif own:
        agent = own_agent(str(source), *spaces)
    elif (run_path(source) / "agent.json").exists():
        agent = NetworkAgent.load(run_path(source))
    else:
        from rlhf_ray.rllib.agents import agent_of

        agent = agent_of(run_path(source), None, *spaces)
    for mine, its in zip((agent.observation_space, agent.action_space), spaces, strict=True):
        if _kind(mine) != _kind(its):
            raise SettingError(
                f"The agent {source} is for {mine}, but {environment} has {its}; name its own environment."
            )
    take_names(agent.observation_space, spaces[0])
    return agent, environment, folder


def _kind(space: gym.Space[Any]) -> tuple[Any, ...]:
    """Return what agent and environment must have in common."""
    return type(space), space.shape, space.dtype, getattr(space, "n", None)
