"""Models that Stable-Baselines3 saved, as tensors and options. Runs no code from the file.

A ``model.zip`` of SB3 holds ``data`` (JSON, with pickles that are not read) and files of torch, of which only tensors are loaded.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import re
import warnings
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor

from rlhf_ray.data import pickles
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import formal_numbers
from rlhf_ray.policies.encoders import LEAST_VARIANCE, bounds

log = logging.getLogger(__name__)

MOST_BYTES = 2**31
"""Largest file of tensors in a model."""

HARMLESS = (
    "net_arch",
    "ortho_init",
    "log_std_init",
    "optimizer_class",
    "optimizer_kwargs",
    "share_features_extractor",
    "n_critics",
)
"""Options of a policy that its weights tell, or that matter to its training alone."""

NORMALISES = {
    "features_extractor_class": r"imitation\.policies\.base\.NormalizeFeaturesExtractor",
    "features_extractor_kwargs": r"imitation\.util\.networks\.(RunningNorm|EMANorm)",
}
"""Options with which imitation's policies normalise their observations."""

EPSILON = 1e-5
"""What imitation's normalisers add to the variance."""


@dataclass(frozen=True)
class SB3File:
    """What is in a model.

    Attributes:
        path: the file.
        weights: the policy's state dict.
        variables: other tensors of the algorithm.
        options: the options of the algorithm.
        beside: count, mean and deviation of the observations by the ``VecNormalize`` that was saved beside the model; None if there
            is none.
    """

    path: Path
    weights: dict[str, Tensor]
    variables: dict[str, Tensor]
    options: dict[str, Any]
    beside: tuple[Tensor, Tensor, Tensor] | None = None

    @classmethod
    def read(cls, path: Path) -> SB3File:
        """Read a model, and the statistics of ``VecNormalize`` beside it (`statistics_beside`).

        Raises:
            SettingError: it is damaged.
        """
        try:
            with zipfile.ZipFile(path) as archive:
                options = json.loads(archive.read("data"))
                weights = _tensors(archive, "policy.pth")
                names = archive.namelist()
                variables = _tensors(archive, "pytorch_variables.pth") if "pytorch_variables.pth" in names else {}
        except Exception as error:  # a damaged file raises almost anything
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise SettingError(f"{path} can't be read as a model of Stable-Baselines3: {lines[0][:150]}.") from error
        return cls(path, weights, variables, options if isinstance(options, dict) else {}, statistics_beside(path))

    def check_options(self, activation: str) -> None:
        """Check that the policy is one that a network of ours can be, with this activation function alone, named as in torch.

        Raises:
            SettingError: it has an option that ours has not.
        """
        kwargs = self.options.get("policy_kwargs")
        kwargs = {n: v for n, v in kwargs.items() if not n.startswith(":")} if isinstance(kwargs, dict) else {}
        for name, value in (("use_sde", self.options.get("use_sde")), *kwargs.items()):
            fits = name in HARMLESS or (name == "activation_fn" and activation in str(value))
            if name in NORMALISES:
                fits = re.search(NORMALISES[name], str(value)) is not None
            if value and not fits:
                shown = re.sub(r"<class '(?:\w+\.)*(\w+)'>", r"\1", str(value))[:60]
                raise SettingError(
                    f"The policy in {self.path} has {name}={shown}, which ours has not; start from a policy with SB3's "
                    "default."
                )

    def normaliser(self, of: str) -> tuple[Tensor, Tensor, Tensor] | None:
        """Return count, mean and deviation of the observations, float64.

        They are those of ``VecNormalize`` beside the model, or those of the part ``of`` of a policy of imitation.

        Raises:
            SettingError: there are both.
        """
        prefix = f"{of}.normalize."
        if f"{prefix}running_mean" not in self.weights:
            return self.beside
        if self.beside is not None:
            raise SettingError(
                f"The policy in {self.path} normalises its observations, and so does the VecNormalize beside it: take away its "
                ".pkl, if the policy was trained without."
            )
        count, mean, variance = (
            self.weights[prefix + name].double() for name in ("count", "running_mean", "running_var")
        )
        return count, mean.flatten(), (variance.flatten() + EPSILON).sqrt()

    def seen_by_ours(self, space: gym.spaces.Box, of: str) -> tuple[Tensor, Tensor]:
        """Return the middle and the scale with which a network of ours sees observations: see `fitted`."""
        normaliser = self.normaliser(of)
        if normaliser is not None and float(normaliser[0]) > 0:
            return normaliser[1:]
        if normaliser is not None:
            return torch.zeros_like(normaliser[1]), torch.ones_like(normaliser[1])
        middle, scale = (torch.as_tensor(np.asarray(part, np.float64)).flatten() for part in bounds(space))
        formal = torch.as_tensor(formal_numbers(space))
        return middle.where(~formal, 0.0), scale.where(~formal, 1.0)

    def statistics(self, of: str, space: gym.Space[Any]) -> dict[str, Tensor]:
        """Return the weights of `ObservationStatistics` that normalise as the part ``of`` does.

        None if it does not; but `FormalNumbers` of a network of ours for the observation space stay as they are.
        """
        normaliser = self.normaliser(of)
        if normaliser is None:
            formal = 0 if is_image(space) or not isinstance(space, gym.spaces.Box) else int(formal_numbers(space).sum())
            unseen = {"count": torch.tensor(-1.0), "mean": torch.zeros(formal), "squares": torch.zeros(formal)}
            return {f"formal.seen.{name}": value for name, value in unseen.items()} if formal else {}
        count, mean, deviation = normaliser
        squares = (deviation**2 - LEAST_VARIANCE) * count
        return {
            "statistics.count": count,
            "statistics.mean": torch.cat([mean, torch.zeros_like(mean)]),
            "statistics.squares": torch.cat([squares, torch.zeros_like(squares)]),
            "statistics.symlogs": torch.tensor(0.0),
        }

    def fitted(self, weight: Tensor, bias: Tensor, space: gym.spaces.Box, of: str, ours: str) -> tuple[Tensor, Tensor]:
        """Make a first layer take observations as a network of ours sees them: W u + b, with u = (m0 - m1 + s0 z) / s1.

        Args:
            weight: ``[units, size]``, of the layer, which takes observations as the part ``of`` returns them.
            bias: ``[units]``.
            space: the environment's observation space.
            of: the part of the policy before the layer.
            ours: the part whose statistics the network of ours has.

        Raises:
            SettingError: the layer takes other observations.
        """
        middle, scale = self.seen_by_ours(space, ours)
        if weight.dim() != 2 or weight.shape[1] != len(middle):
            raise SettingError(
                f"The policy in {self.path} takes {weight.shape[-1]} numbers; the environment's observations have {len(middle)}."
            )
        theirs = self.normaliser(of)
        mean, deviation = (torch.zeros_like(middle), torch.ones_like(middle)) if theirs is None else theirs[1:]
        return weight * (scale / deviation), bias + weight @ ((middle - mean) / deviation)


