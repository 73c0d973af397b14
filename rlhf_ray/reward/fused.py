"""FusedMLPs: gradients of MLP ensembles, alone or mixed, in a dozen operations per member, without autograd.

A return is a sum over steps, so that the last layer sees the sum of the hidden units, and its gradient is the same at each step.
Members and parts of a minibatch don't wait for each other: several cores compute them side by side (`rlhf_ray.optim`).
Buffers are reused, and those of one member and part fit in a core's cache.
"""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from rlhf_ray.optim import FlatParameters, in_parallel, multiply
from rlhf_ray.reward.likelihood import discounts
from rlhf_ray.reward.networks.mixed import GAIN, PER_INPUT, MixedMLP, basis
from rlhf_ray.reward.networks.mlp import MLP, StackedLinear
from rlhf_ray.settings import Activation, RewardModelSettings

_T = TypeVar("_T")
_R = TypeVar("_R")

STEPS_AT_ONCE = 4096
"""Steps per forward and backward pass; gradients are added. More exceed a core's cache."""

VALUES_AT_ONCE = 262_144
"""Steps times units per forward pass without gradients: more exceed a core's cache."""

WORTH_A_THREAD = 8_000_000
"""Fewest multiplications of a member's forward pass of a part for which threads gain: about two milliseconds, backward too."""

SLOPE = 0.01
"""Of the leaky ReLU below 0: torch's."""

_Layers = list[list[tuple[Tensor, Tensor]]]
"""Of each layer, each member's weight ``[inputs, outputs]`` and bias ``[outputs]``, or the gradients of both."""

OfDifferences = Callable[[int, Tensor, Tensor], Tensor]
"""Maps a member, places in a minibatch ``[n]`` and its return differences there ``[n]`` to the loss's derivative by these."""

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


class _Buffers(threading.local):
    """Each thread's tensors to write to, by name."""

    def __init__(self) -> None:
        self.of: dict[tuple[Any, ...], Tensor] = {}


