"""Acting: a policy network for a few observations at a time, as in each step of a vector environment."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.policies.network import ActorCriticNetwork

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
        array: FloatArray = network.distribution(encoded).cpu().numpy()
        return array

    return outputs


def _with_numpy(network: ActorCriticNetwork) -> Outputs:
    layers = [layer for layer in network.actor.children() if isinstance(layer, nn.Linear)]
    weights = [np.ascontiguousarray(layer.weight.detach().numpy().T) for layer in layers]
    biases = [layer.bias.detach().numpy().copy() for layer in layers]
    encode = _scaling(network)
    log_std = None if network.discrete else network.log_std.detach().numpy().copy()

    def outputs(observations: Array) -> FloatArray:
        values = encode(observations)
        for weight, bias in zip(weights[:-1], biases[:-1], strict=True):
            values = values @ weight
            values += bias
            np.tanh(values, out=values)
        values = values @ weights[-1]
        values += biases[-1]
        return values if log_std is None else np.concatenate([values, np.broadcast_to(log_std, values.shape)], 1)

    return outputs


def _scaling(network: ActorCriticNetwork) -> Callable[[Array], FloatArray]:
    """Return `ActorCriticNetwork.encode` of vectors."""
    if not network.counts:
        middle, scale = network.middle.numpy(), network.scale.numpy()
        return lambda observations: ((observations.astype(np.float32) - middle) / scale).reshape(len(observations), -1)

    @torch.inference_mode()
    def scaled(observations: Array) -> FloatArray:
        array: FloatArray = network.scaled(torch.as_tensor(observations)).numpy()
        return array

    return scaled
