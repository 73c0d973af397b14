"""A policy on disk, ``policy.json`` and ``policy.safetensors``, read and played in plain torch: neither Ray nor RLlib, no pickle.

``policy.json`` says what ``policy.safetensors`` are the weights of: the module, its arguments (``model_config``) and its spaces.
Observation statistics are among the weights. A checkpoint has such a folder (`rlhf_ray.rllib.checkpoint_parts`), and a run a copy
of the newest one's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file
from torch import Tensor

from rlhf_ray.agents.agent import Agent, AgentStep, Edit, NetworkAgent, digest_of
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.spaces import choices_of, space_from_json
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.actions import best, sample, to_env_actions
from rlhf_ray.policies.soft_actor_critic import SoftActorCriticNetwork

FORMAT = "rlhf_ray.policy/1"
POLICY_FILE, WEIGHTS_FILE = "policy.json", "policy.safetensors"

ACTOR_CRITIC, SOFT_ACTOR_CRITIC = "rlhf_ray.rllib.policy:ActorCritic", "rlhf_ray.rllib.sac_module:SoftActorCritic"
"""The modules whose networks are here."""


class ActingPolicy(Protocol):
    """Acts in environments, as `AgentPolicy` does, and as RLlib's modules do in `rlhf_ray.rllib.policy.CollectorPolicy`."""

    def begin(self, after: Any = None) -> ActingPolicy:
        """Return this policy at the start of an episode, or with the memory that ``after``, one of its kind, has of an episode."""
        ...

    def see(self, observation: Array) -> None:
        """Remember one observation, for which somebody else chooses the action."""
        ...

    def act(self, observation: Array, rng: np.random.Generator) -> Any:
        """Draw an action for one observation."""
        ...

    def best(self, observations: Array, first: Array | None = None) -> Array:
        """Return the most likely action for each of ``n`` observations; ``first``: whether it is the first of an episode."""
        ...

    def drawn(self, seed: int) -> Callable[[Array, Array], Array]:
        """Return what draws actions, called like `best`."""
        ...

    def maker(self) -> PolicySource:
        """Return what makes this policy in another process."""
        ...


class PolicySource(Protocol):
    """Makes a policy in the process that calls it."""

    def digest(self) -> str:
        """Compute a hash of the weights, 16 hex digits."""
        ...

    def __call__(self) -> ActingPolicy:
        """Build the policy."""
        ...


class AgentPolicy:
    """Plays an `Agent`: observations in, the environment's actions out. It remembers what it is given, in order.

    Args:
        agent: the agent.
        source: what it was made of, for other processes; None: the agent itself.
        squashed: whether actions are tanh of the Gaussian's numbers, as in SAC.
    """

    def __init__(self, agent: Agent, source: PolicySource | None = None, *, squashed: bool = False):
        self.agent, self._source, self._squashed = agent, source, squashed
        self._memory: Tensor | None = None

    def begin(self, after: AgentPolicy | None = None) -> AgentPolicy:
        begun = AgentPolicy(self.agent, self._source, squashed=self._squashed)
        begun._memory = None if after is None else after._memory
        return begun

    def see(self, observation: Array) -> None:
        if self.agent.memory_size:
            self._logits(np.asarray(observation)[None])

    def act(self, observation: Array, rng: np.random.Generator) -> Any:
        logits, space = self._logits(np.asarray(observation)[None]), self.agent.action_space
        if choices_of(space):
            drawn = best(logits + torch.as_tensor(rng.gumbel(size=logits.shape)), space)
        else:
            mean, log_std = np.split(logits.numpy(), 2, -1)
            drawn = torch.as_tensor(mean + np.exp(log_std) * rng.standard_normal(mean.shape))
        return self._env_actions(drawn)[0]

    def best(self, observations: Array, first: Array | None = None) -> Array:
        return self._env_actions(best(self._logits(observations, first), self.agent.action_space))

    def drawn(self, seed: int) -> Callable[[Array, Array], Array]:
        generator = torch.Generator().manual_seed(seed)
        return lambda observations, first: self._env_actions(
            sample(self._logits(observations, first), self.agent.action_space, generator)
        )

    def maker(self) -> PolicySource:
        return self._source or _Copied(self.agent)

    @torch.no_grad()
    def _logits(self, observations: Array, first: Array | None = None) -> Tensor:
        """Take a step in ``n`` environments; ``first``: ``[n]`` bool, where an episode begins."""
        seen = torch.as_tensor(np.asarray(observations))
        initial = self.agent.initial_memory(len(seen))
        if self._memory is None or not self.agent.memory_size:
            self._memory = initial
        elif first is not None:
            self._memory = torch.where(torch.as_tensor(first)[:, None], initial, self._memory)
        step = self.agent.step(seen, self._memory)
        self._memory = step.memory
        return step.logits

    def _env_actions(self, actions: Tensor) -> Array:
        space = self.agent.action_space
        actions = torch.tanh(actions) if self._squashed else actions
        return to_env_actions(actions.numpy().reshape(len(actions), *(space.shape or ())), space)


