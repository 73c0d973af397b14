"""The agent that the tools look at: a frozen, differentiable policy that takes one step at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, IntArray
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.spaces import space_from_json, space_to_json
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape

MEMORY = "memory"
"""The site of edits that is the agent's memory; other sites are names of layers."""

FORMS = (
    "a run folder, a checkpoint, the folder of a saved agent (agent.json), a model of Stable-Baselines3 (.zip), or module:Name of "
    "your own"
)
"""Where an agent can come from."""

Edit = Callable[[Tensor], Tensor]
"""Changes the values of a site, ``[n, …]``, and returns them in the same shape."""


@dataclass(frozen=True)
class AgentStep:
    """What an agent computes in one step, for ``n`` environments."""

    logits: Tensor  # inputs of the action distribution, ``[n, outputs]`` (see `rlhf_ray.policies.actions`)
    value: Tensor  # ``[n]``
    memory: Tensor  # after the step, ``[n, memory_size]``
    # outputs of the layers asked for, by name, ``[n, …]``
    activations: Mapping[str, Tensor] = field(default_factory=dict)


class Agent(Protocol):
    """A policy that tools look at. Differentiable in observations and memory; its parameters need no gradient.

    Attributes:
        name: for people.
        digest: hash of spaces, shape and weights, 16 hex digits: the agent's identity in everything made with it.
        observation_space, action_space: the environment's.
        memory_size: length of the memory vector; 0 without memory.
        layers: names of the layers whose outputs can be kept or edited.
    """

    name: str
    digest: str
    observation_space: gym.Space[Any]
    action_space: gym.Space[Any]
    memory_size: int
    layers: Sequence[str]

    def initial_memory(self, n: int) -> Tensor:
        """Return the memory ``[n, memory_size]`` at the start of an episode."""
        return torch.zeros(n, self.memory_size)

    def step(
        self, observations: Tensor, memory: Tensor, *, edits: Mapping[str, Edit] = {}, keep: Sequence[str] = ()
    ) -> AgentStep:
        """Take one step.

        Args:
            observations: ``[n, …]`` in the environment's units (images 0..255), uint8 or float.
            memory: before the step, ``[n, memory_size]``.
            edits: changes by site: `MEMORY`, applied to the new memory before actor and critic read it, or a layer's name.
            keep: layers whose outputs to return.
        """
        ...

    def fresh(self, seed: int) -> Agent | None:
        """Return the same agent with new random weights; None if it can't be made."""
        return None


class NetworkAgent:
    """An `Agent` that is an `ActorCriticNetwork`.

    Args:
        network: the network. It is frozen.
        observation_space, action_space: the environment's.
        name: for people.
    """

    def __init__(
        self,
        network: ActorCriticNetwork,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        name: str = "agent",
    ):
        self.network = network.eval().requires_grad_(False)
        self.observation_space, self.action_space = observation_space, action_space
        self.name = name
        self.memory_size = network.memory_size
        self.layers: Sequence[str] = [
            path
            for path, module in network.named_modules()
            if path and not isinstance(module, nn.Sequential | nn.ModuleList | nn.Flatten | nn.GRU | nn.LSTM)
        ]
        self.digest = digest_of(network.state_dict(), self._about())

    def initial_memory(self, n: int) -> Tensor:
        return self.network.initial_memory(n)

    def step(
        self, observations: Tensor, memory: Tensor, *, edits: Mapping[str, Edit] = {}, keep: Sequence[str] = ()
    ) -> AgentStep:
        kept: dict[str, Tensor] = {}

        def hook(name: str) -> Callable[..., Tensor]:
            def of(_module: nn.Module, _inputs: Any, output: Tensor) -> Tensor:
                kept[name] = edits[name](output) if name in edits else output
                return kept[name]

            return of

        sites = [name for name in dict.fromkeys([*edits, *keep]) if name != MEMORY]
        handles = [self.network.get_submodule(name).register_forward_hook(hook(name)) for name in sites]
        try:
            features = self.network.encode(observations)
            after = self.network.remember(features, memory)
            if MEMORY in edits:
                after = edits[MEMORY](after)
            logits, value = self.network.decide(features, after)
        finally:
            for handle in handles:
                handle.remove()
        return AgentStep(logits, value, after, {name: kept[name] for name in keep})

    def fresh(self, seed: int) -> NetworkAgent:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = ActorCriticNetwork(self.observation_space, self.action_space, self.network.shape)
        return NetworkAgent(network, self.observation_space, self.action_space, f"{self.name}, untrained")

    def save(self, folder: Path | str) -> None:
        """Write ``agent.json`` and ``agent.safetensors`` to ``folder``, which is created if missing."""
        path = Path(folder)
        path.mkdir(parents=True, exist_ok=True)
        save_file({n: value.contiguous() for n, value in self.network.state_dict().items()}, path / "agent.safetensors")
        write_text(
            path / "agent.json", json.dumps({**self._about(), "name": self.name, "digest": self.digest}, indent=1)
        )

    @classmethod
    def load(cls, folder: Path | str) -> NetworkAgent:
        """Load what `save` wrote.

        Raises:
            SettingError: there is no agent, or it is damaged.
        """
        path = Path(folder)
        try:
            about = json.loads((path / "agent.json").read_text())
            spaces = space_from_json(about["observation_space"]), space_from_json(about["action_space"])
            shape = PolicyShape(**{**about["shape"], "hidden": tuple(about["shape"]["hidden"])})
            network = ActorCriticNetwork(*spaces, shape)
            network.load_state_dict(load_file(path / "agent.safetensors"))
            agent = cls(network, *spaces, about["name"])
        except FileNotFoundError:
            raise SettingError(f"{folder} holds no agent (agent.json); give a run folder or a saved agent.") from None
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise SettingError(f"The agent in {folder} can't be read ({error}): save it again.") from error
        if agent.digest != about["digest"]:
            raise SettingError(
                f"The agent in {folder} is damaged: its weights are not those of agent.json; save it again."
            )
        return agent

    def _about(self) -> dict[str, Any]:
        return {
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "shape": asdict(self.network.shape),
        }


