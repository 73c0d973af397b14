"""The agent that the tools look at: a frozen, differentiable policy that takes one step at a time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

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
    """What an agent computes in one step, for ``n`` environments.

    Attributes:
        logits: inputs of the action distribution, ``[n, outputs]`` (see `rlhf_ray.policies.actions`).
        value: ``[n]``.
        memory: after the step, ``[n, memory_size]``.
        activations: outputs of the layers asked for, by name, ``[n, …]``.
    """

    logits: Tensor
    value: Tensor
    memory: Tensor
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
        ...

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
        ...


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
        self.digest = self._digest()

    def initial_memory(self, n: int) -> Tensor:
        """See `Agent.initial_memory`."""
        return self.network.initial_memory(n)

    def step(
        self, observations: Tensor, memory: Tensor, *, edits: Mapping[str, Edit] = {}, keep: Sequence[str] = ()
    ) -> AgentStep:
        """See `Agent.step`."""
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
        """See `Agent.fresh`."""
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

    def _digest(self) -> str:
        content = hashlib.sha256(json.dumps(self._about(), sort_keys=True).encode())
        for name, value in sorted(self.network.state_dict().items()):
            content.update(name.encode())
            content.update(value.detach().cpu().contiguous().numpy().tobytes())
        return content.hexdigest()[:16]
