"""SAC's gradient steps (Haarnoja et al. 2018) without autograd: forward and backward passes are a few products of matrices."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from rlhf_ray.optim import FlatAdam, FlatParameters, multiply
from rlhf_ray.policies.soft_actor_critic import SoftActorCriticNetwork, squashed

_relu_backward: Callable[..., Tensor] = torch.ops.aten.threshold_backward.grad_input
"""Sets derivatives to 0 where the outputs of `relu` are 0, in one pass over memory."""


class ReplayedSteps(NamedTuple):
    """``n`` transitions.

    Attributes:
        observations, next_observations: ``[n, size]`` float32, as the layers take them (`TakesVectors.scaled`).
        actions: ``[n, …]``, the policy's.
        rewards: ``[n]`` float32.
        terminated: ``[n]`` bool.
    """

    observations: Tensor
    actions: Tensor
    rewards: Tensor
    next_observations: Tensor
    terminated: Tensor

    def batches(self, size: int) -> Iterator[ReplayedSteps]:
        """Yield ``size`` transitions at a time."""
        for parts in zip(*(torch.split(column, size) for column in self), strict=True):
            yield ReplayedSteps(*parts)


class SACUpdate:
    """Takes gradient steps on the networks of soft actor-critic.

    A step moves the critics, then the actor by the new critics, then the temperature, then the targets.

    Args:
        tau: share of the way to their critics that targets move in a step.
        target_entropy: of the policy, in nats; None for the network's own.
        max_norm: largest Euclidean norm of the actor's gradient, and of the critics'; None for no limit.

    Attributes:
        parts: the parameters of each optimiser: ``actor``, ``critic``, ``alpha``.
    """

    def __init__(
        self,
        network: SoftActorCriticNetwork,
        *,
        gamma: float,
        tau: float,
        target_entropy: float | None = None,
        max_norm: float | None = None,
    ):
        self.network, self.gamma, self.tau, self.max_norm = network, gamma, tau, max_norm
        self.target_entropy = network.auto_entropy if target_entropy is None else target_entropy
        self.parts = {
            "actor": FlatParameters(list(network.actor.parameters())),
            "critic": FlatParameters(list(network.critics.parameters())),
            "alpha": FlatParameters([network.log_alpha]),
        }
        self._actor = _Layers([(layer.weight, layer.bias) for layer in network.actor if isinstance(layer, nn.Linear)])
        self._critics, self._targets = (
            _Layers(zip(twins.weights, twins.biases, strict=True)) for twins in (network.critics, network.targets)
        )
        self._followers: list[Tensor] = list(network.targets.parameters())
        self._followed: list[Tensor] = list(network.critics.parameters())
        self._actions: _Gaussian | _Discrete = _Discrete() if network.discrete else _Gaussian(network)

    @torch.no_grad()
    def step(self, batch: ReplayedSteps, noise: Tensor, optimizers: Mapping[str, FlatAdam]) -> Tensor:
        """Take one gradient step.

        Args:
            batch: ``n`` transitions.
            noise: standard normal ``[2 n, size]``, of the actions in next observations and, after them, in observations. Discrete
                actions need none.
            optimizers: of `parts`.

        Returns:
            ``[4]``: the sum of both critics' mean squared errors and their mean value, before their step; the actor's loss, by the
            new critics, and the policy's entropy in nats, before the actor's step.
        """
        n, alpha = len(batch.rewards), self.network.log_alpha.exp()
        hidden = self._actor.forward(torch.cat([batch.next_observations, batch.observations]))
        acted = self._actions.draw(hidden[-1], noise)
        of_critics, value = self._of_critics(batch, [part[:n] for part in acted], alpha)
        self._descend("critic", optimizers["critic"])
        acted = [part[n:] for part in acted]
        of_actor, change = self._of_actor(batch.observations, acted, alpha)
        self._actor.backward([part[n:] for part in hidden], change)
        self._descend("actor", optimizers["actor"])
        entropy = -self._actions.expected(acted, acted[1]).mean()
        self.parts["alpha"].gradient.copy_(entropy - self.target_entropy)
        optimizers["alpha"].take_step()
        torch._foreach_lerp_(self._followers, self._followed, self.tau)
        return torch.stack([of_critics, value, of_actor, entropy])

    def _of_critics(self, batch: ReplayedSteps, acted: list[Tensor], alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Set the critics' gradient. Return the sum of their mean squared errors, and their mean value.

        The target of a step is its reward plus, unless the episode terminated, γ times the target critics' soft value of a new
        action in the next observation (eq. 3 and 5, with the lower of two critics).
        """
        actions = self._actions
        after = self._targets.forward(actions.judged(batch.next_observations, acted[0]))[-1]
        soft = actions.expected(acted, torch.minimum(*after) - alpha * acted[1])
        target = batch.rewards + self.gamma * (~batch.terminated) * soft
        hidden = self._critics.forward(actions.judged(batch.observations, batch.actions))
        values = actions.taken(hidden[-1], batch.actions)
        errors = values - target
        self._critics.backward(hidden, actions.put(errors * (2.0 / len(target)), hidden[-1], batch.actions))
        return errors.square().mean(1).sum(), values.mean()

    def _of_actor(self, observations: Tensor, acted: list[Tensor], alpha: Tensor) -> tuple[Tensor, Tensor]:
        """Return the actor's loss, minus the mean soft value of its actions, and the loss's derivative by its outputs."""
        hidden = self._critics.forward(self._actions.judged(observations, acted[0]))
        costs = alpha * acted[1] - torch.minimum(*hidden[-1])
        loss = self._actions.expected(acted, costs).mean()
        return loss, self._actions.derivative(acted, costs, alpha, self._critics, hidden) / len(observations)

    def _descend(self, name: str, optimizer: FlatAdam) -> None:
        gradient = self.parts[name].gradient
        if self.max_norm is not None:
            gradient.mul_((self.max_norm / (gradient.norm() + 1e-6)).clamp(max=1.0))
        optimizer.take_step()