def digest_of(weights: Mapping[str, Any], about: Any = None) -> str:
    """Compute a hash of weights by name, tensors or arrays, and of JSON values that belong to them, 16 hex digits."""
    content = hashlib.sha256(b"" if about is None else json.dumps(about, sort_keys=True).encode())
    for name, value in sorted(weights.items()):
        content.update(name.encode())
        content.update(np.asarray(value.detach().cpu() if isinstance(value, Tensor) else value).tobytes())
    return content.hexdigest()[:16]


class Hook(Protocol):
    """A change of one site of an agent. `rlhf_ray.interpret.directions.interventions.Intervention` is one."""

    @property
    def site(self) -> str:
        """`MEMORY`, changed after the step's update and before actor and critic read it; or a layer's name."""
        ...

    def edit(self, step: int | IntArray, rows: IntArray | None = None) -> Edit:
        """Return the change of the site's values at one step.

        Args:
            step: steps since the start of the episode, of all rows or of each.
            rows: the episodes that the rows are; None: 0 to n-1.
        """
        ...


class Sight(Protocol):
    """A change of the world, or of what an agent sees of it."""

    def __call__(self, batch: Any, seen: Array, copies: IntArray, episodes: IntArray, steps: IntArray) -> Array:
        """Return what is seen instead, ``[n, …]``.

        Args:
            batch: ``n`` copies of the environment (`EnvBatch`), which it may edit.
            seen: their observations, ``[n, …]``.
            copies: the copies that go on, ``[k]``; the observations of others don't count.
            episodes: the numbers of their episodes, ``[k]``.
            steps: steps since the start of the episode, ``[k]``.
        """
        ...


def check(hooks: Sequence[Hook], agent: Agent) -> None:
    """Raise a `SettingError` if ``agent`` does not have the sites of ``hooks``."""
    for hook in hooks:
        if hook.site == MEMORY and not agent.memory_size:
            raise SettingError(
                f"site is 'memory', but the agent has no memory; give a layer: {', '.join(agent.layers)}."
            )
        if hook.site != MEMORY and hook.site not in agent.layers:
            raise SettingError(
                f"site is {hook.site!r}; the agent has {', '.join([*[MEMORY] * bool(agent.memory_size), *agent.layers])}."
            )


def edits_at(hooks: Sequence[Hook], step: int | IntArray, rows: IntArray | None = None) -> dict[str, Edit]:
    """Return the edits of one step by site; several hooks at one site act one after another."""
    edits: dict[str, Edit] = {}
    for hook in hooks:
        edit = hook.edit(step, rows)
        edits[hook.site] = _after(edits[hook.site], edit) if hook.site in edits else edit
    return edits


def edits_for(hooks: Sequence[Hook], start: int | IntArray = 0) -> Callable[[int], Mapping[str, Edit]] | None:
    """Return the hooks as a function of a simulation's step, as world models take them; None without hooks.

    ``start``: steps since the start of the episode at the simulation's first step, of all rows or of each.
    """
    return (lambda step: edits_at(hooks, np.asarray(start, np.int64) + step)) if hooks else None


def _after(first: Edit, second: Edit) -> Edit:
    return lambda values: second(first(values))
