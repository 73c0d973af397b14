"""What a training may start from: fitted reward models and policies, read and compared with the environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
from safetensors.numpy import load_file

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.checkpoints import last_checkpoint
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.rllib.learned_reward import REWARD_MODULE_ID
from rlhf_ray.rllib.saved_policy import load_policy
from rlhf_ray.settings import RewardModelSettings


def fitted_reward(path: Path | str) -> RewardEnsemble:
    """The reward model in the folder ``path``, or in that of a run or a checkpoint.

    Raises:
        SettingError: there is none.
    """
    inside = Path(path) / REWARD_MODULE_ID
    try:
        return RewardEnsemble.load(inside if (inside / "reward.json").exists() else path)
    except ValueError as error:
        raise SettingError(str(error)) from error


def check_reward(
    reward: RewardEnsemble,
    observation_space: gym.spaces.Box,
    action_space: gym.Space[Any],
    settings: RewardModelSettings,
    where: str,
) -> None:
    """Check that a reward model fits an environment with these spaces, and the settings.

    Raises:
        SettingError: it does not; names both.
    """
    if (reward.observation_space, reward.action_space) != (observation_space, action_space):
        raise SettingError(
            f"The reward model in {where} is for observations {reward.observation_space} and actions {reward.action_space}; the "
            f"environment has {observation_space} and {action_space}. Use the environment that it was fitted for."
        )
    if reward.settings != settings:
        raise SettingError(
            f"The reward model in {where} is fitted already, and reward_model has settings other than it was fitted with: set none."
        )


def policy_weights(path: Path | str) -> dict[str, Array]:
    """The weights of a policy: of a run's newest checkpoint, of an RLlib checkpoint, or of a ``.safetensors`` file.

    Raises:
        SettingError: there is no policy.
    """
    path = Path(path)
    if path.is_file() and path.suffix == ".safetensors":
        return load_file(path)
    checkpoint = last_checkpoint(path / "checkpoints") or path  # of a run's folder, or itself one
    try:
        state: Mapping[str, Any] = load_policy(checkpoint).module.get_state()
    except ValueError as error:
        raise SettingError(f"{path} is neither a run's folder nor a checkpoint with a policy.") from error
    return {name: np.asarray(value) for name, value in state.items()}


def check_policy(weights: Mapping[str, Array], expected: Mapping[str, Any], where: str) -> None:
    """Check that ``weights`` are those of a policy whose weights look like ``expected``.

    Raises:
        SettingError: names the first that is missing, too much or of another shape.
    """
    given, wanted = ({name: np.shape(value) for name, value in of.items()} for of in (weights, expected))
    for name in [*wanted, *given]:
        if given.get(name) != wanted.get(name):
            has, needs = (_shape(of.get(name)) for of in (given, wanted))
            raise SettingError(
                f"The policy in {where} does not fit: its {name} {has}, and with this environment, ppo.network and ppo.hidden it "
                f"{needs}. Use the environment and the ppo settings that it was trained with."
            )


def _shape(shape: tuple[int, ...] | None) -> str:
    return "does not exist" if shape is None else f"has the shape {shape}"
