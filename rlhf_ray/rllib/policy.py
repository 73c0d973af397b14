"""Policies as RLModules: ours, an `ActorCriticNetwork`; and any other that RLlib can train, seen from outside of RLlib."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
import tree  # type: ignore[import-untyped]
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import (
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
)
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn

from rlhf_ray.agents.agent import digest_of
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.spaces import choices_of
from rlhf_ray.policies.actions import to_env_actions
from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.ppo_update import in_passes
from rlhf_ray.settings import PPOSettings

STATE = "memory"
"""The state of an `ActorCritic` with memory: its vector, followed by 1 from an episode's first step on (0 before)."""


class ActorCritic(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]
    """An `ActorCriticNetwork` as an RLModule. The names of its weights are the network's.

    ``model_config`` holds the fields of `PolicyShape`, ``precision``, and ``max_seq_len`` with memory. Then batches have a time
    dimension, and the state of an environment says whether its episode has begun. If it has not, the network's own first memory
    takes the place of the state's, so that rollouts, losses and values always use its newest one, and it gets a gradient.
    """

    def setup(self) -> None:
        names = {field.name for field in fields(PolicyShape)}
        arguments = {name: value for name, value in self.model_config.items() if name in names}
        shape = PolicyShape(**{**arguments, "hidden": tuple(arguments["hidden"])})
        self.network = ActorCriticNetwork(self.observation_space, self.action_space, shape)
        self.precision = self.model_config.get("precision", "float32")
        if isinstance(self.action_space, gym.spaces.MultiDiscrete):
            self.action_dist_cls = TorchMultiCategorical.get_partial_dist_cls(
                space=self.action_space, input_lens=list(choices_of(self.action_space))
            )
        self.register_state_dict_post_hook(_without_prefix)
        self.register_load_state_dict_pre_hook(_with_prefix)

    def get_initial_state(self) -> dict[str, Tensor]:
        """Return the state of one environment before its first episode; empty without memory."""
        if not self.network.memory_size:
            return {}
        return {STATE: torch.zeros(self.network.memory_size + 1)}

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        outputs = self._forward_train(batch)
        del outputs[Columns.EMBEDDINGS]  # env runners would store them
        return outputs

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        outputs: dict[str, Any] = {}
        if self.network.memory_size:
            read, memory = self._remember(batch)
            outputs[Columns.STATE_OUT] = {STATE: nn.functional.pad(memory, (0, 1), value=1.0)}
        else:
            read = self._encode(batch[Columns.OBS])
        return outputs | {Columns.ACTION_DIST_INPUTS: self.network.distribution(read), Columns.EMBEDDINGS: read}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Compute the value of each observation, ``[batch]``, or ``[batch, steps]`` with memory.

        Without ``embeddings``, it is the value before an update, without gradients; it stays in the batch for the losses.
        """
        if embeddings is None:
            with torch.no_grad():
                before = self.compute_values(batch, self._forward_train(batch)[Columns.EMBEDDINGS])
            batch[Columns.VF_PREDS] = before
            return before
        values: Tensor = self.network.critic(embeddings).squeeze(-1)
        return values

    def _encode(self, observations: Tensor) -> Tensor:
        if torch.is_grad_enabled() or not self.network.image:
            return self.network.encode(observations)
        return in_passes(self.network.encode, observations)

    def _remember(self, batch: dict[str, Any]) -> tuple[Tensor, Tensor]:
        """Return what the heads read at each step, ``[batch, steps, size]``, and the memory after the last one."""
        observations, state = batch[Columns.OBS], batch[Columns.STATE_IN][STATE]
        memory = torch.where(state[:, -1:] > 0, state[:, :-1], self.network.initial_memory(len(state)))
        lengths = batch.get(Columns.SEQ_LENS)
        if lengths is None:
            encoded = self._encode(observations.flatten(0, 1))
            return self.network.unroll(encoded.reshape(*observations.shape[:2], -1), memory)
        # Encode only what is not padding, and stop at the end of the longest sequence.
        steps, longest = observations.shape[1], int(lengths.max())
        real = torch.arange(longest, device=lengths.device) < lengths[:, None]
        encoded = self._encode(observations[:, :longest][real])
        features = encoded.new_zeros(*real.shape, encoded.shape[-1])
        features[real] = encoded
        read, last = self.network.unroll(features, memory)
        return nn.functional.pad(read, (0, 0, 0, steps - longest)), last


def _without_prefix(module: Any, state: dict[str, Any], prefix: str, _metadata: Any) -> None:
    for name in [name for name in state if name.startswith(f"{prefix}{_NETWORK}")]:
        state[prefix + name.removeprefix(f"{prefix}{_NETWORK}")] = state.pop(name)


def _with_prefix(module: Any, state: dict[str, Any], prefix: str, *_arguments: Any) -> None:
    for name in [name for name in state if name.startswith(prefix)]:
        state[f"{prefix}{_NETWORK}{name.removeprefix(prefix)}"] = state.pop(name)


_NETWORK = "network."


def policy_spec(settings: PPOSettings) -> RLModuleSpec:
    """Return the RLlib spec of an `ActorCritic`; RLlib fills in the spaces."""
    return RLModuleSpec(
        module_class=ActorCritic,
        model_config={
            **{field.name: getattr(settings, field.name) for field in fields(PolicyShape)},
            "hidden": list(settings.hidden),
            "precision": settings.precision,
            # A rollout and RLlib's step after it, whose value is that of the last observation: gradients reach back to the start of
            # the rollout or episode.
            "max_seq_len": settings.rollout_length + 1,
        },
    )


def built(spec: RLModuleSpec, observation_space: Any, action_space: Any) -> Any:
    """Build the module that ``spec`` describes, with these spaces."""
    spec = copy.copy(spec)
    spec.observation_space, spec.action_space = observation_space, action_space
    return spec.build()


def checked_network(spec: RLModuleSpec, observation_space: Any, action_space: Any, minibatch_size: int) -> Any:
    """Build the module that ``spec`` describes, to check it. A sequence of a stateful one must fit into ``minibatch_size`` steps.

    Raises:
        SettingError: building fails, or the module doesn't accept the observations.
    """
    if spec.module_class is ActorCritic:
        return built(spec, observation_space, action_space)
    name = f"The policy network of rl_module() ({spec.module_class.__name__})"
    if spec.module_class is DefaultPPOTorchRLModule and spec.catalog_class is None:
        known = {field.name for field in fields(DefaultModelConfig)}
        if unknown := sorted(set(spec.model_config) - known):
            raise SettingError(f"{name} has no setting {', '.join(unknown)}; it has {', '.join(sorted(known))}.")
    try:
        module = built(spec, observation_space, action_space)
        observations = torch.as_tensor(np.zeros((2, *observation_space.shape), observation_space.dtype))
        outputs = _Episodes(module).forward(module.forward_inference, observations)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SettingError(f"{name} doesn't accept the observations {observation_space}: {first}") from error
    length = module.model_config.get("max_seq_len") if module.is_stateful() else 1
    if length is None or length > minibatch_size:
        raise SettingError(
            f"{name} has a state and max_seq_len={length}; it must be 1 to the minibatch size of {minibatch_size} steps: set it in "
            "rl_module(model_config=…)."
        )
    if Columns.ACTION_DIST_INPUTS not in outputs:
        raise SettingError(f"{name} doesn't return {Columns.ACTION_DIST_INPUTS!r}: return it from its forward pass.")
    return module


class _Episodes:
    """Runs an RLModule in episodes, and keeps their states if it has any."""

    def __init__(self, module: Any):
        self.module = module
        self.stateful = bool(module.is_stateful())
        self.state: Any = None

    def forward(self, method: Any, observations: Tensor, first: Array | None = None) -> dict[str, Any]:
        """Pass ``n`` observations on, and keep the new states.

        Args:
            method: the module's forward pass for acting.
            observations: ``[n, …]``.
            first: ``[n]`` bool, whether an observation is the first of an episode; None for none but the first ever.

        Returns:
            The module's outputs, without a time dimension.
        """
        if not self.stateful:
            outputs: dict[str, Any] = method({Columns.OBS: observations})
            return outputs
        n = len(observations)
        initial = tree.map_structure(
            lambda of: torch.as_tensor(of).expand(n, *np.shape(of)), self.module.get_initial_state()
        )
        if self.state is None:
            self.state = initial
        elif first is not None:
            rows = torch.as_tensor(first)
            self.state = tree.map_structure(
                lambda new, old: torch.where(rows.reshape(-1, *[1] * (old.dim() - 1)), new, old), initial, self.state
            )
        outputs = method({Columns.OBS: observations[:, None], Columns.STATE_IN: self.state})
        self.state = outputs.pop(Columns.STATE_OUT)
        return {name: value[:, 0] for name, value in outputs.items() if isinstance(value, Tensor)}


class CollectorPolicy:
    """Adapts an RLModule to the rollout collector: observation in, environment action out.

    A policy with memory remembers the observations that it is given, in order. `begin` returns it without any.
    """

    def __init__(self, module: Any):
        self.module = module
        self.distribution = module.get_exploration_action_dist_cls()
        self._episodes = _Episodes(module)

    def begin(self, after: CollectorPolicy | None = None) -> CollectorPolicy:
        """Return this policy at the start of an episode, or with the memory that another one of its kind has of an episode."""
        begun = CollectorPolicy(self.module)
        if after is not None:
            begun._episodes.state = after._episodes.state
        return begun

    def see(self, observation: Array) -> None:
        """Remember one observation, for which somebody else chooses the action."""
        if self._episodes.stateful:
            self._episodes.forward(self.module.forward_exploration, torch.as_tensor(np.asarray(observation)[None]))

    def act(self, observation: Array, rng: np.random.Generator) -> Any:
        """Sample an action from the policy for one observation."""
        inputs = self._episodes.forward(self.module.forward_exploration, torch.as_tensor(np.asarray(observation)[None]))
        if self.distribution not in (TorchCategorical, TorchDiagGaussian):  # a custom distribution
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(int(rng.integers(2**63)))
                action = self.distribution.from_logits(inputs[Columns.ACTION_DIST_INPUTS]).sample()[0]
            return to_env_actions(action.numpy(), self.module.action_space)
        logits = inputs[Columns.ACTION_DIST_INPUTS][0].numpy()
        if self.distribution is TorchCategorical:
            noise = rng.gumbel(size=logits.shape)
            return np.int64(np.argmax(logits + noise))
        mean, log_std = np.split(logits, 2)
        return to_env_actions(mean + np.exp(log_std) * rng.standard_normal(mean.shape), self.module.action_space)

    def best(self, observations: Array, first: Array | None = None) -> Array:
        """Return the deterministic policy's action for each of ``n`` observations, as the environment takes it.

        Args:
            observations: of ``n`` environments, the same ones in each call.
            first: ``[n]`` bool, whether an observation is the first of an episode. None: all are in the first call, none later.
        """
        inputs = self._episodes.forward(self.module.forward_inference, torch.as_tensor(np.asarray(observations)), first)
        distribution = self.module.get_inference_action_dist_cls().from_logits(inputs[Columns.ACTION_DIST_INPUTS])
        return to_env_actions(distribution.to_deterministic().sample().numpy(), self.module.action_space)

    def drawn(self, seed: int) -> Callable[[Array, Array], Array]:
        """Return what draws the actions of ``n`` observations from the policy, as in training; called like `best`."""
        torch_state = torch.Generator().manual_seed(seed).get_state()

        def act(observations: Array, first: Array) -> Array:
            nonlocal torch_state
            of = self._episodes.forward(
                self.module.forward_exploration, torch.as_tensor(np.asarray(observations)), first
            )
            distribution = self.module.get_exploration_action_dist_cls().from_logits(of[Columns.ACTION_DIST_INPUTS])
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(torch_state)
                actions = distribution.sample().numpy()
                torch_state = torch.get_rng_state()
            return to_env_actions(actions, self.module.action_space)

        return act

    def maker(self) -> PolicyMaker:
        """Return a factory of copies of this policy, for other processes."""
        module = self.module
        return PolicyMaker(
            RLModuleSpec.from_module(module), module.observation_space, module.action_space, module.get_state()
        )


@dataclass(frozen=True)
class PolicyMaker:
    """Makes a `CollectorPolicy` in the process that calls it.

    Attributes:
        weights: the module's weights, as numpy arrays.
    """

    spec: RLModuleSpec
    observation_space: Any
    action_space: Any
    weights: dict[str, Any]

    def digest(self) -> str:
        """Compute a hash of the weights (16 hex digits)."""
        return digest_of(self.weights)

    def __call__(self) -> CollectorPolicy:
        """Build the policy."""
        module = built(self.spec, self.observation_space, self.action_space)
        module.set_state(self.weights)
        return CollectorPolicy(module)
