"""Reward networks that `imitation` saved with ``torch.save``: read without running code from the file.

Such a file is a pickle of whole objects. torch's restricted unpickler builds only the classes listed here: imitation's reward
networks, torch's layers, gymnasium's spaces and numpy's arrays. Anything else is refused by name.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import re
import warnings
import zipfile
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import nn

from rlhf_ray.data.by_pip import IMITATION
from rlhf_ray.data.errors import SettingError

SUFFIXES = (".pt", ".pth")

MOST_BYTES = 2**31
"""Largest file, and largest content of a compressed one."""

NETS = (
    "BasicRewardNet",
    "CnnRewardNet",
    "NormalizedRewardNet",
    "ShapedRewardNet",
    "BasicShapedRewardNet",
    "BasicPotentialMLP",
    "BasicPotentialCNN",
    "RewardEnsemble",
    "AddSTDRewardWrapper",
    "RewardNetWrapper",
    "ForwardWrapper",
    "PredictProcessedWrapper",
)
"""Classes of ``imitation.rewards.reward_nets``."""
NORMS = ("SqueezeLayer", "RunningNorm", "EMANorm")
"""Classes of ``imitation.util.networks``."""
LAYERS: tuple[Any, ...] = (
    *(nn.Sequential, nn.ModuleList, nn.ModuleDict, nn.Identity, nn.Flatten, nn.Unflatten, nn.Dropout, nn.Dropout2d),
    *(nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Embedding),
    *(nn.MaxPool2d, nn.AvgPool2d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool2d),
    *(nn.BatchNorm1d, nn.BatchNorm2d, nn.LayerNorm, nn.GroupNorm, nn.InstanceNorm2d),
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Softplus),
    *(nn.Sigmoid, nn.Tanh, nn.Hardtanh, nn.Softsign, nn.LogSigmoid, nn.Softmax),
)


RANDOM = (
    "numpy.random._pickle.__generator_ctor",
    "numpy.random._pickle.__bit_generator_ctor",
    "numpy.random._pcg64.PCG64",
    "numpy.random.bit_generator.SeedSequence",
    "numpy.random.bit_generator.__pyx_unpickle_SeedSequence",
)
"""Parts of a random generator. Spaces that were sampled from hold one; it is dropped."""


class Dropped:
    """Stands for a part of a file that is not built."""

    def __init__(self, *arguments: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def load_imitation_net(path: Path) -> nn.Module:
    """Load the reward network in ``path``.

    Raises:
        SettingError: the file is no such network, is damaged or too large, or names a class that is not allowed.
    """
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # its import of gym prints advice in several lines
            from imitation.rewards import reward_nets
            from imitation.util import networks
    except ImportError as error:
        raise SettingError(
            f"{path} is a reward network of imitation, which is not installed here ({error}). Install it: {IMITATION}"
        ) from error
    _check_size(path)
    allowed = [getattr(source, name) for source, names in ((reward_nets, NETS), (networks, NORMS)) for name in names]
    try:
        with torch.serialization.safe_globals([*allowed, *LAYERS, *_values()]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch's advice about old and new pickles
            net = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file raises almost anything
        raise SettingError(f"{path} {_why(error)}") from error
    if not isinstance(net, nn.Module) or not all(
        hasattr(net, source) for source in ("observation_space", "action_space")
    ):
        kind = "weights without their network" if isinstance(net, dict) else f"a {type(net).__name__}"
        raise SettingError(
            f"{path} holds {kind}, not a reward network of imitation: save the whole network with torch.save(reward_net, path)."
        )
    for module in net.modules():
        for space in vars(module).values():
            if isinstance(space, gym.Space):
                space._np_random = None  # it was dropped; spaces make a new one when they are sampled from
    return net


def _values() -> list[Any]:
    """What spaces and arrays are made of, also under numpy 1's names."""
    numbers = (*(f"{sign}Int{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64)), "Float32", "Float64", "Bool")
    kinds = [getattr(np.dtypes, f"{name}DType") for name in numbers]
    multiarray: Any = importlib.import_module("numpy._core.multiarray")
    of_old = [(getattr(multiarray, name), f"numpy.core.multiarray.{name}") for name in ("_reconstruct", "scalar")]
    spaces = [gym.spaces.Box, gym.spaces.Discrete, gym.spaces.MultiDiscrete, gym.spaces.MultiBinary]
    dropped = [(Dropped, name) for name in RANDOM]
    return [*dropped, np.ndarray, np.dtype, *kinds, multiarray._reconstruct, multiarray.scalar, *of_old, *spaces]


def _check_size(path: Path) -> None:
    """Refuse a file that is too large, before torch reads it."""
    size = path.stat().st_size
    if zipfile.is_zipfile(path):
        try:
            with zipfile.ZipFile(path) as archive:
                size = max(size, sum(member.file_size for member in archive.infolist()))
        except zipfile.BadZipFile:
            return  # torch says why
    if size > MOST_BYTES:
        raise SettingError(
            f"{path} holds {size / 2**30:.1f} GiB; reward networks of up to {MOST_BYTES / 2**30:.0f} GiB are loaded."
        )


def _why(error: Exception) -> str:
    """What is wrong with a file, from torch's error."""
    message = str(error)
    named = re.search(r"(?:GLOBAL|class|function) ['`<]*([A-Za-z_][\w.]*\.[\w.]*\w)", message)
    if named is not None:
        return (
            f"names {named.group(1)}, which is not one of imitation's reward networks, torch's layers, spaces or arrays, so it is "
            "not loaded: its code would run. If you trust the file, load it in a module of your own and name it module:Name."
        )
    lines = [line for line in message.splitlines() if re.search("[A-Za-z]", line) and "orch.load" not in line]
    return (
        f"can't be read as a reward network of imitation ({lines[0][:120] if lines else type(error).__name__}): it is damaged, or "
        "another kind of file."
    )
