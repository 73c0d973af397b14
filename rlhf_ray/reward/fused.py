"""FusedMLPs: gradients of MLP ensembles in a dozen operations per member, without autograd.

A return is a sum over steps, so that the last layer sees the sum of the hidden units, and its gradient is the same at each step.
Buffers are reused, and one member's fit in a core's cache.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from rlhf_ray.optim.flat import FlatParameters
from rlhf_ray.reward.likelihood import discounts
from rlhf_ray.reward.networks.layers import StackedLinear
from rlhf_ray.reward.networks.mlp import MLP
from rlhf_ray.settings import Activation, RewardModelSettings

STEPS_AT_ONCE = 4096
"""Steps per forward and backward pass; gradients accumulate. More exceed a core's cache."""

SLOPE = 0.01
"""Of the leaky ReLU below 0: torch's."""

OfDifferences = Callable[[int, Tensor, Tensor], Tensor]
"""Maps a member, rows of comparisons ``[n]`` and its return differences of them ``[n]`` to the loss's derivative by these."""

_aten = torch.ops.aten
ACTIVATE: dict[Activation, Callable[[Tensor], Tensor]] = {
    "relu": torch.relu_,
    "leaky_relu": lambda values: _aten.leaky_relu_(values, SLOPE),
    "tanh": torch.tanh_,
}
"""Each activation, in place."""
DERIVE: dict[Activation, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "relu": lambda of, values, out: _aten.threshold_backward.grad_input(of, values, 0.0, grad_input=out),
    "leaky_relu": lambda of, values, out: _aten.leaky_relu_backward.grad_input(of, values, SLOPE, True, grad_input=out),
    "tanh": lambda of, values, out: _aten.tanh_backward.grad_input(of, values, grad_input=out),
}
"""From the derivatives by the values of each activation, and the values, to those by its inputs, written to ``out``."""


