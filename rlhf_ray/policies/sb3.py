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

IGNORED = ("pi_features_extractor.", "vf_features_extractor.")
"""The same tensors as ``features_extractor.``, if actor and critic share it, as they do by default."""
SEEN = "features_extractor"
"""The part before the first layers."""
KNOWN = (
    r"actor\.(latent_pi\.\d+|mu|log_std)\.(weight|bias)",
    r"critic(_target)?\.qf[01]\.\d+\.(weight|bias)",
    r"(actor|critic|critic_target)\.features_extractor\.normalize\.\w+",
)
"""The weights of a policy with two critics."""
ACTOR_SEEN = "actor.features_extractor"
"""The part whose statistics the network of ours takes; the critics' first layers make up for their own."""


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

    Returns:
        Weights by their names in the policy module of PPO or SAC, float32. Whether their shapes fit is not checked.

    Raises:
        SettingError: the file is damaged, or of another algorithm or kind of policy.
    """
    file = SB3File.read(Path(path))
    sac = any(name.startswith("actor.latent_pi.") for name in file.weights)
    named = (_sac_weights if sac else _ppo_weights)(file, observation_space, action_space)
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


def _sac_weights(file: SB3File, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> dict[str, Tensor]:
    """Return the weights by their names in the policy module of `rlhf_ray.rllib.sac_module`, float64.

    Raises:
        SettingError: the policy has parts that ours has not, or other observations or actions.
    """
    file.check_options("ReLU")
    if odd := next((name for name in file.weights if not any(re.fullmatch(known, name) for known in KNOWN)), None):
        raise SettingError(
            f"The policy in {file.path} has the weight {odd}, which ours has not: give an MlpPolicy of SB3's SAC with two critics."
        )
    weights = {name: value.double() for name, value in file.weights.items()}
    if not isinstance(action_space, gym.spaces.Box) or weights["actor.mu.bias"].shape != (
        int(np.prod(action_space.shape)),
    ):
        raise SettingError(f"The policy in {file.path} does not act in the environment's action space, {action_space}.")
    if not isinstance(observation_space, gym.spaces.Box):
        raise SettingError(f"The policy in {file.path} takes vectors, but the observations are {observation_space}.")
    named: dict[str, Tensor] = dict(file.statistics(ACTOR_SEEN, observation_space))
    layers = _layers(weights, "actor.latent_pi")
    layers[0] = file.fitted(*layers[0], observation_space, ACTOR_SEEN, ACTOR_SEEN)
    layers.append(
        (
            torch.cat([weights[f"actor.{head}.weight"] for head in ("mu", "log_std")]),
            torch.cat([weights[f"actor.{head}.bias"] for head in ("mu", "log_std")]),
        )
    )
    for number, (weight, bias) in enumerate(layers):
        named |= {f"actor.{2 * number}.weight": weight, f"actor.{2 * number}.bias": bias}
    for theirs, ours in (("critic", "critics"), ("critic_target", "targets")):
        both = [_layers(weights, f"{theirs}.qf{number}") for number in (0, 1)]
        for critic in both:
            weight, bias = critic[0]
            size = weight.shape[1] - int(np.prod(action_space.shape))
            seen, bias = file.fitted(
                weight[:, :size], bias, observation_space, f"{theirs}.features_extractor", ACTOR_SEEN
            )
            critic[0] = torch.cat([seen, weight[:, size:]], 1), bias
        for number, pair in enumerate(zip(*both, strict=True)):
            named[f"{ours}.weights.{number}"] = torch.stack([weight.T for weight, _ in pair])
            named[f"{ours}.biases.{number}"] = torch.stack([bias[None] for _, bias in pair])
    named["log_alpha"] = _log_alpha(file)
    named["clamps_log_std"] = torch.tensor([1.0])
    return {f"network.{name}": value for name, value in named.items()}


def _layers(found: dict[str, Tensor], part: str) -> list[tuple[Tensor, Tensor]]:
    """Return weight and bias of each layer of an MLP, in order."""
    numbers = sorted(
        int(match[1]) for name in found if (match := re.fullmatch(rf"{re.escape(part)}\.(\d+)\.weight", name))
    )
    return [(found[f"{part}.{number}.weight"], found[f"{part}.{number}.bias"]) for number in numbers]


def _log_alpha(file: SB3File) -> Tensor:
    learned, fixed = (file.variables.get(name) for name in ("log_ent_coef", "ent_coef_tensor"))
    if learned is None and fixed is None:
        raise SettingError(
            f"The policy in {file.path} has no entropy coefficient: save the whole model with SB3's save()."
        )
    value = learned.detach() if learned is not None else fixed.log()  # type: ignore[union-attr]
    return value.double().reshape(1)
