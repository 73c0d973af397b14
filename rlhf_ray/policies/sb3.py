"""Policies that Stable-Baselines3 saved, as weights of an `ActorCriticNetwork`. Runs no code from the file; SB3 is not needed.

A ``model.zip`` of SB3 holds ``data`` (JSON, with pickles that are not read) and ``policy.pth``, of which only tensors are loaded.
"""

from __future__ import annotations

import io
import json
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.policies.network import bounds

MOST_BYTES = 2**31
"""Largest ``policy.pth``."""

IGNORED = ("pi_features_extractor.", "vf_features_extractor.")
"""The same tensors as ``features_extractor.``, if actor and critic share it, as they do by default."""


def is_sb3(path: Path) -> bool:
    """Return whether ``path`` is a model that SB3 saved."""
    try:
        with zipfile.ZipFile(path) as archive:
            return {"data", "policy.pth"} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False


def sb3_weights(path: Path | str, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> dict[str, Array]:
    """Load the policy of SB3's PPO or A2C: ``MlpPolicy``, or ``CnnPolicy`` of images.

    It acts the same here: the first layer takes up the scaling of observations to [-1, 1], and the last one that of actions, which
    SB3's networks don't do.

    Args:
        path: the ``model.zip``.
        observation_space: the environment's observation space.
        action_space: the environment's action space.

    Returns:
        Weights by their names in `ActorCriticNetwork`, float32. Whether their shapes fit is not checked.

    Raises:
        SettingError: the file is damaged, or of another algorithm or kind of policy.
    """
    found, options = _read(Path(path))
    for name, value in (("use_sde", options.get("use_sde")), *_kwargs(options).items()):
        if value and not (name == "activation_fn" and "Tanh" in str(value)) and name not in HARMLESS:
            raise SettingError(
                f"The policy in {path} has {name}={_short(value)}, which ours has not; start from a policy with SB3's default."
            )
    image = is_image(observation_space)
    named: dict[str, Tensor] = {}
    last = max(
        (int(found_at[1]) for name in found if (found_at := re.match(r"mlp_extractor\.\w+_net\.(\d+)", name))),
        default=-2,
    )
    for name, value in found.items():
        if name.startswith(IGNORED):
            shared = found.get(name.partition("_")[2])
            if shared is None or not torch.equal(shared, value):
                raise SettingError(f"The policy in {path} has two feature extractors; ours shares one.")
            continue
        new = _name(name, image, last + 2)
        if new is None:
            raise SettingError(
                f"The policy in {path} has the weight {name}, which ours has not: give an MlpPolicy, or for images a CnnPolicy, "
                "of SB3's PPO or A2C."
            )
        named[new] = value.double()
    if not image and named.keys() >= {"actor.0.weight", "critic.0.weight"}:
        _scale_observations(named, observation_space, path)
    _scale_actions(named, action_space, path, "actor" if image else f"actor.{last + 2}")
    return {name: value.float().numpy() for name, value in named.items()}


HARMLESS = ("net_arch", "ortho_init", "log_std_init", "optimizer_class", "optimizer_kwargs", "share_features_extractor")
"""Options of a policy that its weights tell, or that matter to its training alone."""


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read the tensors and the readable options."""
    try:
        with zipfile.ZipFile(path) as archive:
            size = archive.getinfo("policy.pth").file_size
            if size > MOST_BYTES:
                raise ValueError(f"its weights take {size / 2**30:.1f} GiB")
            options = json.loads(archive.read("data"))
            found = torch.load(io.BytesIO(archive.read("policy.pth")), map_location="cpu", weights_only=True)
        if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
            raise ValueError("its policy.pth is not a state dict")
    except Exception as error:  # a damaged file raises almost anything
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise SettingError(f"{path} can't be read as a model of Stable-Baselines3: {said[0][:150]}.") from error
    return dict(found), options if isinstance(options, dict) else {}


def _kwargs(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the policy's options without the names that SB3 adds when it saves them."""
    kwargs = options.get("policy_kwargs")
    return {n: v for n, v in kwargs.items() if not n.startswith(":")} if isinstance(kwargs, dict) else {}


def _short(value: Any) -> str:
    """Describe an option."""
    return re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", str(value))[:60]


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


def _scale_observations(named: dict[str, Tensor], space: gym.Space[Any], path: Path | str) -> None:
    """Make the first layers take observations in [-1, 1]: W x + b = (W s) z + (b + W m), where x = m + s z."""
    assert isinstance(space, gym.spaces.Box)
    middle, scale = (torch.as_tensor(np.asarray(of, np.float64)).flatten() for of in bounds(space))
    for part in ("actor.0", "critic.0"):
        weight = named[f"{part}.weight"]
        if weight.dim() != 2 or weight.shape[1] != len(middle):
            raise SettingError(
                f"The policy in {path} takes {weight.shape[-1]} numbers; the environment's observations have {len(middle)}."
            )
        named[f"{part}.bias"] = named[f"{part}.bias"] + weight @ middle
        named[f"{part}.weight"] = weight * scale


def _scale_actions(named: dict[str, Tensor], space: gym.Space[Any], path: Path | str, part: str) -> None:
    """Make the last layer give means in [-1, 1], as env runners expect them of bounded actions."""
    if not isinstance(space, gym.spaces.Box) or not (np.isfinite(space.low) & np.isfinite(space.high)).all():
        return
    if "log_std" not in named or named["log_std"].shape != space.shape:
        raise SettingError(f"The policy in {path} does not act in the environment's action space, {space}.")
    low, high = (torch.as_tensor(np.asarray(of, np.float64)) for of in (space.low, space.high))
    middle, half = (low + high) / 2, (high - low) / 2
    named[f"{part}.weight"] = named[f"{part}.weight"] / half[:, None]
    named[f"{part}.bias"] = (named[f"{part}.bias"] - middle) / half
    named["log_std"] = named["log_std"] - half.log()