def statistics_file(path: Path) -> Path | None:
    """Return where a ``VecNormalize`` was saved beside a model, as SB3's callbacks, its zoo and people name it; None if nowhere."""
    stem, folder = path.stem, path.parent
    checkpoint = re.fullmatch(r"(.+)_(\d+)_steps", stem)
    names = [f"{stem}_vecnormalize.pkl", f"{stem}_vec_normalize.pkl", f"{stem}/vecnormalize.pkl"]
    if checkpoint is not None:
        names.append(f"{checkpoint[1]}_vecnormalize_{checkpoint[2]}_steps.pkl")
    names += ["vecnormalize.pkl", "vec_normalize.pkl"]
    zoo = sorted(folder.glob("*/vecnormalize.pkl"))  # in a folder of the environment's name, beside best_model.zip
    found = [folder / name for name in names if (folder / name).is_file()] + (zoo if len(zoo) == 1 else [])
    return found[0] if found else None


def statistics_beside(path: Path) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return count, mean and deviation of the observations by the ``VecNormalize`` beside a model, float64. Runs no code.

    Returns:
        None if there is none, or if it leaves observations as they are. A model itself does not tell.

    Raises:
        SettingError: it can't be read.
    """
    file = statistics_file(path)
    if file is None:
        _say(f"{path}: no VecNormalize beside it (vecnormalize.pkl), so its policy takes observations as they are.")
        return None
    try:
        pickles.check_size(file.stat().st_size)
        stored = vars(pickles.load(file.read_bytes()))
        if not stored.get("norm_obs", True):
            return None
        seen = vars(stored["obs_rms"])
        mean, variance, count = (pickles.array_of(seen[name]).astype(np.float64) for name in ("mean", "var", "count"))
        epsilon = float(pickles.array_of(stored.get("epsilon", 1e-8)))
    except (OSError, *pickles.ERRORS) as error:
        raise SettingError(
            f"{file} can't be read as a VecNormalize of Stable-Baselines3 ({pickles.reason(error)}): save it again, or take it "
            "away if the policy was trained without."
        ) from error
    _say(f"{path}: its policy takes observations normalised by {file}.")
    return (
        torch.as_tensor(count),
        torch.as_tensor(mean).flatten(),
        torch.as_tensor(variance + epsilon).flatten().sqrt(),
    )


@functools.cache
def _say(line: str) -> None:
    log.warning(line)


def _tensors(archive: zipfile.ZipFile, name: str) -> dict[str, Tensor]:
    size = archive.getinfo(name).file_size
    if size > MOST_BYTES:
        raise ValueError(f"its weights take {size / 2**30:.1f} GiB")
    content = io.BytesIO(archive.read(name))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice about pickles
            tensors = torch.load(content, map_location="cpu", weights_only=True)
    except Exception as error:  # torch's own words are advice for programmers, in several lines
        raise ValueError(
            f"its {name} is damaged, or holds something else than tensors; save the model again"
        ) from error
    if tensors is None:
        return {}
    if not isinstance(tensors, dict) or not all(isinstance(value, Tensor) for value in tensors.values()):
        raise ValueError(f"its {name} is not a state dict")
    return dict(tensors)