class _Layers:
    """Linear layers with ReLU between them: those of `nn.Linear`, or of `TwinCritics`.

    What methods return is valid until the next call.

    Args:
        layers: weights and biases, with gradients that stay where they are (`FlatParameters`), or none.
    """

    def __init__(self, layers: Iterable[tuple[Tensor, Tensor]]):
        layers = list(layers)
        self.twins = layers[0][0].dim() == 3
        self.weights = [self._turned(weight.detach()) for weight, _ in layers]
        self.biases = [bias.detach() for _, bias in layers]
        self.gradients = [(self._turned(weight.grad), bias.grad) for weight, bias in layers if weight.grad is not None]
        self._buffers: dict[tuple[str, int, int], Tensor] = {}

    def _turned(self, weight: Tensor) -> Tensor:
        """Return a weight, or its gradient, as ``[…, inputs, outputs]``."""
        return weight if self.twins else weight.mT

    def forward(self, inputs: Tensor) -> list[Tensor]:
        """Return the inputs of each layer, and the outputs of the last, for inputs ``[n, size]``."""
        values = inputs.expand(2, -1, -1) if self.twins else inputs
        hidden = [values]
        last = len(self.weights) - 1
        for layer, (weight, bias) in enumerate(zip(self.weights, self.biases, strict=True)):
            values = multiply(values, weight, self._buffer("values", layer, len(inputs))).add_(bias)
            hidden.append(values.relu_() if layer < last else values)
        return hidden

    def backward(self, hidden: list[Tensor], change: Tensor) -> None:
        """Set the gradients for what `forward` returned, and the loss's derivative by the outputs."""
        for layer in reversed(range(len(self.weights))):
            weight, bias = self.gradients[layer]
            multiply(hidden[layer].mT, change, weight)
            torch.sum(change, -2, keepdim=self.twins, out=bias)
            if layer:
                change = self._before(layer, change, hidden)

    def by_inputs(self, hidden: list[Tensor], change: Tensor, count: int) -> Tensor:
        """Return the loss's derivative by the last ``count`` inputs. For the rest see `backward`."""
        for layer in reversed(range(1, len(self.weights))):
            change = self._before(layer, change, hidden)
        return multiply(change, self.weights[0].mT[..., -count:], change.new_empty(*change.shape[:-1], count))

    def _before(self, layer: int, change: Tensor, hidden: list[Tensor]) -> Tensor:
        """Return the loss's derivative by the outputs of the layer before; ``change`` is that by the outputs of ``layer``."""
        out = multiply(change, self.weights[layer].mT, self._buffer("change", layer - 1, change.shape[-2]))
        return _relu_backward(out, hidden[layer], 0, grad_input=out)

    def _buffer(self, name: str, layer: int, rows: int) -> Tensor:
        """Return ``[…, rows, outputs]`` to write a layer's outputs to, or derivatives by them."""
        buffer = self._buffers.get((name, layer, rows))
        if buffer is None:
            weight = self.weights[layer]
            buffer = weight.new_empty(*weight.shape[:-2], rows, weight.shape[-1])
            self._buffers[name, layer, rows] = buffer
        return buffer


