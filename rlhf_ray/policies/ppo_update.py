"""PPO's update of a policy: the clipped surrogate loss, and a gradient step for each minibatch of a rollout.

The numbers are those of RLlib's learner, without its cost for each minibatch: rows are gathered many minibatches at a time,
gradients are clipped and applied as one vector, and metrics are computed once. Two MLPs, the usual policy for vectors, also need no
autograd: their forward and backward passes are a few products of stacked matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.optim import FlatAdam, FlatParameters, add_gradients, in_parallel, multiply, next_pace
from rlhf_ray.policies.actions import entropy, log_probability
from rlhf_ray.policies.network import ActorCriticNetwork

IMAGES_OF_A_PASS, IMAGES_OF_A_GPU_PASS = 256, 4096
"""Images of a forward pass without gradients: more leave a core's cache, or need much of a GPU's memory."""
IMAGES_OF_A_GRADIENT = 128
"""Images of a forward and backward pass: fewer take longer each."""

GATHERED_BYTES = 16 * 2**20
"""Most bytes of rows gathered at once."""

KEEPS = 0.9
"""Weight of the batches before in the recent variance of advantages: some ten batches count."""

HALF_LOG_TWO_PI = 0.5 * math.log(2.0 * math.pi)


@dataclass(frozen=True)
class PPORows:
    """``n`` steps of rollouts.

    Attributes:
        inputs: ``[n, …]``: observations if the network has an encoder to train, otherwise what it makes of them.
        actions: ``[n, …]``, the policy's.
        log_probabilities: ``[n]`` float32, of the actions when they were taken.
        advantages: ``[n]`` float32.
        targets: ``[n]`` float32: of the value.
        values: ``[n]`` float32: before the update.
    """

    inputs: Tensor
    actions: Tensor
    log_probabilities: Tensor
    advantages: Tensor
    targets: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.targets)

    def columns(self) -> tuple[Tensor, ...]:
        """Return the tensors, in the order of the attributes."""
        return self.inputs, self.actions, self.log_probabilities, self.advantages, self.targets, self.values

    def parts(self, count: int) -> list[PPORows]:
        """Return at most ``count`` parts of the rows, one after the other."""
        return [PPORows(*columns) for columns in zip(*(column.chunk(count) for column in self.columns()), strict=True)]

    def minibatches(self, index: Tensor) -> Iterator[PPORows]:
        """Yield the rows of ``index [minibatches, size]``, one minibatch at a time."""
        size = index.shape[1]
        bytes_of = sum(column[0].numel() * column.element_size() for column in self.columns())
        for part in torch.split(index, max(1, GATHERED_BYTES // (bytes_of * size))):
            gathered = (torch.split(column.index_select(0, part.flatten()), size) for column in self.columns())
            for columns in zip(*gathered, strict=True):
                yield PPORows(*columns)


@dataclass(frozen=True)
class PPOLoss:
    """PPO's loss (Schulman et al. 2017), as RLlib computes it.

    Attributes:
        clip: the ratio of probabilities counts within 1 ± this.
        value_coefficient: factor of the squared error of the value.
        entropy_coefficient: factor of the entropy.
        largest_value_loss: a squared error counts up to this.
        clips_values: whether the value's change is limited to ± clip too, where that makes the error larger (Procgen's agents).
        bfloat16: whether an image's encoder computes in bfloat16.
    """

    clip: float
    value_coefficient: float
    entropy_coefficient: float
    largest_value_loss: float = math.inf
    clips_values: bool = False
    bfloat16: bool = False

    def __call__(
        self, network: ActorCriticNetwork, space: gym.Space[Any], rows: PPORows
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss and its parts: policy_loss, vf_loss, vf_loss_unclipped, entropy, vf_explained_var, policy_kl."""
        read = network.encode(rows.inputs, bfloat16=self.bfloat16) if network.trains_encoder else rows.inputs
        outputs, values = network.heads(read)
        logarithms = log_probability(outputs, rows.actions, space) - rows.log_probabilities
        ratio = torch.exp(logarithms)
        surrogate = torch.min(
            rows.advantages * ratio, rows.advantages * ratio.clamp(1.0 - self.clip, 1.0 + self.clip)
        ).mean()
        errors = (values - rows.targets) ** 2
        counted = errors.clamp(max=self.largest_value_loss)
        if self.clips_values:
            limited = rows.values + (values - rows.values).clamp(-self.clip, self.clip)
            counted = torch.max(counted, (limited - rows.targets) ** 2)
        of_entropy = entropy(outputs, space).mean()
        loss = -surrogate + self.value_coefficient * counted.mean() - self.entropy_coefficient * of_entropy
        explained = 1.0 - (rows.targets - values).var() / rows.targets.var().clamp_min(1e-20)
        return loss, {
            "policy_loss": -surrogate,
            "vf_loss": counted.mean(),
            "vf_loss_unclipped": errors.mean(),
            "entropy": of_entropy,
            "vf_explained_var": explained.clamp_min(-1.0),
            "policy_kl": (ratio - 1.0 - logarithms).mean(),
        }


