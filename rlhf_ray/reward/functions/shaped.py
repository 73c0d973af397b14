"""Rewards made of another one: on another scale, and with potential shaping, which can be saved. No pickle."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.atomic import whole_folder
from rlhf_ray.data.errors import SettingError
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.functions.function import EnsembleReward, RewardFunction
from rlhf_ray.reward.functions.plain import TableReward

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


Reader = Callable[[Path | str], RewardFunction]
"""Reads a reward from its path: `rlhf_ray.reward.functions.loading.load_reward`."""

FORMAT = "rlhf_ray.shaped_reward/1"
NAME = "reward.json"


class ChangedReward(RewardFunction):
    """A reward made of another one, ``base``, with its spaces, layers and inputs."""

    def __init__(self, base: RewardFunction):
        self.base, self.name, self.inputs = base, base.name, base.inputs
        self.observation_space, self.action_space = base.observation_space, base.action_space

    @property
    def differentiable(self) -> bool:
        """Whether the base reward is."""
        return self.base.differentiable

    def layers(self) -> dict[str, nn.Module]:
        """Return the base reward's layers by name."""
        return self.base.layers()

    def fresh(self, seed: int) -> RewardFunction | None:
        """Return the untrained base reward, unchanged."""
        return self.base.fresh(seed)


class ScaledReward(ChangedReward):
    """``R' = factor * (R - offset)``, in double precision: the same reward for an agent where no episode ends early.

    Args:
        factor: above 0.
        digits: decimals that are kept; None: all. Equal rewards stay equal then, whatever rounding does to them.
    """

    def __init__(self, base: RewardFunction, factor: float, offset: float, digits: int | None = None):
        super().__init__(base)
        self.factor, self.offset, self.digits = float(factor), float(offset), digits

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute each member's reward, ``[members, n]`` float64."""
        given = self.base.members(observations, actions, next_observations, terminated)
        scaled = self.factor * (np.asarray(given, np.float64) - self.offset)
        return np.asarray(scaled if self.digits is None else np.round(scaled, self.digits) + 0.0, np.float64)

    def combine(self, members: Tensor) -> Tensor:
        """Combine the members as the reward itself does."""
        return self.base.combine(members)

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Compute the reward with gradients: see `RewardFunction.forward`."""
        given: Tensor = self.base.forward(observations, actions, next_observations, terminated)
        return self.factor * (given - self.offset)


class ShapedReward(ChangedReward):
    """``R' = R - shift + gamma (1 - terminated) Phi(s') - Phi(s)``.

    Args:
        gamma: discount of the shaping; that of the agent.
    """

    def __init__(self, base: RewardFunction, potential: Potential, gamma: float, shift: float = 0.0, name: str = ""):
        super().__init__(base)
        self.potential, self.gamma, self.shift = potential, float(gamma), float(shift)
        self.name = name or f"{base.name}, shaped"
        self.inputs = base.inputs | {"state", "next_state", "done"}

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute each member's reward, ``[members, n]`` float64."""
        unshaped = self.base.members(observations, actions, next_observations, terminated)
        ended = np.asarray(terminated, bool)
        before, after = self.potential(observations), self.potential(next_observations)
        rewards: FloatArray = shaped(unshaped, before, after, ended, self.gamma, self.shift)
        return rewards

    @property
    def differentiable(self) -> bool:
        """Whether both reward and potential are."""
        return self.base.differentiable and self.potential.differentiable

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Compute the reward with gradients: see `RewardFunction.forward`."""
        if not self.differentiable:
            return super().forward(observations, actions, next_observations, terminated)
        unshaped = self.base.forward(observations, actions, next_observations, terminated)
        before, after = self.potential.tensor(observations), self.potential.tensor(next_observations)
        rewards: Tensor = shaped(unshaped, before, after, terminated, self.gamma, self.shift)
        return rewards

    def save(self, folder: Path | str, base_path: Path | str | None = None) -> None:
        """Write ``reward.json``, ``potential.safetensors`` and the base reward into ``folder``, which is replaced.

        Args:
            folder: the folder.
            base_path: where the base reward is saved, if it is neither an ensemble of ours nor a table. The folder then only
                refers to it.

        Raises:
            SettingError: the base reward or the potential is Python code.
        """
        plain, arrays = self.potential.state()
        if base_path is None and not isinstance(self.base, EnsembleReward | TableReward | ShapedReward):
            raise SettingError(
                f"The reward {self.base.name!r} ({type(self.base).__name__}) can't be saved; save it yourself and give its "
                "path as base_path."
            )
        with whole_folder(Path(folder)) as new:
            base: dict[str, str] = {"kind": "path", "path": str(base_path)}
            if isinstance(self.base, EnsembleReward):
                base = {"kind": "ensemble", "name": self.base.name}
                self.base.module.save(new / "base")
            elif isinstance(self.base, ShapedReward):
                base = {"kind": "shaped"}
                self.base.save(new / "base", base_path)
            elif isinstance(self.base, TableReward):
                base = {"kind": "table", "name": self.base.name}
                save_file({"table": np.ascontiguousarray(self.base.table)}, new / "base.safetensors")
            contiguous = {name: np.ascontiguousarray(value) for name, value in arrays.items()}
            save_file(contiguous, new / "potential.safetensors")
            description = {
                "format": FORMAT,
                "name": self.name,
                "gamma": self.gamma,
                "shift": self.shift,
                "potential": {"kind": self.potential.kind, **plain},
                "base": base,
            }
            (new / NAME).write_text(json.dumps(description, indent=2) + "\n")

    @staticmethod
    def of_folder(folder: Path | str, base: RewardFunction | None = None, read: Reader | None = None) -> ShapedReward:
        """Load what `save` wrote.

        Args:
            folder: the folder.
            base: the base reward, if the folder only refers to it.
            read: otherwise, reads the base reward from the path that the folder refers to.

        Raises:
            SettingError: the folder holds no shaped reward, it is broken, or the base reward is gone.
        """
        folder = Path(folder)
        try:
            description = json.loads((folder / NAME).read_text())
            if description["format"] != FORMAT:
                raise SettingError(
                    f"{folder} has format {description['format']!r}; this version reads {FORMAT!r}: update rlhf_ray."
                )
            base = base or _load_base(folder, description["base"], read)
            plain = dict(description["potential"])
            potential = potential_from(plain.pop("kind"), plain, load_file(folder / "potential.safetensors"))
            return ShapedReward(base, potential, description["gamma"], description["shift"], description["name"])
        except FileNotFoundError as error:
            raise SettingError(f"{folder} holds no shaped reward: it has no {Path(error.filename).name}.") from error
        except SettingError:
            raise
        except Exception as error:
            raise SettingError(f"{folder} holds a broken shaped reward ({error}); preprocess again.") from error


def _load_base(folder: Path, of: dict[str, Any], read: Reader | None) -> RewardFunction:
    if of["kind"] == "ensemble":
        return EnsembleReward(RewardEnsemble.load(folder / "base"), of["name"])
    if of["kind"] == "shaped":
        return ShapedReward.of_folder(folder / "base", read=read)
    if of["kind"] == "path":
        if read is None:
            raise SettingError(
                f"{folder} shapes the reward in {of['path']}: give it as base, or load {folder} by load_reward."
            )
        return read(of["path"])
    return TableReward(load_file(folder / "base.safetensors")["table"], name=of["name"])