class _Gaussian:
    """Box actions: tanh of a Gaussian. Their derivative goes through the sampled action (the reparametrisation of eq. 11 to 13).

    ``acted`` is what `draw` returned. It begins with the actions (Discrete: probabilities) and their log probabilities.
    """

    def __init__(self, network: SoftActorCriticNetwork):
        self.network = network

    def draw(self, outputs: Tensor, noise: Tensor) -> list[Tensor]:
        """Return actions by the actor's outputs ``[n, outputs]``, as rows."""
        mean, raw = outputs.chunk(2, -1)
        log_std, slope = self.network.log_std(raw)
        actions, logs = squashed(mean, log_std, noise)
        return [actions, logs[:, None], log_std.exp() * noise, slope]

    def judged(self, observations: Tensor, actions: Tensor) -> Tensor:
        """Return the critics' inputs."""
        return torch.cat([observations, actions.flatten(1)], -1)

    def taken(self, values: Tensor, actions: Tensor) -> Tensor:
        """Return the values ``[2, n]`` of actions among the critics' outputs ``[2, n, …]``."""
        return values[..., 0]

    def put(self, change: Tensor, values: Tensor, actions: Tensor) -> Tensor:
        """Return derivatives by the outputs of which `taken` returns some: ``[2, n]`` of these, 0 of others."""
        return change[..., None]

    def expected(self, acted: list[Tensor], numbers: Tensor) -> Tensor:
        """Return the expectation ``[n]`` of numbers ``[n, …]`` over the policy's actions."""
        return numbers[:, 0]

    def derivative(
        self, acted: list[Tensor], costs: Tensor, alpha: Tensor, critics: _Layers, hidden: list[Tensor]
    ) -> Tensor:
        """Return the derivative by the actor's outputs of each row's expected cost: α log π minus the lower critic's value."""
        actions, _, deviation, slope = acted
        first, second = hidden[-1]
        lower = torch.stack([first <= second, first > second]).to(first.dtype)
        by_action = critics.by_inputs(hidden, lower, actions.shape[-1]).sum(0)
        # log π falls by 2 tanh(u) per unit of u, the Gaussian's number, for the squashing, and by 1 per unit of log std.
        by_gaussian = 2.0 * alpha * actions - by_action * (1.0 - actions.square())
        return torch.cat([by_gaussian, (by_gaussian * deviation - alpha) * slope], -1)


class _Discrete:
    """Discrete actions, in the same terms: expectations are exact (Christodoulou 2019)."""

    def draw(self, outputs: Tensor, noise: Tensor) -> list[Tensor]:
        logs = outputs.log_softmax(-1)
        return [logs.exp(), logs]

    def judged(self, observations: Tensor, actions: Tensor) -> Tensor:
        return observations

    def taken(self, values: Tensor, actions: Tensor) -> Tensor:
        return values.gather(-1, self._index(actions))[..., 0]

    def put(self, change: Tensor, values: Tensor, actions: Tensor) -> Tensor:
        return torch.zeros_like(values).scatter_(-1, self._index(actions), change[..., None])

    def expected(self, acted: list[Tensor], numbers: Tensor) -> Tensor:
        return (acted[0] * numbers).sum(-1)

    def derivative(
        self, acted: list[Tensor], costs: Tensor, alpha: Tensor, critics: _Layers, hidden: list[Tensor]
    ) -> Tensor:
        return acted[0] * (costs - self.expected(acted, costs)[:, None])

    @staticmethod
    def _index(actions: Tensor) -> Tensor:
        return actions.long().reshape(1, -1, 1).expand(2, -1, 1)
