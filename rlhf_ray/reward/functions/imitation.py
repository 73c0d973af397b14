"""A reward network of imitation as a reward function, and those that it saved with ``torch.save``, read without running code.

To wrap a network, `imitation` itself is not imported: its networks say what they are. A saved one is a pickle of whole objects, of
which torch's restricted unpickler builds only the classes listed here: imitation's reward networks, torch's layers, gymnasium's
spaces and numpy's arrays. Anything else is refused by name.
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
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.by_pip import IMITATION
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.reward.functions.function import INPUTS, Input, RewardFunction, TorchReward, reinitialise

SUFFIXES = (".pt", ".pth")

MOST_BYTES = 2**31
"""Largest file, and largest content of a compressed one."""

NETS = (
    *("BasicRewardNet", "CnnRewardNet", "NormalizedRewardNet", "ShapedRewardNet", "BasicShapedRewardNet"),
    *("BasicPotentialMLP", "BasicPotentialCNN", "RewardEnsemble", "AddSTDRewardWrapper", "RewardNetWrapper"),
    *("ForwardWrapper", "PredictProcessedWrapper"),
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


class ImitationReward(TorchReward):
    """Any ``imitation.rewards.reward_nets.RewardNet``: basic, CNN, shaped, wrapped, or an ensemble.

    Predictions come from ``predict_processed``, so that normalising wrappers count; their statistics stay as they are. Gradients
    are of the same reward: inputs go through the network's own ``preprocess``, and outputs through ``NormalizedRewardNet`` and
    ``AddSTDRewardWrapper``. What a wrapper of a user's own does in ``predict_processed`` alone has no gradients.
    """

    def __init__(self, net: nn.Module, name: str = "imitation reward"):
        super().__init__(net)
        for part in self.module.modules():
            if hasattr(part, "predict_processed"):
                part.register_forward_pre_hook(_copied)
        net_: Any = net
        self.observation_space, self.action_space = net_.observation_space, net_.action_space
        self.name = name
        self.inputs = _reads(net)

    def members_at_once(
        self, observations: Array, actions: Array, next_observations: Array, terminated: Array
    ) -> FloatArray:
        """Compute the reward of each member, ``[members, n]`` float64, by the network's own predictions."""
        net: Any = self.module
        steps = (observations, actions, next_observations, np.asarray(terminated, bool))
        if hasattr(net, "predict_processed_all"):
            return np.asarray(net.predict_processed_all(*steps, update_stats=False), np.float64).T
        return np.asarray(net.predict_processed(*steps, update_stats=False), np.float64)[None]

    def member_tensor(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute the reward with gradients, ``[members, n]``."""
        return self._members(self.module, (observations, actions, next_observations, terminated))

    def _members(self, net: Any, inputs: tuple[Tensor, ...]) -> Tensor:
        """What ``predict_processed`` of each member of ``net`` returns, ``[members, n]``; one if it is no ensemble."""
        if hasattr(net, "predict_processed_all"):
            return torch.stack([self._members(member, inputs).mean(0) for member in net.members])
        if hasattr(net, "normalize_output_layer"):
            scaled: Tensor = net.normalize_output_layer(self._members(net.base, inputs).mean(0))
            return scaled[None]
        if hasattr(net, "default_alpha"):
            members = self._members(net.base, inputs)
            deviation = members.std(0) if len(members) > 1 else torch.zeros_like(members[0])
            return (members.mean(0) + float(net.default_alpha) * deviation)[None]
        observations, actions, next_observations, terminated = inputs
        if one_hot := bool(choices_of(self.action_space)):  # preprocess would cut their gradients off
            raw, actions = actions, self._choices(actions)
        seen = list(net.preprocess(observations, actions, next_observations, terminated))
        if one_hot:
            seen[1] = raw
        rewards: Tensor = net(*seen)
        return rewards[None]

    def fresh(self, seed: int) -> RewardFunction | None:
        """Return the same network with new weights; None if a layer can't draw its weights anew."""
        untrained = ImitationReward(self.module, f"{self.name}, untrained")
        try:
            reinitialise(untrained.module, seed)
        except NotImplementedError:
            return None
        return untrained


def _copied(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """A hook before each net of an ensemble or wrapper: a net that works in place leaves the next one's inputs alone."""
    return tuple(value.clone() if isinstance(value, Tensor) else value for value in inputs)


def _reads(net: Any) -> frozenset[Input]:
    """The inputs that a network may depend on: those that it says it uses, of an ensemble all of its members', else all four."""
    if hasattr(net, "predict_processed_all"):
        return frozenset().union(*map(_reads, net.members))
    if hasattr(net, "normalize_output_layer") or hasattr(net, "default_alpha"):
        return _reads(net.base)
    flags = {name: getattr(net, f"use_{name}", None) for name in INPUTS}
    return frozenset(name for name, used in flags.items() if used or None in flags.values())


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
    check_size(path, "reward networks")
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


def check_size(path: Path, what: str) -> None:
    """Refuse a file that is too large, or unpacks to what is, before it is read."""
    size = path.stat().st_size
    with contextlib.suppress(zipfile.BadZipFile), zipfile.ZipFile(path) as archive:
        size = max(size, sum(member.file_size for member in archive.infolist()))
    if size > MOST_BYTES:
        raise SettingError(
            f"{path} holds {size / 2**30:.1f} GiB; {what} of up to {MOST_BYTES / 2**30:.0f} GiB are loaded."
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
