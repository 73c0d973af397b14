"""Policies that Stable-Baselines3 saved, as weights of ours. Runs no code from the file; SB3 is not needed."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.policies.sb3_file import SB3File
from rlhf_ray.policies.sb3_sac import sac_weights

IGNORED = ("pi_features_extractor.", "vf_features_extractor.")
"""The same tensors as ``features_extractor.``, if actor and critic share it, as they do by default."""
SEEN = "features_extractor"
"""The part before the first layers."""


def is_sb3(path: Path) -> bool:
    """Return whether ``path`` is a model that SB3 saved."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"data", "policy.pth"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def sb3_weights(path: Path | str, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> dict[str, Array]:
    """Load the policy of SB3's PPO, A2C or SAC: ``MlpPolicy``, or for PPO and A2C ``CnnPolicy`` of images.

    It acts the same here: the first layers take up the scaling of observations to [-1, 1], and PPO's last one that of actions,
    which SB3's networks don't do. The statistics of imitation's ``NormalizeFeaturesExtractor`` become those of
    ``normalize_observations``, which limits normalised observations to ±10.

    Args:
        path: the ``model.zip``.
        observation_space: the environment's observation space.
        action_space: the environment's action space.

    Returns:
        Weights by their names in the policy module of PPO or SAC, float32. Whether their shapes fit is not checked.

    Raises:
        SettingError: the file is damaged, or of another algorithm or kind of policy.
    """
    file = SB3File.read(Path(path))
    sac = any(name.startswith("actor.latent_pi.") for name in file.weights)
    named = (sac_weights if sac else _ppo_weights)(file, observation_space, action_space)
    return {name: value.float().numpy() for name, value in named.items()}


def _ppo_weights(file: SB3File, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> dict[str, Tensor]:
    """Return the weights by their names in `ActorCriticNetwork`, float64."""
    path, weights = file.path, file.weights
    file.check_options("Tanh")
    image = is_image(observation_space)
    named: dict[str, Tensor] = dict(file.statistics(SEEN, observation_space))
    last = max(
        (int(found_at[1]) for name in weights if (found_at := re.match(r"mlp_extractor\.\w+_net\.(\d+)", name))),
        default=-2,
    )
    for name, value in weights.items():
        if name.startswith(IGNORED):
            shared = weights.get(name.partition("_")[2])
            if shared is None or not torch.equal(shared, value):
                raise SettingError(f"The policy in {path} has two feature extractors; ours shares one.")
            continue
        if name.startswith(f"{SEEN}.normalize."):
            continue
        new = _name(name, image, last + 2)
        if new is None:
            raise SettingError(
                f"The policy in {path} has the weight {name}, which ours has not: give an MlpPolicy, or for images a CnnPolicy, "
                "of SB3's PPO or A2C, or an MlpPolicy of its SAC."
            )
        named[new] = value.double()
    if not image and named.keys() >= {"actor.0.weight", "critic.0.weight"}:
        assert isinstance(observation_space, gym.spaces.Box)
        for part in ("actor.0", "critic.0"):
            layer = named[f"{part}.weight"], named[f"{part}.bias"]
            named[f"{part}.weight"], named[f"{part}.bias"] = file.fitted(*layer, observation_space, SEEN, SEEN)
    _scale_actions(named, action_space, path, "actor" if image else f"actor.{last + 2}")
    return named


def _name(name: str, image: bool, last: int) -> str | None:
    """Return our name for a weight of SB3's; None if there is none."""
    if name == "log_std":
        return name
    if image:
        rules = (
            (r"features_extractor\.cnn\.(\d)\.(\w+)", r"encoder.0.\1.\2"),
            (r"features_extractor\.linear\.0\.(\w+)", r"encoder.1.\1"),
            (r"action_net\.(\w+)", r"actor.\1"),
            (r"value_net\.(\w+)", r"critic.\1"),
        )
    else:
        rules = (
            (r"mlp_extractor\.policy_net\.(\d+)\.(\w+)", r"actor.\1.\2"),
            (r"mlp_extractor\.value_net\.(\d+)\.(\w+)", r"critic.\1.\2"),
            (r"action_net\.(\w+)", rf"actor.{last}.\1"),
            (r"value_net\.(\w+)", rf"critic.{last}.\1"),
        )
    return next((re.sub(f"^{rule}$", new, name) for rule, new in rules if re.fullmatch(rule, name)), None)


def _scale_actions(named: dict[str, Tensor], space: gym.Space[Any], path: Path | str, part: str) -> None:
    """Make the last layer give means in [-1, 1], as env runners expect them of bounded actions."""
    if not isinstance(space, gym.spaces.Box) or not (np.isfinite(space.low) & np.isfinite(space.high)).all():
        return
    if "log_std" not in named or named["log_std"].shape != space.shape:
        raise SettingError(f"The policy in {path} does not act in the environment's action space, {space}.")
    low, high = (torch.as_tensor(np.asarray(bound, np.float64)) for bound in (space.low, space.high))
    middle, half = (low + high) / 2, (high - low) / 2
    named[f"{part}.weight"] = named[f"{part}.weight"] / half[:, None]
    named[f"{part}.bias"] = (named[f"{part}.bias"] - middle) / half
    named["log_std"] = named["log_std"] - half.log()