@dataclass(frozen=True)
class _Copied:
    """An agent as a `PolicySource`."""

    agent: Agent

    def digest(self) -> str:
        return self.agent.digest

    def __call__(self) -> AgentPolicy:
        return AgentPolicy(self.agent)


class SoftAgent(Agent):
    """The actor of soft actor-critic, frozen, for `AgentPolicy`. It has no layers to look into, and its value is NaN."""

    name, memory_size = "agent", 0
    layers: Sequence[str] = ()

    def __init__(
        self,
        network: SoftActorCriticNetwork,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        digest: str,
    ):
        self.network = network.eval().requires_grad_(False)
        self.observation_space, self.action_space, self.digest = observation_space, action_space, digest

    def step(
        self, observations: Tensor, memory: Tensor, *, edits: Mapping[str, Edit] = {}, keep: Sequence[str] = ()
    ) -> AgentStep:
        return AgentStep(self.network.distribution(observations), torch.full((len(observations),), torch.nan), memory)


@dataclass(frozen=True)
class SavedPolicy:
    """What a policy's folder holds."""

    about: Mapping[str, Any]  # the content of ``policy.json``
    weights: Mapping[str, Array]  # by name

    @staticmethod
    def load(folder: Path) -> SavedPolicy | None:
        """Read a policy's folder; None if there is none, or if its network is not one of ours, so that RLlib has to make it.

        Raises:
            SettingError: it is damaged, or of a later version.
        """
        file = folder / POLICY_FILE
        if not file.exists():
            return None
        try:
            about = json.loads(file.read_text())
            if about["format"] != FORMAT:
                raise SettingError(
                    f"{file} has the format {about['format']!r}, unknown to this version: update rlhf_ray."
                )
            if about["module"] not in (ACTOR_CRITIC, SOFT_ACTOR_CRITIC):
                return None
            saved = SavedPolicy(about, load_file(folder / WEIGHTS_FILE))
            if about.get("digest", saved.digest()) != saved.digest():
                raise ValueError("its weights are not those of its description")
            _ = saved.network
            return saved
        except SettingError:
            raise
        except (OSError, KeyError, TypeError, ValueError, RuntimeError, SafetensorError) as error:
            raise SettingError(f"The policy in {folder} can't be read ({error}): it is damaged.") from error

    @property
    def spaces(self) -> tuple[gym.Space[Any], gym.Space[Any]]:
        """The environment's observation space and action space."""
        return space_from_json(self.about["observation_space"]), space_from_json(self.about["action_space"])

    @cached_property
    def network(self) -> ActorCriticNetwork | SoftActorCriticNetwork:
        """The network with these weights."""
        config, spaces = self.about["model_config"], self.spaces
        network: ActorCriticNetwork | SoftActorCriticNetwork
        with torch.random.fork_rng(devices=[]):  # building it draws weights
            if self.about["module"] == ACTOR_CRITIC:
                shape = {each.name: config[each.name] for each in fields(PolicyShape) if each.name in config}
                network = ActorCriticNetwork(*spaces, PolicyShape(**{**shape, "hidden": tuple(shape["hidden"])}))
            else:
                normalises = config.get("normalize_observations", False)
                network = SoftActorCriticNetwork(*spaces, tuple(config["hidden"]), config["initial_alpha"], normalises)
        weights = {name.removeprefix("network."): torch.as_tensor(value) for name, value in self.weights.items()}
        network.load_state_dict(weights)
        return network

    def agent(self, name: str = "agent") -> NetworkAgent | None:
        """Return the agent, to look into; None for one of SAC, which the tools look into as an RLModule."""
        return NetworkAgent(self.network, *self.spaces, name) if isinstance(self.network, ActorCriticNetwork) else None

    def digest(self) -> str:
        """Compute a hash of the weights, 16 hex digits."""
        return digest_of(self.weights)

    def __call__(self) -> AgentPolicy:
        """Return the policy that plays it."""
        agent = self.agent()
        if agent is not None:
            return AgentPolicy(agent, self)
        assert isinstance(self.network, SoftActorCriticNetwork)
        return AgentPolicy(
            SoftAgent(self.network, *self.spaces, self.digest()), self, squashed=not self.network.discrete
        )
