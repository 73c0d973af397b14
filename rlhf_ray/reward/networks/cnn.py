"""Reward networks for images, and the convolutions of an ensemble's members on the same images."""

from __future__ import annotations

import contextlib
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import gymnasium as gym
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.optim import in_bfloat16
from rlhf_ray.policies import encoders
from rlhf_ray.reward.networks.mlp import (
    ACTIVATIONS,
    ActionEncoder,
    ImageMean,
    StackedBatchNorm,
    StackedMLP,
    ended,
    other_inputs,
    regularised,
)
from rlhf_ray.settings import Activation, RewardModelSettings

CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
"""Filters, kernel size and stride of each convolution of a cnn. Kept small: on a CPU they dominate the cost of fitting."""
PAPER = ((16, 7, 3), (16, 5, 2), (16, 3, 1), (16, 3, 1))
"""The same of the network paper_cnn: Christiano et al. 2017 for Atari (appendix A.2)."""
PUBLISHED: Mapping[str, tuple[int, Activation]] = {
    "paper_cnn": (64, "leaky_relu"),
    "nature": (512, "relu"),
    "impala": (256, "relu"),
}
"""Units of the layer after the convolutions, and the activation, of networks whose layers are fixed."""
POOLED: Mapping[str, tuple[int, ...]] = {
    "small_cnn": (32, 64),
    "large_cnn": (96, 256, 384, 384, 256),
    "very_large_cnn": (*5 * (16,), *10 * (32,)),
}
"""Filters of the pooled networks whose convolutions are fixed."""

SCALE = 1.0 / 255.0
"""Factor of pixels: of the first layer's weights, of which there are fewer."""
ELEMENTWISE = (nn.ReLU, nn.LeakyReLU, nn.Tanh)
PASS_NUMBERS = 4 * 2**20
"""Numbers in the widest layer of one pass: larger passes leave the cache, and take up to twice as long."""


class CNN(nn.Module):
    """Convolutions over state and next state, then an MLP that also sees action and done.

    See `rlhf_ray.reward.networks.RewardNetwork`. By ``settings.network``, the layers are those of the settings or published ones:

    * paper_cnn: four convolutions, one layer of 64 units, leaky ReLUs of slope 0.01 (Christiano et al. 2017). The paper's has
      ``batch_norm`` and ``dropout=0.5``, sees a stack of 4 grey frames of 84x84 pixels and no action (``use_action=False``).
      43x43 pixels or more.
    * nature: three convolutions and one layer of 512 units (Mnih et al. 2015). 36x36 pixels or more.
    * impala: 15 convolutions in three blocks, with residuals, and one layer of 256 units (Espeholt et al. 2018). Batch
      normalisation and dropout are not used inside the blocks.

    Args:
        observation_space: a uint8 image Box ``[height, width, channels]``.

    Raises:
        SettingError: the observations are not images, or are too small for the convolutions.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__()
        _check_images(observation_space, settings)
        if settings.network in PUBLISHED:
            units, activation = PUBLISHED[settings.network]
            settings = replace(settings, hidden=(units,), activation=activation)
        self.members, self.settings = settings.ensemble_size, settings
        self.encode_action = ActionEncoder(action_space)
        self.convolutions, inputs, self.images_at_once = convolutions_of(observation_space, settings)
        inputs += (self.encode_action.size if settings.use_action else 0) + int(settings.use_done)
        self.head = StackedMLP(settings, inputs)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``features`` ``[n, length, inputs]`` float32 and, if the network sees states, ``frames``: the observations."""
        features = other_inputs(self.settings, self.encode_action, actions, terminated)
        return {"features": features} if self.convolutions is None else {"features": features, "frames": observations}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        n, length = inputs["features"].shape[:2]
        features = inputs["features"].flatten(0, 1).expand(self.members, n * length, -1)
        if self.convolutions is not None:
            encoded = members_of_images(self, inputs["frames"])
            features = torch.cat([encoded, features], -1)
        rewards: Tensor = self.head(features)
        return rewards.view(self.members, n, length)


