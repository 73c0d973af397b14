"""A policy of Stable-Baselines3's SAC as weights of a `SoftActorCriticNetwork`."""

from __future__ import annotations

import re
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies.sb3_file import SB3File

KNOWN = (
    r"actor\.(latent_pi\.\d+|mu|log_std)\.(weight|bias)",
    r"critic(_target)?\.qf[01]\.\d+\.(weight|bias)",
    r"(actor|critic|critic_target)\.features_extractor\.normalize\.\w+",
)
"""The weights of a policy with two critics."""
SEEN = "actor.features_extractor"
"""The part whose statistics the network of ours takes; the critics' first layers make up for their own."""


def sac_weights(file: SB3File, observation_space: gym.Space[Any], action_space: gym.Space[Any]) -> dict[str, Tensor]:
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
    named: dict[str, Tensor] = dict(file.statistics(SEEN, observation_space))
    layers = _layers(weights, "actor.latent_pi")
    layers[0] = file.fitted(*layers[0], observation_space, SEEN, SEEN)
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
            seen, bias = file.fitted(weight[:, :size], bias, observation_space, f"{theirs}.features_extractor", SEEN)
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
