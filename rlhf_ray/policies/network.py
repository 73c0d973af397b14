"""The policy network: observations and memory in, action distribution, value and new memory out."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.policies.encoders import LARGEST, ObservationStatistics, TakesVectors, image_encoder, linear

Cell = Literal["none", "gru", "lstm"]


@dataclass(frozen=True)
class PolicyShape:
    """The shape of a policy network: these fields of `rlhf_ray.settings.PPOSettings`, which documents them."""

    network: str = "auto"
    hidden: tuple[int, ...] = (64, 64)
    features: int | None = None
    memory: Cell = "none"
    memory_units: int = 64
    initial_log_std: float = 0.0
    normalize_observations: bool = False


class ActorCriticNetwork(TakesVectors):
    """Actor and critic, with or without memory.

    Vectors: tanh layers, two separate stacks for actor and critic without memory, one shared stack before it; for what they take
    of observations, see `TakesVectors`. Images: one shared convolutional encoder, which divides by 255 itself, so that images stay
    0..255 up to here. Weights are orthogonal, with a small last layer of the policy (Andrychowicz et al. 2021, "What matters in
    on-policy RL"); the encoder of impala has Glorot's uniform weights and zero biases, as in the published Procgen agents.

    The memory of one environment is one vector: the state of a GRU, or hidden and cell state of an LSTM, one after the other. It
    starts at ``first_memory``, which is learned. One step is three parts, so that tools can change the memory between them:
    `encode`, `remember`, `decide`.

    Attributes:
        shape: its shape.
        memory_size: length of the memory vector; 0 without memory.
        outputs: length of the action distribution's inputs: logits of Discrete and MultiDiscrete actions; means and log standard
            deviations of Box actions, which are in [-1, 1] if the space is bounded.
    """

    def __init__(self, observation_space: gym.Space[Any], action_space: gym.Space[Any], shape: PolicyShape):
        super().__init__()
        self.shape = shape
        self.image = is_image(observation_space)
        network = shape.network
        if network == "auto":
            network = "nature" if self.image else "mlp"
        if (network == "mlp") == self.image:
            raise SettingError(
                f"ppo.network is {network!r}, but the observations are {observation_space}: use 'mlp' for vectors, "
                "'nature', 'impala' or 'small' for uint8 images, or 'auto'."
            )
        choices = choices_of(action_space)
        self.discrete = bool(choices)
        actions = sum(choices) if choices else _size(action_space)
        self.outputs = actions if self.discrete else 2 * actions
        units = shape.memory_units
        self.memory_size = {"none": 0, "gru": units, "lstm": 2 * units}[shape.memory]
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((actions,), float(shape.initial_log_std)))
        if self.image:
            assert observation_space.shape is not None
            self.encoder, size = image_encoder(network, observation_space.shape, shape.features)
        else:
            if not isinstance(observation_space, gym.spaces.Box):
                raise SettingError(
                    f"The policy network takes vectors or images, not {observation_space}: wrap the environment "
                    "(gymnasium.wrappers.FlattenObservation), or give rl_module() a network of your own."
                )
            size = _size(observation_space)
            self.take(observation_space, normalize=shape.normalize_observations)
            if self.memory_size:
                self.encoder = _tanh_layers(size, shape.hidden)
                size = shape.hidden[-1]
        if self.memory_size:
            self.cell = (nn.GRU if shape.memory == "gru" else nn.LSTM)(size, units, batch_first=True)
            self.first_memory = nn.Parameter(torch.zeros(self.memory_size))
            size = units
        if self.image or self.memory_size:
            self.actor: nn.Module = linear(size, actions, 0.01)
            self.critic: nn.Module = linear(size, 1, 1.0)
        else:
            self.actor = nn.Sequential(*_tanh_layers(size, shape.hidden), linear(shape.hidden[-1], actions, 0.01))
            self.critic = nn.Sequential(*_tanh_layers(size, shape.hidden), linear(shape.hidden[-1], 1, 1.0))

    @property
    def trains_encoder(self) -> bool:
        """Whether `encode` has trained parameters; otherwise its output stays the same during an update."""
        return self.image or self.memory_size > 0

    def initial_memory(self, n: int) -> Tensor:
        """Return the memory ``[n, memory_size]`` at the start of an episode."""
        if not self.memory_size:
            return torch.zeros(n, 0)
        return self.first_memory.expand(n, -1)

    def encode(self, observations: Tensor, *, bfloat16: bool = False) -> Tensor:
        """Encode observations as ``[n, features]`` float32.

        Args:
            observations: ``[n, …]``; images: 0..255, uint8 or float.
            bfloat16: whether to compute an image's encoder in bfloat16.
        """
        if self.image:
            # The permuted images are channels-last in memory, the fastest layout for convolutions on a CPU.
            images = observations.permute(0, 3, 1, 2)
            with torch.autocast(images.device.type, torch.bfloat16, enabled=bfloat16):
                encoded: Tensor = self.encoder(images.to(torch.bfloat16 if bfloat16 else torch.float32))
            return encoded.float()
        scaled = self.scaled(observations)
        return self.encoder(scaled) if self.memory_size else scaled

    def remember(self, features: Tensor, memory: Tensor) -> Tensor:
        """Return the memory ``[n, memory_size]`` after a step with ``features`` ``[n, features]``."""
        return self.unroll(features[:, None], memory)[1] if self.memory_size else memory

    def unroll(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Remember a sequence.

        Args:
            features: ``[n, steps, features]``.
            memory: before the first step, ``[n, memory_size]``.

        Returns:
            What `heads` read at each step, ``[n, steps, size]``, and the memory after the last step.
        """
        if not self.memory_size:
            return features, memory
        if self.shape.memory == "gru":
            read, last = self.cell(features, memory[None].contiguous())
            return read, last[0]
        hidden, cell = memory.chunk(2, -1)
        read, (hidden, cell) = self.cell(features, (hidden[None].contiguous(), cell[None].contiguous()))
        return read, torch.cat([hidden[0], cell[0]], -1)

    def decide(self, features: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Return the action distribution's inputs ``[n, outputs]`` and the value ``[n]``, after `remember`."""
        if not self.memory_size:
            return self.heads(features)
        return self.heads(memory[:, : self.shape.memory_units])

    def heads(self, read: Tensor) -> tuple[Tensor, Tensor]:
        """Compute the action distribution's inputs ``[…, outputs]`` and the value ``[…]``."""
        return self.distribution(read), self.critic(read).squeeze(-1)

    def distribution(self, read: Tensor) -> Tensor:
        """Compute the action distribution's inputs ``[…, outputs]``."""
        outputs: Tensor = self.actor(read)
        return outputs if self.discrete else torch.cat([outputs, self.log_std.expand_as(outputs)], -1)


def _tanh_layers(inputs: int, hidden: tuple[int, ...]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size_in, size_out in zip((inputs, *hidden), hidden, strict=False):
        layers += [linear(size_in, size_out, math.sqrt(2.0)), nn.Tanh()]
    return nn.Sequential(*layers)


def _size(space: gym.Space[Any]) -> int:
    assert space.shape is not None
    return int(np.prod(space.shape))


Outputs = Callable[[Array], FloatArray]
"""Maps observations ``[n, *observation_shape]`` to the inputs ``[n, outputs]`` of the action distribution, float32."""


def outputs_of(network: ActorCriticNetwork) -> Outputs:
    """Return a fast function for a policy without memory. It is that of the weights of now.

    For a few rows, an operation of numpy costs half of torch's, and an MLP is a handful of them.
    """
    if network.image or network.memory_size or next(network.parameters()).is_cuda:
        return _with_torch(network)
    return _with_numpy(network)


def _with_torch(network: ActorCriticNetwork) -> Outputs:
    device = next(network.parameters()).device

    @torch.inference_mode()
    def outputs(observations: Array) -> FloatArray:
        encoded = network.encode(torch.as_tensor(observations, device=device))
        return network.distribution(encoded).cpu().numpy()

    return outputs


def _with_numpy(network: ActorCriticNetwork) -> Outputs:
    layers = [layer for layer in network.actor.children() if isinstance(layer, nn.Linear)]
    weights = [np.ascontiguousarray(layer.weight.detach().numpy().T) for layer in layers]
    biases = [layer.bias.detach().numpy().copy() for layer in layers]
    encode = _scaling(network)
    log_std = None if network.discrete else network.log_std.detach().numpy().copy()

    def outputs(observations: Array) -> FloatArray:
        values: FloatArray = encode(observations)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            values = values @ weight
            values += bias
            np.tanh(values, out=values)
        values = values @ weights[-1]
        values += biases[-1]
        if log_std is None:
            return values
        both: FloatArray = np.empty((len(values), 2 * len(log_std)), np.float32)
        both[:, : len(log_std)], both[:, len(log_std) :] = values, log_std
        return both

    return outputs


def _scaling(network: ActorCriticNetwork) -> Callable[[Array], FloatArray]:
    """Return `ActorCriticNetwork.encode` of vectors."""
    if not network.counts:
        middle, scale = network.middle.numpy(), network.scale.numpy()
        return lambda observations: ((observations.astype(np.float32) - middle) / scale).reshape(len(observations), -1)
    if network.statistics is not None:
        return normalising(network.statistics)

    @torch.inference_mode()
    def scaled(observations: Array) -> FloatArray:
        return network.scaled(torch.as_tensor(observations)).numpy()

    return scaled


def normalising(statistics: ObservationStatistics) -> Callable[[Array], FloatArray]:
    """Return ``statistics``, as they are now, as a function of observations ``[n, …]``."""
    zero, unit = (part.numpy() for part in statistics.scaling())
    seen, size, share = bool(statistics.count > 0), len(zero) // 2, 0.5 * float(statistics.symlogs)

    def normalise(observations: Array) -> FloatArray:
        numbers: FloatArray = observations.reshape(len(observations), -1).astype(np.float32)
        if not seen:
            return numbers
        numbers = np.concatenate([numbers, np.copysign(np.log1p(np.abs(numbers)), numbers)], 1)
        parts: FloatArray = np.clip((numbers - zero) / unit, -LARGEST, LARGEST)
        return (1.0 - share) * parts[:, :size] + share * parts[:, size:]

    return normalise