class PooledCNN(nn.Module):
    """3x3 convolutions that keep the image's size, their average over it, and one output per action, as in imitation's network.

    See `rlhf_ray.reward.networks.RewardNetwork`. It takes images of any size, and its last convolution says where in the image the
    reward comes from. The action does not enter the convolutions: it selects one of their outputs. With ``use_done``, there are
    twice as many outputs.

    Args:
        observation_space: a uint8 image Box ``[height, width, channels]``.
        action_space: Discrete or MultiDiscrete, if the action is an input.

    Raises:
        SettingError: the observations are not images, no image is an input, or the action is one and not discrete.
    """

    def __init__(
        self, observation_space: gym.spaces.Box, action_space: gym.Space[object], settings: RewardModelSettings
    ):
        super().__init__()
        _check_images(observation_space, settings)
        self.settings = settings
        if not settings.use_state and not settings.use_next_state:
            raise SettingError(
                f"reward_model.network is {settings.network!r}, which needs an image: enable use_state or use_next_state."
            )
        self.encode_action = ActionEncoder(action_space) if settings.use_action else None
        if self.encode_action is not None and not self.encode_action.discrete:
            raise SettingError(
                f"reward_model.network is {settings.network!r}, which has one output per action, but the actions are "
                f"{action_space}: use 'cnn', or turn use_action off."
            )
        outputs = (1 if self.encode_action is None else self.encode_action.size) * (1 + int(settings.use_done))
        self.convolutions, _, self.images_at_once = convolutions_of(observation_space, settings, outputs)

    def encode(self, observations: Tensor, actions: Tensor, terminated: Tensor) -> dict[str, Tensor]:
        """Return ``frames``, the observations, and ``selects`` ``[n, length, outputs]`` float32: the weight of each output."""
        selects = torch.ones(*actions.shape[:2], 1, dtype=torch.float32, device=actions.device)
        if self.encode_action is not None:
            selects = self.encode_action(actions)
        if self.settings.use_done:
            done = ended(actions, terminated)
            selects = torch.cat([selects * (1 - done), selects * done], -1)
        return {"frames": observations, "selects": selects}

    def forward(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return rewards ``[members, n, length]``."""
        outputs = members_of_images(self, inputs["frames"])
        rewards: Tensor = (outputs * inputs["selects"].flatten(0, 1)).sum(-1)
        return rewards.view(-1, *inputs["selects"].shape[:2])


def _check_images(space: gym.Space[object], settings: RewardModelSettings) -> None:
    if not is_image(space):
        raise SettingError(
            f"reward_model.network is {settings.network!r}, but the observations are {space}, not uint8 images of "
            "height x width x channels; use 'mlp' or 'auto'."
        )


def convolutions_of(
    space: gym.spaces.Box, settings: RewardModelSettings, outputs: int = 0
) -> tuple[nn.ModuleList | None, int, int | None]:
    """Build each member's convolutions, regularised by the settings.

    Args:
        space: of the images.
        settings: inputs, layers, regularisation and ensemble size.
        outputs: of a pooled network; 0 for another.

    Returns:
        The members' convolutions, None if no image is an input; the number of their features; and `images_at_once` of them.

    Raises:
        SettingError: the images are too small.
    """
    states = int(settings.use_state) + int(settings.use_next_state)
    if not states:
        return None, 0, None
    height, width, channels = space.shape
    image = (channels * states, height, width)
    made = (
        _pooled(image[0], outputs, settings) if outputs else _plain(image[0], settings)
        for _ in range(settings.ensemble_size)
    )
    members = nn.ModuleList(regularised(layers, settings) for layers in made)
    try:
        with evaluating(members), torch.no_grad():
            size = members[0](torch.zeros(1, *image)).shape[1]
    except RuntimeError as error:
        raise SettingError(
            f"reward_model.network is {settings.network!r}, but images of {height}x{width} pixels are too small for its "
            f"convolutions; use 'mlp'."
        ) from error
    return members, size, images_at_once(members, image)


def _plain(channels: int, settings: RewardModelSettings) -> nn.Sequential:
    """Return a member's layers from images ``[n, channels, height, width]``, float, 0 to 1, to features ``[n, size]``."""
    if settings.network in ("nature", "impala"):
        encoder = encoders.convolutions(settings.network, channels)
        if settings.network == "impala":
            encoders.glorot(encoder)
        return encoder
    layers: list[nn.Module] = []
    for filters, kernel, stride in PAPER if settings.network == "paper_cnn" else CONVOLUTIONS:
        layers += [nn.Conv2d(channels, filters, kernel, stride), ACTIVATIONS[settings.activation]()]
        channels = filters
    return nn.Sequential(*layers, nn.Flatten())


def _pooled(channels: int, outputs: int, settings: RewardModelSettings) -> nn.Sequential:
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for number, filters in enumerate(POOLED.get(settings.network, settings.convolutions), 1):
        layers[f"conv{number}"] = nn.Conv2d(channels, filters, 3, padding=1)
        layers[f"act{number}"] = ACTIVATIONS[settings.activation]()
        channels = filters
    layers |= {"pool": ImageMean(), "flatten": nn.Flatten(), "dense": nn.Linear(channels, outputs)}
    return nn.Sequential(layers)


def members_of_images(network: Any, frames: Tensor) -> Tensor:
    """Return what each member's convolutions make of images: ``[members, n * length, …]`` float32.

    Args:
        network: with ``settings`` and each member's ``convolutions``.
        frames: ``[n, length + 1, height, width, channels]``, uint8 or float, 0 to 255.
    """
    if network.training:
        low = in_bfloat16(network.settings.precision, frames.device)
        return convolved(network.convolutions, _images(network.settings, frames), bfloat16=low)
    pixels = pixels_of(network.settings, frames)
    return torch.stack([convolve(pixels) for convolve in network.convolutions])


def _images(settings: RewardModelSettings, frames: Tensor) -> Tensor:
    """Return state, next state or both of each step, ``[n * length, channels, height, width]``, 0 to 255."""
    if settings.use_state and settings.use_next_state:
        images = torch.cat([frames[:, :-1], frames[:, 1:]], -1)
    else:
        images = frames[:, :-1] if settings.use_state else frames[:, 1:]
    return images.flatten(0, 1).permute(0, 3, 1, 2)


def pixels_of(settings: RewardModelSettings, frames: Tensor) -> Tensor:
    """Return the images of ``frames`` (`members_of_images`), ``[n * length, channels, height, width]`` float32 in [0, 1]."""
    images = _images(settings, frames)
    # In place only on a new tensor: float images are the caller's, who may want their gradients.
    return images * SCALE if images.is_floating_point() else images.float().mul_(SCALE)


def images_at_once(members: nn.ModuleList, image: tuple[int, int, int]) -> int:
    """Return how many images ``[channels, height, width]`` of a gradient step to pass through the members' layers at once."""
    sizes = [math.prod(image)]

    def note(_layer: Any, _inputs: Any, made: Any) -> None:
        if isinstance(made, Tensor):
            sizes.append(len(members) * made.numel())

    with evaluating(members), torch.no_grad(), contextlib.ExitStack() as hooks:
        for layer in members[0].modules():
            if not list(layer.children()):
                hooks.callback(layer.register_forward_hook(note).remove)
        members[0](torch.zeros(1, *image))
    return max(1, PASS_NUMBERS // max(sizes))


@contextlib.contextmanager
def evaluating(members: nn.ModuleList) -> Iterator[None]:
    """Layers in evaluation mode: a trial must leave no trace in the averages of batch normalisation."""
    members.eval()
    try:
        yield
    finally:
        members.train()


def steps_that_fit(networks: nn.Module) -> int | None:
    """Return how many steps of a pass through the networks fit a core's cache, or memory; None if any number does."""
    bounds = [getattr(layer, "images_at_once", None) for layer in networks.modules()]
    return min((bound for bound in bounds if isinstance(bound, int)), default=None)


def takes_averages(networks: nn.Module) -> bool:
    """Return whether a fit may not cut a pass: batch normalisation takes its averages over it."""
    return any(isinstance(layer, _BatchNorm | StackedBatchNorm) for layer in networks.modules())


def convolved(members: nn.ModuleList, images: Tensor, *, bfloat16: bool) -> Tensor:
    """Return what the members' layers make of images: ``[members, n, …]`` float32.

    Everything up to the last convolution and its activation is in bfloat16, if so wanted.

    Args:
        members: of each, the layers, one after the other.
        images: ``[n, channels, height, width]``, 0 to 255, uint8 or float.
        bfloat16: whether to compute in bfloat16, in which 0 to 255 are exact.
    """
    convolutions = []
    pixels = images.to(torch.bfloat16 if bfloat16 else torch.float32)
    for member in members:
        first, *layers = member.children()
        convolving = (any(isinstance(module, nn.Conv2d) for module in layer.modules()) for layer in layers)
        end = max((number for number, convolves in enumerate(convolving, 1) if convolves), default=0)
        while end < len(layers) and isinstance(layers[end], (*ELEMENTWISE, ImageMean)):
            end += 1
        with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
            values = nn.Sequential(*layers[:end])(_first(first, pixels))
        convolutions.append(nn.Sequential(*layers[end:])(values.float()))
    return torch.stack(convolutions)


def _first(layer: nn.Module, pixels: Tensor) -> Tensor:
    """Return what a first layer makes of pixels, 0 to 255."""
    if not isinstance(layer, nn.Conv2d):
        return torch.as_tensor(layer(pixels * SCALE))
    return nn.functional.conv2d(pixels, layer.weight * SCALE, layer.bias, layer.stride, layer.padding)