class FusedMLPs:
    """An ensemble of MLPs whose gradient is computed here.

    Attributes:
        flat: its parameters.
    """

    def __init__(self, networks: MLP, settings: RewardModelSettings):
        self.networks, self.settings = networks, settings
        self.flat = FlatParameters(list(networks.parameters()))
        self._linear = [layer for layer in networks.head.layers if isinstance(layer, StackedLinear)]
        self._layers = self._of_members(self.flat.values)
        self._gradients: list[tuple[Tensor, _Layers]] = []
        self._activate, self._derive = ACTIVATE[settings.activation], DERIVE[settings.activation]
        self._buffers = _Buffers()
        self._mixed = networks if isinstance(networks, MixedMLP) else None

    @staticmethod
    def fits(networks: Any, settings: RewardModelSettings) -> bool:
        """Return whether the gradient of these networks can be computed here: of MLPs, with nothing between their layers."""
        plain = not (settings.dropout or settings.batch_norm or settings.methods)
        return type(networks) in (MLP, MixedMLP) and plain and networks.inputs > 0

    def _of_members(self, vector: Tensor) -> _Layers:
        """Return the parts of a vector ``[size]`` that are each layer's and member's weight and bias."""
        of = self.flat.part_of
        return [list(zip(of(at.weight, vector), of(at.bias, vector)[:, 0], strict=True)) for at in self._linear]

    def _buffer(self, *name: Any, rows: int, units: int) -> Tensor:
        """Return ``[rows, units]`` to write to: this thread's."""
        buffers = self._buffers.of
        buffer = buffers.get(name)
        if buffer is None or buffer.shape[0] < rows:
            buffer = buffers[name] = self.flat.values.new_empty(rows, units)
        return buffer[:rows]

    @torch.no_grad()
    def features_of(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return what is the same for all gradient steps of a fit.

        Returns:
            ``features`` ``[n, 2, length, inputs]``, the normalised inputs; for `MixedMLP` also ``sums`` ``[n, columns]``, the
            left fragment's (discounted) sum of `basis` minus the right one's: an additive model is linear in it.
        """
        device = self.flat.values.device
        features = self.networks.features_of({name: value.flatten(0, 1).to(device) for name, value in inputs.items()})
        features = features.view(-1, 2, *features.shape[1:])
        if self._mixed is None:
            return {"features": features}
        factors = discounts(features.shape[2], self.settings.discount).to(device)
        at_once = max(1, VALUES_AT_ONCE // (features[0].numel() * PER_INPUT))
        sums = torch.cat([torch.tensordot(basis(part), factors, ([2], [0])) for part in torch.split(features, at_once)])
        return {"features": features, "sums": sums[:, 0] - sums[:, 1]}

    @torch.no_grad()
    def rewards_of(self, features: Tensor) -> Tensor:
        """Return the rewards ``[members, n, 2, length]`` of comparisons, on the CPU: of ``features``, from `features_of`.

        Of `MixedMLP`, those of both parts, ``[2 members, …]``, as `MixedMLP.parts`.
        """
        last = self._layers[-1]

        def rewards(task: tuple[int, Tensor]) -> Tensor:
            member, inputs = task
            weight, bias = last[member]
            return torch.mv(self._hidden(member, inputs)[-1], weight[:, 0]).add_(bias).cpu()

        widest = max(members[0][0].shape[1] for members in self._layers)
        parts = torch.split(features.flatten(0, 2), max(1, VALUES_AT_ONCE // widest))
        tasks = list(itertools.product(range(len(last)), parts))
        plain = torch.cat(list(self._run(rewards, tasks, steps=len(parts[0])))).view(len(last), *features.shape[:3])
        if self._mixed is None:
            return plain
        weights = self._mixed.additive
        parts = torch.split(features.flatten(0, 2), max(1, VALUES_AT_ONCE // weights.shape[1]))
        columns = map(basis, parts)
        additive = torch.cat([torch.stack([torch.mv(of, member) for member in weights]).cpu() for of in columns], 1)
        return torch.cat([plain, additive.view_as(plain)])

    def _hidden(self, member: int, inputs: Tensor) -> list[Tensor]:
        """Return the inputs ``[steps, inputs]`` and the values of each hidden layer ``[steps, units]``, in buffers."""
        values = [inputs]
        for number, members in enumerate(self._layers[:-1]):
            weight, bias = members[member]
            out = self._buffer("hidden", number, rows=len(inputs), units=weight.shape[1])
            values.append(self._activate(multiply(values[-1], weight, out).add_(bias)))
        return values

    @torch.no_grad()
    def set_gradient(
        self, inputs: dict[str, Tensor], batch: Tensor, counted: Tensor, of_differences: OfDifferences
    ) -> None:
        """Set `FlatParameters.gradient` to the gradient of a minibatch.

        Args:
            inputs: of all comparisons, from `features_of`.
            batch: ``[size]``: rows of the minibatch's comparisons.
            counted: ``[members, size]``, on the CPU: where a comparison counts for a member. An MLP spends no time on the others.
            of_differences: the derivative of the loss. Of `MixedMLP`, members are those of `MixedMLP.parts`.
        """
        features = inputs["features"]
        parts = max(1, math.ceil(2 * features.shape[2] * int(counted.sum(1).max()) / STEPS_AT_ONCE))
        while len(self._gradients) < parts:
            vector = torch.empty_like(self.flat.gradient) if self._gradients else self.flat.gradient
            self._gradients.append((vector, self._of_members(vector)))
        gradients = self._gradients[:parts]
        for vector, _ in gradients:
            vector.zero_()
        places = [torch.nonzero(of_member).squeeze(1).tensor_split(parts) for of_member in counted]
        tasks = [(part, member) for part in range(parts) for member, at in enumerate(places) if len(at[part])]

        def of_part(task: tuple[int, int]) -> None:
            part, member = task
            at = places[member][part]
            inputs = features.index_select(0, batch[at].to(features.device))
            self._of_member(member, inputs, at, of_differences, gradients[part][1])

        list(self._run(of_part, tasks, steps=2 * features.shape[2] * len(places[0][0])))
        for vector, _ in gradients[1:]:
            self.flat.gradient.add_(vector)
        if self._mixed is not None:
            self._of_additive(self._mixed, inputs["sums"], batch, of_differences)

    def _of_additive(self, networks: MixedMLP, sums: Tensor, batch: Tensor, of_differences: OfDifferences) -> None:
        """Set the gradient of the additive models. Arguments as for `set_gradient`."""
        columns = sums.index_select(0, batch.to(sums.device))
        members, everything = len(networks.additive), torch.arange(len(batch))
        differences = columns @ networks.additive.T
        slopes = [of_differences(members + member, everything, differences[:, member]) for member in range(members)]
        by_factors = GAIN * (torch.stack(slopes) @ columns).view_as(networks.functions)
        functions, scales = (self.flat.part_of(of, self.flat.gradient) for of in (networks.functions, networks.scales))
        torch.mul(by_factors, networks.scales[..., None], out=functions)
        torch.sum(by_factors * networks.functions, 2, out=scales)

    def _run(self, work: Callable[[_T], _R], tasks: Sequence[_T], steps: int) -> Iterable[_R]:
        """Return ``work`` of each task, in their order: side by side on a CPU, if ``steps`` of a task are many enough."""
        products = steps * sum(members[0][0].numel() for members in self._layers)
        worth = products >= WORTH_A_THREAD and not self.flat.values.is_cuda
        return in_parallel(work, tasks) if worth else map(work, tasks)

    def _of_member(
        self, member: int, inputs: Tensor, at: Tensor, of_differences: OfDifferences, gradients: _Layers
    ) -> None:
        """Set a member's gradient of the places ``at`` of a minibatch, with ``inputs [n, 2, length, inputs]``."""
        n, _, length, _ = inputs.shape
        values = self._hidden(member, inputs.view(2 * n * length, -1))
        last = values[-1].view(2 * n, length, -1)
        discount = self.settings.discount
        factors = None if discount == 1.0 else discounts(length, discount).to(last.device)
        sums = last.sum(1) if factors is None else torch.matmul(factors, last)  # [2 n, units]
        weight, (of_weight, of_bias) = self._layers[-1][member][0], gradients[-1][member]
        left, right = torch.mv(sums, weight[:, 0]).view(n, 2).unbind(1)
        by_difference = of_differences(member, at, left - right)
        by_return = torch.stack([by_difference, -by_difference], 1).view(-1)
        torch.mv(sums.t(), by_return, out=of_weight[:, 0])
        of_bias.zero_()  # it doesn't change a difference
        by_sums = torch.outer(by_return, weight[:, 0])[:, None]
        by_values = by_sums.expand_as(last) if factors is None else by_sums * factors[None, :, None]
        for number in reversed(range(len(self._layers) - 1)):
            layer_weight, (of_weight, of_bias) = self._layers[number][member][0], gradients[number][member]
            weights = values[number + 1]
            change = self._buffer("change", number, rows=len(weights), units=weights.shape[1])
            # Below the last hidden layer, in place.
            self._derive(by_values, weights.view(by_values.shape), change.view(by_values.shape))
            multiply(values[number].t(), change, of_weight)
            torch.sum(change, 0, out=of_bias)
            if number:
                back = self._buffer("change", number - 1, rows=len(weights), units=layer_weight.shape[0])
                by_values = multiply(change, layer_weight.t(), back)
