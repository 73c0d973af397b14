"""agent_of(): the agent, for the tools that look inside, of a run, a checkpoint, a saved agent or a policy."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
from ray.rllib.core.rl_module.rl_module import RLModule

from rlhf_ray.agents.agent import FORMS, Agent, NetworkAgent
from rlhf_ray.data.checkpoints import last_checkpoint
from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.sb3 import is_sb3
from rlhf_ray.rllib.checkpoint_parts import load_policy
from rlhf_ray.rllib.policy import ActorCritic, CollectorPolicy
from rlhf_ray.rllib.starting import check_policy, policy_weights


def agent_of(
    source: Path | str | CollectorPolicy | RLModule,
    name: str | None = None,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
) -> Agent:
    """Return the frozen agent of ``source``, which stays as it is.

    Args:
        source: a run's folder (its newest checkpoint), a checkpoint, a folder of `NetworkAgent.save`, a ``model.zip`` of
            Stable-Baselines3's PPO or A2C, a policy or an RLModule.
        name: for people. Defaults to the folder's name, or "agent".
        observation_space: the environment's, for a model of Stable-Baselines3.
        action_space: the environment's, for such a model.

    Raises:
        SettingError: there is no policy, or it has no network of ours.
    """
    if isinstance(source, Path | str):
        path = Path(source)
        if (path / "agent.json").exists():
            return NetworkAgent.load(path)
        if is_sb3(path) or is_sb3(path / "model.zip"):
            return _of_sb3(path, name or path.stem, observation_space, action_space)
        try:
            policy = load_policy(last_checkpoint(path / "checkpoints") or path)
        except SettingError:
            raise
        except ValueError as error:
            raise SettingError(f"{path} has no policy; give {FORMS}.") from error
        return agent_of(policy, name or path.name)
    module: Any = source.module if isinstance(source, CollectorPolicy) else source
    if type(module) is not ActorCritic:
        raise SettingError(
            f"The policy is a {type(module).__name__}; the tools for agents look into the networks of agent=ppo. Give "
            "module:Name of an agent of your own."
        )
    return NetworkAgent(copy.deepcopy(module.network), module.observation_space, module.action_space, name or "agent")


def _of_sb3(
    path: Path, name: str, observation_space: gym.Space[Any] | None, action_space: gym.Space[Any] | None
) -> NetworkAgent:
    """Return the agent of a model that Stable-Baselines3 saved."""
    weights = policy_weights(path, observation_space, action_space)
    assert observation_space is not None and action_space is not None, "policy_weights() refuses it"  # noqa: PT018
    if not any(key.startswith("critic.") for key in weights):
        raise SettingError(
            f"{path} is a model of SAC; agents are looked into if they are of PPO or A2C. `rlhf-ray train … --policy-from {path}` "
            "starts from it."
        )
    layers = [value for key, value in weights.items() if re.fullmatch(r"actor\.\d+\.weight", key)]
    shape = PolicyShape(
        hidden=tuple(len(layer) for layer in layers[:-1]) or PolicyShape.hidden,
        features=len(weights["encoder.1.weight"]) if "encoder.1.weight" in weights else None,
        normalize_observations=any("statistics." in key for key in weights),
    )
    network = ActorCriticNetwork(observation_space, action_space, shape)
    check_policy(weights, network.state_dict(), str(path), "ppo")
    state = network.state_dict() | {key: torch.as_tensor(value) for key, value in weights.items()}
    network.load_state_dict(state)
    return NetworkAgent(network, observation_space, action_space, name)
