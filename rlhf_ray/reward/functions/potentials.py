"""Potential shaping, and potentials: functions of an observation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray

CHUNK = 4096
"""Observations per forward pass or comparison with known ones. Bounds memory."""


def shaped(
    reward: Any, potential: Any, next_potential: Any, terminated: Any, gamma: float, shift: float | Any = 0.0
) -> Any:
    """Shape a reward: ``R' = R - shift + gamma (1 - terminated) Phi(s') - Phi(s)`` (Ng, Harada and Russell 1999).

    Optimal policies stay the same, because the potential of a terminal state counts as 0 and a constant adds the same to each
    step of an episode without end.

    Args:
        reward: ``[n]``, numbers, numpy arrays or torch tensors, as are the others.
        potential: ``[n]``: ``Phi(s)``, of the state before each step.
        next_potential: ``[n]``: ``Phi(s')``, of the state after it.
        terminated: ``[n]``, bool or 0 and 1: whether the step terminated the episode. Truncation does not count.
        gamma: discount.
        shift: constant to subtract.

    Returns:
        ``[n]``: the shaped reward; with tensors, differentiable in each of its arguments.
    """
    still = 1 - 1 * terminated  # an integer, so that tensors keep the precision of the potential
    return reward - shift + gamma * (still * next_potential) - potential


class Potential(ABC):
    """A potential ``observations [n, *observation_shape] -> [n]`` float64. `shaped` counts that of terminal states as 0.

    Attributes:
        kind: its name in saved files.
        differentiable: whether `tensor` works.
    """

    kind: str
    differentiable: bool = False

    @abstractmethod
    def __call__(self, observations: Array) -> FloatArray:
        """Compute the potential of each observation, ``[n]`` float64."""

    def tensor(self, observations: Tensor) -> Tensor:
        """Compute the potential with gradients, ``[n]``."""
        raise NotImplementedError

    @abstractmethod
    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return what `potential_from` needs: plain values, and arrays by name."""


class TabularPotential(Potential):
    """One value for each state.

    Args:
        values: ``[states]``.
        observations: ``[states, *observation_shape]``: the observation of each state. An observation gets the value of the nearest
            one. None: observations are the states' numbers.
    """

    kind = "tabular"

    def __init__(self, values: Array, observations: Array | None = None):
        self.values = np.asarray(values, np.float64)
        self.observations = None if observations is None else np.asarray(observations)

    def __call__(self, observations: Array) -> FloatArray:
        """Look the potential up."""
        return np.asarray(self.values[self.states(observations)])

    def states(self, observations: Array) -> Array:
        """Return the number of each observation's state, ``[n]``."""
        if self.observations is None:
            return np.asarray(observations).astype(np.int64).reshape(-1)
        known = self.observations.reshape(len(self.observations), -1).astype(np.float64)
        asked = np.asarray(observations, np.float64).reshape(len(observations), -1)
        squares = (known**2).sum(1)
        nearest = [
            (squares - 2 * asked[start : start + CHUNK] @ known.T).argmin(1) for start in range(0, len(asked), CHUNK)
        ]
        return np.concatenate(nearest) if nearest else np.zeros(0, np.int64)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return values and observations."""
        arrays = {"values": self.values}
        return {}, arrays if self.observations is None else arrays | {"observations": self.observations}


class LinearPotential(Potential):
    """A weighted sum of the flattened observation; ``weights`` ``[features]``."""

    kind = "linear"
    differentiable = True

    def __init__(self, weights: Array):
        self.weights = np.asarray(weights, np.float64)

    def __call__(self, observations: Array) -> FloatArray:
        """Compute the weighted sum."""
        return np.asarray(np.asarray(observations, np.float64).reshape(len(observations), -1) @ self.weights)

    def tensor(self, observations: Tensor) -> Tensor:
        """Compute the weighted sum with gradients."""
        return observations.flatten(1) @ torch.as_tensor(self.weights, dtype=observations.dtype)

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return the weights."""
        return {}, {"weights": self.weights}


class MLPPotential(Potential):
    """A linear function of the standardised observation plus an MLP of it.

    Args:
        mean: ``[features]``: subtracted from the flattened observation.
        std: ``[features]``: divides it.
        hidden: units of each hidden layer.
        scale: size of the MLP's output, about that of the rewards.
    """

    kind = "mlp"
    differentiable = True

    def __init__(self, mean: Array, std: Array, hidden: Sequence[int] = (64,), scale: float = 1.0):
        self.hidden, self.scale = tuple(hidden), float(scale)
        layers: list[nn.Module] = []
        width = len(mean)
        for units in self.hidden:
            layers += [nn.Linear(width, units), nn.Tanh()]
            width = units
        last = nn.Linear(width, 1)
        nn.init.zeros_(last.weight)  # starts as the linear part alone
        nn.init.zeros_(last.bias)
        self.module = nn.Module()
        self.module.mlp = nn.Sequential(*layers, last)
        self.module.linear = nn.Linear(len(mean), 1)
        nn.init.zeros_(self.module.linear.weight)
        nn.init.zeros_(self.module.linear.bias)
        self.module.register_buffer("mean", torch.as_tensor(np.array(mean, np.float32)))
        self.module.register_buffer("std", torch.as_tensor(np.array(std, np.float32)))

    def __call__(self, observations: Array) -> FloatArray:
        """Run the network."""
        parts = [np.zeros(0)]
        with torch.no_grad():
            for start in range(0, len(observations), CHUNK):
                part = torch.as_tensor(np.array(observations[start : start + CHUNK], np.float32))
                parts.append(self.tensor(part).double().numpy())
        return np.concatenate(parts)

    def tensor(self, observations: Tensor) -> Tensor:
        """Run the network with gradients."""
        module: Any = self.module
        standardised = (observations.flatten(1) - module.mean) / module.std
        values: Tensor = (module.linear(standardised) + self.scale * module.mlp(standardised)).squeeze(1)
        return values

    def state(self) -> tuple[dict[str, Any], dict[str, Array]]:
        """Return sizes and weights."""
        arrays = {name: value.detach().numpy().copy() for name, value in self.module.state_dict().items()}
        return {"hidden": list(self.hidden), "scale": self.scale}, arrays


def potential_from(kind: str, plain: dict[str, Any], arrays: dict[str, Array]) -> Potential:
    """Rebuild what `Potential.state` returned.

    Raises:
        ValueError: there is no such kind.
    """
    if kind == "tabular":
        return TabularPotential(arrays["values"], arrays.get("observations"))
    if kind == "linear":
        return LinearPotential(arrays["weights"])
    if kind == "mlp":
        with torch.random.fork_rng(devices=[]):
            potential = MLPPotential(arrays["mean"], arrays["std"], plain["hidden"], plain["scale"])
        potential.module.load_state_dict({name: torch.as_tensor(value) for name, value in arrays.items()})
        potential.module.requires_grad_(False)
        return potential
    raise ValueError(f"This version knows no potential of kind {kind!r}.")