def in_passes(work: Callable[[Tensor], Tensor], images: Tensor) -> Tensor:
    """Return ``work`` of images ``[n, …]``, in forward passes without gradients."""
    if images.device.type != "cpu":
        return torch.cat([work(part) for part in torch.split(images, IMAGES_OF_A_GPU_PASS)])
    return torch.cat(list(in_parallel(work, torch.split(images, IMAGES_OF_A_PASS))))


class PPOUpdate:
    """Takes gradient steps on a policy.

    Attributes:
        flat: the network's trained parameters.
    """

    def __init__(self, network: ActorCriticNetwork, space: gym.Space[Any]):
        self.network, self.space = network, space
        self._stacked = StackedMLPs.layers_of(network)
        if self._stacked:
            pairs: list[Any] = [
                parameter
                for actor, critic in self._stacked
                for parameter in (actor.weight, critic.weight, actor.bias, critic.bias)
            ]
            last = [parameter for head in heads_of(network) for parameter in head.parameters()]
            others = [] if network.discrete else [network.log_std]
            self.flat = FlatParameters([*pairs, *last, *others])
        else:
            self.flat = FlatParameters(list(network.parameters()))

    def inputs_of(self, observations: Tensor) -> Tensor:
        """Return `PPORows.inputs` for observations."""
        if self.network.trains_encoder:
            return observations
        with torch.no_grad():
            return self.network.encode(observations)

    def values_of(self, inputs: Tensor) -> Tensor:
        """Return the values ``[n]`` of `PPORows.inputs`, without gradients."""
        encode = self.network.encode if self.network.trains_encoder else nn.Identity()

        def values(part: Tensor) -> Tensor:
            value: Tensor = self.network.critic(encode(part)).squeeze(-1)
            return value

        with torch.no_grad():
            return in_passes(values, inputs) if self.network.image else values(inputs)

    def take_steps(
        self,
        optimizer: FlatAdam,
        rows: PPORows,
        loss: PPOLoss,
        index: Tensor,
        *,
        max_norm: float | None = None,
        kl_target: float = math.inf,
    ) -> dict[str, Tensor]:
        """Take a gradient step for each minibatch. A step whose gradient is not finite is left out.

        Afterwards, set the optimiser's pace for the next call.

        Args:
            optimizer: of `flat`.
            rows: the rollouts.
            loss: the loss.
            index: ``[minibatches, size]`` int64: the rows of each minibatch (`shuffled`).
            max_norm: largest Euclidean norm of a gradient; None for no limit.
            kl_target: see `next_pace`.

        Returns:
            Of the last minibatch, before its step: the parts of the loss, ``total_loss`` and ``gradient_norm``. Of all:
            ``steps_left_out`` and ``pace``.
        """
        weight = value_weight(self.network, rows.targets)
        loss = replace(loss, value_coefficient=weight * loss.value_coefficient)
        gradient_of = None
        if self._stacked and not loss.clips_values and self.flat.values.device.type == "cpu":
            gradient_of = StackedMLPs(self.network, self.flat, self.space, loss, index.shape[1])
        self.flat.attach_gradients()
        gradient, left_out = self.flat.gradient, 0
        parts: dict[str, Tensor] = {}
        last = len(index) - 1
        for number, minibatch in enumerate(rows.minibatches(index)):
            if number == last:
                with torch.no_grad():
                    total, parts = loss(self.network, self.space, minibatch)
                    parts["total_loss"] = total
            if gradient_of is not None:
                with np.errstate(over="ignore", invalid="ignore"):  # such gradients are left out
                    gradient_of(minibatch)
            else:
                gradient.zero_()
                self._add_gradient(loss, minibatch)
            norm = float(torch.linalg.vector_norm(gradient))
            if math.isfinite(norm):
                if max_norm is not None and (scale := max_norm / (norm + 1e-6)) < 1.0:
                    gradient.mul_(scale)
                optimizer.take_step()
            else:
                left_out += 1
            if number == last:
                parts["gradient_norm"] = torch.tensor(norm)
        pace = torch.tensor(optimizer.pace)
        optimizer.pace = next_pace(optimizer.pace, float(parts["policy_kl"]), kl_target)
        return parts | {"steps_left_out": torch.tensor(left_out), "pace": pace}

    def _add_gradient(self, loss: PPOLoss, minibatch: PPORows) -> None:
        """Add the loss's gradient; of many images in parts, of which several cores compute one each."""

        def weighted(part: PPORows) -> tuple[Tensor, Tensor]:
            total = loss(self.network, self.space, part)[0]
            return total, torch.full_like(total, len(part) / len(minibatch))

        apart = self.network.image and minibatch.inputs.device.type == "cpu"
        parts = minibatch.parts(-(-len(minibatch) // IMAGES_OF_A_GRADIENT) if apart else 1)
        add_gradients(self.flat.parameters, weighted, parts)


def value_weight(network: ActorCriticNetwork, targets: Tensor) -> float:
    """Return the factor of the value's error in the loss: one over the variance of its targets ``[n]``, at most 1.

    A learned reward has deviation 1, so that returns have 100 and more. In layers that actor and critic share, the error of such a
    value would drown the policy's gradient: on images, agents that did well forgot it with the next fit.
    """
    return 1.0 / max(1.0, float(targets.var())) if network.trains_encoder else 1.0


class RecentDeviation:
    """The deviation of recent batches' advantages, by which PPO divides a batch's at least.

    Copies of an environment with episodes of one length are in step: a batch may show nothing but the ends of episodes, where all
    actions are equally good (a fallen pole), and the noise of its advantages, divided by their own deviation, would move the policy
    as far as a batch that tells. It is the root of an exponential moving average of variances.
    """

    variance: float | None = None
    """Of recent batches; None before the first."""

    def share(self, advantages: Tensor) -> float:
        """Count a batch's advantages ``[n]``, and return its deviation over the recent ones', at most 1."""
        variance = float(advantages.double().var(correction=0))
        before = variance if self.variance is None else self.variance
        self.variance = KEEPS * before + (1 - KEEPS) * variance
        return 1.0 if variance >= self.variance else math.sqrt(variance / self.variance)


def advantages(
    rewards: Array, values: Array, terminated: Array, cut: Array, *, gamma: float, decay: float
) -> FloatArray:
    """Return generalised advantage estimates (Schulman et al. 2016), ``[steps, copies]`` float32.

    Args:
        rewards: ``[steps, copies]``.
        values: ``[steps + 1, copies]``: of the observation before each step, and after the last one.
        terminated: ``[steps, copies]``: the next value is 0.
        cut: ``[steps, copies]``: the next row is not of this episode.
        gamma: discount factor.
        decay: λ.
    """
    errors = rewards + gamma * values[1:] * ~terminated - values[:-1]
    factors = (gamma * decay * ~(terminated | cut)).astype(errors.dtype)
    result = np.empty(errors.shape, np.float32)
    running = np.zeros_like(errors[0])
    for step in range(len(errors) - 1, -1, -1):
        running *= factors[step]
        running += errors[step]
        result[step] = running
    return result


def heads_of(network: ActorCriticNetwork) -> tuple[Any, Any]:
    """Return the last layers of an actor and a critic that are MLPs."""
    actor: Any = network.actor
    critic: Any = network.critic
    return actor[-1], critic[-1]


class StackedMLPs:
    """The gradient of `PPOLoss` for an actor and a critic that are MLPs of the same hidden layers, without autograd, on a CPU.

    The parameters of both networks' layers lie one after the other in ``flat``; the loss clips no values. Numpy computes, in the
    memory of torch's tensors: on so few numbers, its operations take less time.

    Args:
        size: rows of a minibatch.
    """

    def __init__(
        self, network: ActorCriticNetwork, flat: FlatParameters, space: gym.Space[Any], loss: PPOLoss, size: int
    ):
        self.loss, self.size = loss, size
        self.choices = choices_of(space)
        layers = self.layers_of(network)

        def views(vector: Tensor, name: str) -> list[Tensor]:
            return [flat.view_of(getattr(actor, name), getattr(critic, name), vector) for actor, critic in layers]

        self.weights = views(flat.values, "weight")
        self.transposed = [weight.transpose(1, 2) for weight in self.weights]
        self.biases = _arrays([bias[:, None] for bias in views(flat.values, "bias")])
        self.of_weights, self.of_biases = views(flat.gradient, "weight"), _arrays(views(flat.gradient, "bias"))
        self.heads = [(head.weight.detach(), head.bias.detach().numpy()) for head in heads_of(network)]
        self.of_heads = [
            (flat.part_of(head.weight, flat.gradient), flat.part_of(head.bias, flat.gradient).numpy())
            for head in heads_of(network)
        ]
        self.log_std = None if self.choices else network.log_std.detach().numpy()
        self.of_log_std = None if self.choices else flat.part_of(network.log_std, flat.gradient).numpy()
        self.values, self.changes = ([torch.empty(2, size, part.shape[1]) for part in self.weights] for _ in range(2))
        self.value_arrays, self.change_arrays = _arrays(self.values), _arrays(self.changes)
        self.last, self.last_change = self.values[-1].unbind(0), self.changes[-1].unbind(0)
        self.outputs = [torch.empty(size, len(bias)) for _, bias in self.heads]
        self.output_arrays = _arrays(self.outputs)
        self.rows = np.arange(size)

    @staticmethod
    def layers_of(network: ActorCriticNetwork) -> list[tuple[nn.Linear, nn.Linear]]:
        """Return the hidden layers of actor and critic, if they are MLPs of tanh; otherwise nothing."""
        if network.image or network.memory_size:
            return []
        actor: Any = network.actor
        critic: Any = network.critic
        return list(zip(actor[:-1:2], critic[:-1:2], strict=True))

    def __call__(self, rows: PPORows) -> None:
        """Set the gradient of the loss."""
        inputs = [rows.inputs.expand(2, -1, -1), *self.values[:-1]]
        for layer, values in enumerate(inputs):
            multiply(values, self.transposed[layer], self.values[layer])
            array = self.value_arrays[layer]
            np.add(array, self.biases[layer], out=array)
            np.tanh(array, out=array)
        for number, (weight, bias) in enumerate(self.heads):
            multiply(self.last[number], weight.t(), self.outputs[number])
            np.add(self.output_arrays[number], bias, out=self.output_arrays[number])
        _, actions, logs, advantage, targets, _ = _arrays(rows.columns())
        outputs, value = self.output_arrays
        of_outputs = (self._of_discrete if self.choices else self._of_gaussian)(actions, logs, advantage, outputs)
        errors = value - targets[:, None]
        if self.loss.largest_value_loss != math.inf:
            errors *= errors**2 <= self.loss.largest_value_loss
        errors *= 2.0 * self.loss.value_coefficient / self.size
        of_heads = zip(self.heads, (of_outputs, errors), self.of_heads, self.last, self.last_change, strict=True)
        for (weight, _), of_head, (of_weight, of_bias), values, change in of_heads:
            np.add.reduce(of_head, 0, out=of_bias)
            by_output = torch.from_numpy(of_head)
            multiply(by_output.t(), values, of_weight)
            multiply(by_output, weight, change)
        for layer in reversed(range(len(self.weights))):
            change, by_inputs, slopes = self.changes[layer], self.change_arrays[layer], self.value_arrays[layer]
            np.multiply(slopes, slopes, out=slopes)
            np.subtract(1.0, slopes, out=slopes)  # tanh' = 1 - tanh²
            np.multiply(by_inputs, slopes, out=by_inputs)
            np.add.reduce(by_inputs, 1, out=self.of_biases[layer])
            multiply(change.transpose(1, 2), inputs[layer], self.of_weights[layer])
            if layer:
                multiply(change, self.weights[layer], self.changes[layer - 1])

    def _of_log_probability(self, now: Array, before: Array, advantage: Array) -> Array:
        """Return the derivative ``[n]`` of the loss by the actions' log probabilities ``now``."""
        ratio: Array = np.exp(now - before)
        clip = self.loss.clip
        counts = np.where(advantage > 0, ratio <= 1.0 + clip, ratio >= 1.0 - clip)
        ratio *= advantage
        ratio *= counts
        ratio *= -1.0 / self.size
        return ratio

    def _of_gaussian(self, actions: Array, logs: Array, advantage: Array, mean: Array) -> Array:
        assert self.log_std is not None
        assert self.of_log_std is not None
        inverse = np.exp(-self.log_std)
        deviation: Array = (actions - mean) * inverse
        squares = deviation * deviation
        log_probability_ = np.add.reduce(-0.5 * squares - (self.log_std + HALF_LOG_TWO_PI), -1)
        by_log_probability = self._of_log_probability(log_probability_, logs, advantage)[:, None]
        np.add.reduce((squares - 1.0) * by_log_probability, 0, out=self.of_log_std)
        self.of_log_std -= self.loss.entropy_coefficient
        deviation *= inverse
        deviation *= by_log_probability
        return deviation

    def _of_discrete(self, actions: Array, logs: Array, advantage: Array, logits: Array) -> Array:
        index = actions.astype(np.int64).reshape(self.size, len(self.choices))
        ends = np.cumsum(self.choices)
        parts = [logits[:, end - count : end] for count, end in zip(self.choices, ends, strict=True)]
        probabilities, logarithms = zip(*map(_softmax, parts), strict=True)
        now = sum(log[self.rows, index[:, i]] for i, log in enumerate(logarithms))
        by_log_probability = self._of_log_probability(now, logs, advantage)
        of_logits = np.empty_like(logits)
        for i, (shares, log, end) in enumerate(zip(probabilities, logarithms, ends, strict=True)):
            of_part = of_logits[:, end - self.choices[i] : end]
            np.multiply(shares, -by_log_probability[:, None], out=of_part)
            of_part[self.rows, index[:, i]] += by_log_probability
            if self.loss.entropy_coefficient:
                of_entropy = log - (shares * log).sum(-1, keepdims=True)
                of_part += (self.loss.entropy_coefficient / self.size) * shares * of_entropy
        return of_logits


def _softmax(logits: Array) -> tuple[Array, Array]:
    """Return probabilities ``[n, choices]`` and their logarithms."""
    shifted = logits - logits.max(-1, keepdims=True)
    powers = np.exp(shifted)
    sums = powers.sum(-1, keepdims=True)
    return powers / sums, shifted - np.log(sums)


def _arrays(tensors: Iterable[Tensor]) -> list[Array]:
    """Return tensors as arrays on the same memory."""
    return [tensor.numpy() for tensor in tensors]