class FusedMLPs:
    """An ensemble of MLPs whose gradient is computed here.

    Args:
        networks: the ensemble, for which `fits` holds.
        settings: its settings.

    Attributes:
        flat: its parameters.
    """

    def __init__(self, networks: MLP, settings: RewardModelSettings):
        self.networks, self.settings = networks, settings
        self.flat = FlatParameters(list(networks.parameters()))
        linear = [layer for layer in networks.head.layers if isinstance(layer, StackedLinear)]
        self._layers = [self._of_members(layer.weight, layer.bias) for layer in linear]
        self._activate, self._derive = ACTIVATE[settings.activation], DERIVE[settings.activation]
        self._buffers: dict[tuple[Any, ...], Tensor] = {}

    @staticmethod
    def fits(networks: Any, settings: RewardModelSettings) -> bool:
        """Return whether the gradient of these networks can be computed here: of MLPs, with nothing between their layers."""
        plain = not (settings.dropout or settings.batch_norm or settings.methods)
        return type(networks) is MLP and plain and networks.inputs > 0

    def _of_members(self, weight: Any, bias: Any) -> list[tuple[Tensor, Tensor, Tensor, Tensor]]:
        """Return each member's weight ``[inputs, outputs]`` and bias ``[outputs]`` of a layer, and the gradients of both."""
        parts = [
            self.flat.part_of(parameter, vector)
            for vector in (self.flat.values, self.flat.gradient)
            for parameter in (weight, bias)
        ]
        weights, biases, of_weights, of_biases = parts
        return list(zip(weights, biases[:, 0], of_weights, of_biases[:, 0], strict=True))

    def _buffer(self, *name: Any, rows: int, units: int) -> Tensor:
        """Return ``[rows, units]`` to write to."""
        buffer = self._buffers.get(name)
        if buffer is None or buffer.shape[0] < rows:
            buffer = self._buffers[name] = self.flat.values.new_empty(rows, units)
        return buffer[:rows]

    @torch.no_grad()
    def features_of(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return the MLPs' inputs ``[n, 2, length, inputs]``, normalised: they are the same for all gradient steps of a fit.

        Args:
            inputs: of all comparisons, each ``[n, 2, …]``.
        """
        device = self.flat.values.device
        features = self.networks.features_of({name: value.flatten(0, 1).to(device) for name, value in inputs.items()})
        return features.view(-1, 2, *features.shape[1:])

    @torch.no_grad()
    def rewards_of(self, features: Tensor, rows: Tensor) -> Tensor:
        """Return the rewards ``[members, m, 2, length]`` of comparisons, on the CPU.

        Args:
            features: ``[n, 2, length, inputs]``, from `features_of`.
            rows: ``[m]``: the comparisons.
        """
        length = features.shape[2]
        parts = []
        for part in torch.split(rows, max(1, STEPS_AT_ONCE // (2 * length))):
            inputs = features.index_select(0, part.to(features.device)).flatten(0, 2)
            of_members = []
            for member in range(self.settings.ensemble_size):
                weight, bias, *_ = self._layers[-1][member]
                of_members.append(torch.mv(self._hidden(member, inputs)[-1], weight[:, 0]).add_(bias))
            parts.append(torch.stack(of_members).view(-1, len(part), 2, length).cpu())
        return torch.cat(parts, 1)

    def _hidden(self, member: int, inputs: Tensor) -> list[Tensor]:
        """Return the inputs ``[steps, inputs]`` and the values of each hidden layer ``[steps, units]``, in buffers."""
        values = [inputs]
        for number, layer in enumerate(self._layers[:-1]):
            weight, bias, *_ = layer[member]
            out = self._buffer("hidden", number, rows=len(inputs), units=weight.shape[1])
            values.append(self._activate(torch.addmm(bias, values[-1], weight, out=out)))
        return values

    @torch.no_grad()
    def set_gradient(self, features: Tensor, batch: Tensor, of_differences: OfDifferences) -> None:
        """Set `FlatParameters.gradient` to the gradient of a minibatch.

        Args:
            features: ``[n, 2, length, inputs]`` of all comparisons, from `features_of`.
            batch: ``[size]``: rows of the minibatch's comparisons.
            of_differences: the derivative of the loss.
        """
        self.flat.gradient.zero_()
        steps = 2 * features.shape[2]
        for part in batch.chunk(math.ceil(steps * len(batch) / STEPS_AT_ONCE)):
            inputs = features.index_select(0, part.to(features.device))
            for member in range(self.settings.ensemble_size):
                self._add_member(member, inputs, part, of_differences)

    def _add_member(self, member: int, inputs: Tensor, rows: Tensor, of_differences: OfDifferences) -> None:
        """Add a member's gradient.

        Args:
            member: its number.
            inputs: ``[n, 2, length, inputs]`` of a part of a minibatch.
            rows: ``[n]``, their comparisons.
            of_differences: the derivative of the loss.
        """
        n, _, length, _ = inputs.shape
        values = self._hidden(member, inputs.view(2 * n * length, -1))
        last = values[-1].view(2 * n, length, -1)
        discount = self.settings.discount
        factors = None if discount == 1.0 else discounts(length, discount).to(last.device)
        sums = last.sum(1) if factors is None else torch.matmul(factors, last)  # [2 n, units]
        weight, _, of_weight, _ = self._layers[-1][member]
        left, right = torch.mv(sums, weight[:, 0]).view(n, 2).unbind(1)
        by_difference = of_differences(member, rows, left - right)
        by_return = torch.stack([by_difference, -by_difference], 1).view(-1)
        of_weight[:, 0].addmv_(sums.t(), by_return)  # the bias doesn't change a difference
        by_sums = torch.outer(by_return, weight[:, 0])[:, None]
        by_values = by_sums.expand_as(last) if factors is None else by_sums * factors[None, :, None]
        for number in reversed(range(len(self._layers) - 1)):
            layer_weight, _, of_weight, of_bias = self._layers[number][member]
            weights = values[number + 1]
            change = self._buffer("change", number, rows=len(weights), units=weights.shape[1])
            self._derive(by_values, weights.view(by_values.shape), change.view(by_values.shape))
            of_weight.addmm_(values[number].t(), change)
            of_bias.add_(change.sum(0))
            if number:
                back = self._buffer("back", number, rows=len(weights), units=layer_weight.shape[0])
                by_values = torch.mm(change, layer_weight.t(), out=back)
