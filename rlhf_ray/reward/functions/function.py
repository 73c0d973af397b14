"""The interface of reward functions, what those made of torch modules share, and a reward ensemble of ours as one."""

from __future__ import annotations

import copy
import functools
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Self

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.inputs import check_observations, in_type
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.networks import is_built_in
from rlhf_ray.reward.unmoved import passes, unmoved

Input = Literal["state", "action", "next_state", "done"]
INPUTS: tuple[Input, ...] = ("state", "action", "next_state", "done")

CHUNK = 2048
"""Most steps per forward pass without gradients."""


class NotDifferentiableError(SettingError):
    """A tool needs gradients and the reward function has none."""


def _harmless(method: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``method`` with copies of its arguments, and let `RewardFunction.stateful` modules keep their state."""

    @functools.wraps(method)
    def call(self: RewardFunction, *arguments: Any, **named: Any) -> Any:
        with unmoved(*self.stateful()):
            return method(self.asked(), *map(_own, arguments), **{name: _own(value) for name, value in named.items()})

    return call


def _own(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else np.array(value)


class RewardFunction(ABC):
    """A reward ``(observations, actions, next_observations, terminated) -> rewards``, in batches.

    Attributes:
        name: short name for reports.
        observation_space: Box (vectors, grids, images with any number of channels, frame stacks) or Discrete (tables).
        action_space: Box or Discrete.
        inputs: the inputs that the reward may depend on. Tools skip the others.
    """

    name: str
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    inputs: frozenset[Input] = frozenset(INPUTS)

    def __init_subclass__(cls, **options: Any) -> None:
        """Let `members` and `forward` of all subclasses, also users', change neither arguments nor `stateful` modules."""
        super().__init_subclass__(**options)
        for name in {"members", "forward"} & vars(cls).keys():
            setattr(cls, name, _harmless(vars(cls)[name]))

    @staticmethod
    def load(
        path_or_name: Path | str,
        observation_space: gym.Space[Any] | None = None,
        action_space: gym.Space[Any] | None = None,
    ) -> RewardFunction:
        """Load any reward, also a run's: see `rlhf_ray.reward.functions.load_reward`."""
        from rlhf_ray.reward.functions import load_reward

        return load_reward(path_or_name, observation_space, action_space)

    @abstractmethod
    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward of ``n`` steps for each member of an ensemble; other rewards have one member.

        Args:
            observations: ``[n, *observation_shape]``, as the environment returns them.
            actions: ``[n, *action_shape]``, as given to the environment.
            next_observations: ``[n, *observation_shape]``.
            terminated: ``[n]`` bool.

        Returns:
            ``[members, n]`` float64.
        """

    def __call__(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward of ``n`` steps, ``[n]`` float64: `combine` of `members`, whose arguments it takes."""
        members = torch.as_tensor(self.members(observations, actions, next_observations, terminated))
        return self.combine(members).numpy()

    def stateful(self) -> list[nn.Module]:
        """Return the modules that may keep statistics or other state of what they saw: all that are attributes."""
        return [value for value in vars(self).values() if isinstance(value, nn.Module)]

    def training_layers(self) -> tuple[str, ...]:
        """Return the kinds of layers, of the `stateful` modules, whose outputs depend on training mode, and which are in it."""
        kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase)
        layers = [layer for module in self.stateful() for layer in module.modules() if isinstance(layer, kinds)]
        return tuple(sorted({type(layer).__name__ for layer in layers if layer.training}))

    def asked(self) -> Self:
        """Return the reward that answers one call: this one, or a copy if a call may change more than `stateful` modules."""
        return self

    def anywhere(self) -> RewardFunction:
        """Return the reward for made-up steps: where it is not defined, it is NaN instead of an error."""
        return self

    def combine(self, members: Tensor) -> Tensor:
        """Combine the members' rewards ``[members, n]`` to the reward ``[n]``: by default, their mean."""
        return members.mean(0)

    def of(self, steps: Transitions) -> FloatArray:
        """Compute the reward of each of ``steps``, ``[n]`` float64.

        Raises:
            SettingError: the steps can't be of the reward's observation space.
        """
        return self(*self._given(steps))

    def members_of(self, steps: Transitions) -> FloatArray:
        """Compute the reward of each of ``steps`` for each member, ``[members, n]`` float64; raises as `of` does."""
        return self.members(*self._given(steps))

    def _given(self, steps: Transitions) -> tuple[Array, Array, Array, Array]:
        """Return the arguments of `members`, after checking that the observations are of the reward's space."""
        what, space = f"The steps given to the reward {self.name!r}", self.observation_space
        seen = [steps.observations, steps.next_observations]
        for values in seen:
            if isinstance(space, gym.spaces.Box):  # a table may have states of its own
                check_observations(values, space, what, own=True)
        before, after = (in_type(values, space) for values in seen)
        return before, steps.actions, after, steps.terminated

    @property
    def differentiable(self) -> bool:
        """Whether `forward` works."""
        return False

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Compute the reward with gradients.

        Args:
            observations: ``[n, *observation_shape]`` float32, in the environment's units (images 0 to 255).
            actions: `action_inputs` of the actions.
            next_observations: as ``observations``.
            terminated: ``[n]`` float32, 0 or 1.

        Returns:
            ``[n]`` float32.

        Raises:
            NotDifferentiableError: the reward has no gradients.
        """
        raise NotDifferentiableError(
            f"The reward {self.name!r} has no gradients; use a tool that needs none, such as occlusion."
        )

    def action_inputs(self, actions: Array) -> Tensor:
        """Convert actions to the input of `forward`, float32.

        One-hot ``[n, choices]`` for Discrete; one-hot of each component, one after the other, for MultiDiscrete; else unchanged.
        """
        if choices := choices_of(self.action_space):
            start = np.asarray(self.action_space.start).flatten()  # type: ignore[attr-defined]
            index = torch.as_tensor(np.asarray(actions).reshape(len(actions), -1).astype(np.int64) - start)
            return torch.cat([nn.functional.one_hot(index[:, i], n) for i, n in enumerate(choices)], 1).float()
        return torch.as_tensor(np.array(actions, np.float32))

    def tensors(self, steps: Transitions) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Convert ``steps`` to the arguments of `forward`: new tensors, without gradients yet."""
        return self._tensors(steps.observations, steps.actions, steps.next_observations, steps.terminated)

    def _tensors(
        self, observations: Array, actions: Array, next_observations: Array, terminated: Array
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        before, after, ended = (
            torch.as_tensor(np.array(array, np.float32)) for array in (observations, next_observations, terminated)
        )
        return before, self.action_inputs(actions), after, ended

    def layers(self) -> dict[str, nn.Module]:
        """Return the layers by name, in order; `forward` runs them, so hooks see their outputs. Empty without layers."""
        return {}

    def fresh(self, seed: int) -> RewardFunction | None:
        """Return the same reward function with new random weights, for comparison; None if it has no weights."""
        return None


class TorchReward(RewardFunction):
    """A reward function made of a torch module. Subclasses write `member_tensor`.

    Args:
        module: the module; a copy is kept, in evaluation mode, and no activation works in place, so that hooks and gradients see
            each layer's own output.
    """

    def __init__(self, module: nn.Module):
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        for part in self.module.modules():
            if getattr(part, "inplace", False):
                setattr(part, "inplace", False)  # noqa: B010 (modules type their attributes as tensors)

    @abstractmethod
    def member_tensor(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """As `RewardFunction.forward`, for each member: ``[members, n]``."""

    @property
    def differentiable(self) -> bool:
        """Whether `forward` works."""
        return True

    def forward(self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor) -> Tensor:
        """Compute the reward with gradients: see `RewardFunction.forward`."""
        return self.combine(self.member_tensor(observations, actions, next_observations, terminated))

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward of each member, ``[members, n]`` float64."""
        steps = (observations, actions, next_observations, terminated)
        parts = passes(len(terminated), self.observation_space, CHUNK)
        with torch.no_grad():
            return np.concatenate([self.members_at_once(*(of[part] for of in steps)) for part in parts], 1)

    def members_at_once(
        self, observations: Array, actions: Array, next_observations: Array, terminated: Array
    ) -> FloatArray:
        """Compute `members` of so few steps that they fit one pass."""
        steps = self._tensors(observations, actions, next_observations, terminated)
        return self.member_tensor(*steps).double().numpy()

    def _choices(self, one_hot: Tensor) -> Tensor:
        """Return the discrete actions of which `action_inputs` made ``one_hot``, numbered from 0: ``[n, *action_shape]``."""
        parts: tuple[Tensor, ...] = torch.split(one_hot, list(choices_of(self.action_space)), 1)
        return torch.stack([part.argmax(1) for part in parts], 1).reshape(-1, *(self.action_space.shape or ()))

    def layers(self) -> dict[str, nn.Module]:
        """Return the layers by name: modules without children, in the order of their definition."""
        return {name: layer for name, layer in self.module.named_modules() if name and not list(layer.children())}


def reinitialise(module: nn.Module, seed: int) -> None:
    """Draw the weights of ``module`` anew, as its layers do when they are made.

    Raises:
        NotImplementedError: a layer with weights has no ``reset_parameters``.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in module.modules():
            if not list(part.parameters(recurse=False)) and not list(part.buffers(recurse=False)):
                continue
            reset = getattr(part, "reset_parameters", None)
            if reset is not None:
                reset()
            elif list(part.parameters(recurse=False)):
                raise NotImplementedError(f"{type(part).__name__} has no reset_parameters().")


class EnsembleReward(TorchReward):
    """A `RewardEnsemble`: its members' normalised rewards, combined as it combines them.

    Args:
        ensemble: the reward model; later changes to it have no effect.

    Raises:
        SettingError: its network reads the steps before, and a reward function judges single steps.
    """

    module: RewardEnsemble

    def __init__(self, ensemble: RewardEnsemble, name: str = "learned reward"):
        ensemble.check_steps("tools and measures judge")
        super().__init__(ensemble)
        self.name = name
        self.observation_space, self.action_space = ensemble.observation_space, ensemble.action_space
        settings = ensemble.settings
        used: dict[Input, bool] = {
            "state": settings.use_state,
            "action": bool(settings.use_action),
            "next_state": settings.use_next_state,
            "done": settings.use_done,
        }
        also: frozenset[Input] = getattr(ensemble.networks, "also_reads", frozenset())
        own = not is_built_in(settings)  # a network of the user's own may use what it likes
        self.inputs = frozenset(name for name, is_used in used.items() if is_used or own or name in also)
        self._own_network = own

    def stateful(self) -> list[nn.Module]:
        """Return the networks, if they are a user's own: ours keep no state of what they see in evaluation mode."""
        return [self.module.networks] if self._own_network else []

    def combine(self, members: Tensor) -> Tensor:
        """See `RewardEnsemble.combine`."""
        return self.module.combine(members)

    def members(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute each member's normalised reward, ``[members, n]`` float64, from the arrays as they are: images stay bytes."""
        steps = (observations, actions, next_observations, terminated)
        return self.module.member_rewards(*(torch.as_tensor(np.array(step)) for step in steps)).double().numpy()

    def member_tensor(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute each member's normalised reward, ``[members, n]``."""
        if self._own_network and choices_of(self.action_space) and actions.is_floating_point():
            start = torch.as_tensor(np.asarray(self.action_space.start))  # type: ignore[attr-defined]
            actions = self._choices(actions) + start
        frames = torch.stack([observations, next_observations], 1)
        inputs = self.module.networks.encode(frames, actions.unsqueeze(1), terminated)
        raw: Tensor = self.module.networks(inputs).squeeze(-1)
        return (raw - self.module.reward_mean[:, None]) / self.module.reward_std[:, None]

    def fresh(self, seed: int) -> RewardFunction:
        """Return an ensemble with the same settings, spaces and normalisers, and new weights."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            ensemble = RewardEnsemble(self.module.observation_space, self.action_space, self.module.settings)
        ensemble.reward_mean.copy_(self.module.reward_mean)
        ensemble.reward_std.copy_(self.module.reward_std)
        ensemble.deviation_weight.copy_(self.module.deviation_weight)
        return EnsembleReward(ensemble, f"{self.name}, untrained")
