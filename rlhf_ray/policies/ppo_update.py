"""PPO's update of a policy: the clipped surrogate loss, and a gradient step for each minibatch of a rollout.

The numbers are those of RLlib's learner, without its cost for each minibatch: rows are gathered many minibatches at a time,
gradients are clipped and applied as one vector, and metrics are computed once. Two MLPs, the usual policy for vectors, also need no
autograd: their forward and backward passes are a few products of stacked matrices.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.optim import FlatAdam, FlatParameters, add_gradients, in_parallel
from rlhf_ray.policies.actions import entropy, log_probability
from rlhf_ray.policies.network import ActorCriticNetwork

IMAGES_OF_A_PASS, IMAGES_OF_A_GPU_PASS = 256, 4096
"""Images of a forward pass without gradients: more leave a core's cache, or need much of a GPU's memory."""
IMAGES_OF_A_GRADIENT = 128
"""Images of a forward and backward pass: fewer take longer each."""

GATHERED_BYTES = 16 * 2**20
"""Most bytes of rows gathered at once."""

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
        """Return the loss and its parts: policy_loss, vf_loss, vf_loss_unclipped, entropy, vf_explained_var."""
        read = network.encode(rows.inputs, bfloat16=self.bfloat16) if network.trains_encoder else rows.inputs
        outputs, values = network.heads(read)
        ratio = torch.exp(log_probability(outputs, rows.actions, space) - rows.log_probabilities)
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
        self, optimizer: FlatAdam, rows: PPORows, loss: PPOLoss, index: Tensor, *, max_norm: float | None = None
    ) -> dict[str, Tensor]:
        """Take a gradient step for each minibatch. A step whose gradient is not finite is left out.

        Args:
            optimizer: of `flat`.
            rows: the rollouts.
            loss: the loss.
            index: ``[minibatches, size]`` int64: the rows of each minibatch (`shuffled`).
            max_norm: largest Euclidean norm of a gradient; None for no limit.

        Returns:
            Of the last minibatch, before its step: the parts of the loss, ``total_loss`` and ``gradient_norm``. Of all:
            ``steps_left_out``.
        """
        gradient_of = None
        if self._stacked and not loss.clips_values:
            gradient_of = StackedMLPs(self.network, self.flat, self.space, loss, index.shape[1])
        self.flat.attach_gradients()
        gradient, left_out = self.flat.gradient, torch.zeros((), device=self.flat.values.device)
        parts: dict[str, Tensor] = {}
        last = len(index) - 1
        for number, minibatch in enumerate(rows.minibatches(index)):
            if number == last:
                with torch.no_grad():
                    total, parts = loss(self.network, self.space, minibatch)
                    parts["total_loss"] = total
            if gradient_of is not None:
                gradient_of(minibatch)
            else:
                gradient.zero_()
                self._add_gradient(loss, minibatch)
            norm = gradient.norm()
            if max_norm is not None:
                gradient.mul_((max_norm / (norm + 1e-6)).clamp(max=1.0))
            skip = 1.0 - torch.isfinite(norm).float()
            left_out += skip
            optimizer.take_step(skip)
            if number == last:
                parts["gradient_norm"] = norm
        return parts | {"steps_left_out": left_out}

    def _add_gradient(self, loss: PPOLoss, minibatch: PPORows) -> None:
        """Add the loss's gradient; of many images in parts, of which several cores compute one each."""

        def weighted(part: PPORows) -> tuple[Tensor, Tensor]:
            total = loss(self.network, self.space, part)[0]
            return total, torch.full_like(total, len(part) / len(minibatch))

        apart = self.network.image and minibatch.inputs.device.type == "cpu"
        parts = minibatch.parts(-(-len(minibatch) // IMAGES_OF_A_GRADIENT) if apart else 1)
        add_gradients(self.flat.parameters, weighted, parts)


def shuffled(
    count: int,
    epochs: int,
    minibatch_size: int,
    *,
    shuffle: bool = True,
    minibatches: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Return the rows of each minibatch of ``epochs`` passes over ``count`` rows: ``[minibatches, size]`` int64.

    All minibatches have the same size; one may span two passes. With ``minibatches``, there are so many, whatever ``epochs`` says.
    Each pass has an order of its own if ``shuffle``, drawn by ``generator`` or torch's own.
    """
    number = minibatches or -(-epochs * count // minibatch_size)
    passes = -(-number * minibatch_size // count)
    orders = [torch.randperm(count, generator=generator) if shuffle else torch.arange(count) for _ in range(passes)]
    return torch.cat(orders)[: number * minibatch_size].view(number, minibatch_size)


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
    """The gradient of `PPOLoss` for an actor and a critic that are MLPs of the same hidden layers, without autograd.

    The parameters of both networks' layers lie one after the other in ``flat``; the loss clips no values.
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
        self.biases = [bias[:, None] for bias in views(flat.values, "bias")]
        self.of_weights, self.of_biases = views(flat.gradient, "weight"), views(flat.gradient, "bias")
        self.heads = heads_of(network)
        self.of_heads = [
            (flat.part_of(head.weight, flat.gradient), flat.part_of(head.bias, flat.gradient)) for head in self.heads
        ]
        self.log_std = None if self.choices else network.log_std
        self.of_log_std = None if self.choices else flat.part_of(network.log_std, flat.gradient)

    @staticmethod
    def layers_of(network: ActorCriticNetwork) -> list[tuple[nn.Linear, nn.Linear]]:
        """Return the hidden layers of actor and critic, if they are MLPs of tanh; otherwise nothing."""
        if network.image or network.memory_size:
            return []
        actor: Any = network.actor
        critic: Any = network.critic
        return list(zip(actor[:-1:2], critic[:-1:2], strict=True))

    @torch.no_grad()
    def __call__(self, rows: PPORows) -> None:
        """Set the gradient of the loss."""
        values = rows.inputs.expand(2, -1, -1)
        inputs = []
        for bias, weight in zip(self.biases, self.transposed, strict=True):
            inputs.append(values)
            values = torch.baddbmm(bias, values, weight).tanh_()
        actor, critic = self.heads
        outputs = torch.addmm(actor.bias, values[0], actor.weight.t())
        value = torch.addmm(critic.bias, values[1], critic.weight.t())
        of_outputs = self._of_discrete(rows, outputs) if self.choices else self._of_gaussian(rows, outputs)
        errors = value[:, 0] - rows.targets
        if self.loss.largest_value_loss != math.inf:
            errors = errors * (errors**2 <= self.loss.largest_value_loss)
        of_value = errors[:, None].mul_(2.0 * self.loss.value_coefficient / self.size)
        change = torch.empty_like(values)
        for i, (head, of_head) in enumerate(zip(self.heads, (of_outputs, of_value), strict=True)):
            torch.mm(of_head.t(), values[i], out=self.of_heads[i][0])
            torch.sum(of_head, 0, out=self.of_heads[i][1])
            torch.mm(of_head, head.weight, out=change[i])
        for layer in reversed(range(len(self.weights))):
            change.addcmul_(change * values, values, value=-1.0)  # tanh' = 1 - tanh²
            torch.bmm(change.transpose(1, 2), inputs[layer], out=self.of_weights[layer])
            torch.sum(change, 1, out=self.of_biases[layer])
            if layer:
                values = inputs[layer]
                change = torch.bmm(change, self.weights[layer])

    def _of_log_probability(self, rows: PPORows, log_probability_: Tensor) -> Tensor:
        """Return the derivative ``[n]`` of the loss by the actions' log probabilities."""
        ratio = log_probability_.sub_(rows.log_probabilities).exp_()
        clip = self.loss.clip
        counts = torch.where(rows.advantages > 0, ratio <= 1.0 + clip, ratio >= 1.0 - clip)
        return ratio.mul_(rows.advantages).mul_(counts).mul_(-1.0 / self.size)

    def _of_gaussian(self, rows: PPORows, mean: Tensor) -> Tensor:
        assert self.log_std is not None
        assert self.of_log_std is not None
        inverse = torch.exp(-self.log_std)
        deviation = (rows.actions - mean).mul_(inverse)
        squares = deviation * deviation
        log_probability_ = (-0.5 * squares).sub_(self.log_std + HALF_LOG_TWO_PI).sum(-1)
        by_log_probability = self._of_log_probability(rows, log_probability_)[:, None]
        torch.sum(squares.sub_(1.0).mul_(by_log_probability), 0, out=self.of_log_std)
        self.of_log_std.sub_(self.loss.entropy_coefficient)
        return deviation.mul_(inverse).mul_(by_log_probability)

    def _of_discrete(self, rows: PPORows, logits: Tensor) -> Tensor:
        actions = rows.actions.long().reshape(len(logits), len(self.choices))
        logs = [part.log_softmax(-1) for part in torch.split(logits, list(self.choices), -1)]
        chosen = torch.cat([log.gather(-1, actions[:, i : i + 1]) for i, log in enumerate(logs)], -1)
        by_log_probability = self._of_log_probability(rows, chosen.sum(-1))[:, None]
        parts = []
        for i, log in enumerate(logs):
            probabilities = log.exp()
            of_logits = probabilities * -by_log_probability
            of_logits.scatter_add_(-1, actions[:, i : i + 1], by_log_probability)
            if self.loss.entropy_coefficient:
                of_entropy = -(probabilities * log).sum(-1, keepdim=True)
                probabilities.mul_(log.add_(of_entropy))
                of_logits.add_(probabilities, alpha=self.loss.entropy_coefficient / self.size)
            parts.append(of_logits)
        return parts[0] if len(parts) == 1 else torch.cat(parts, -1)
