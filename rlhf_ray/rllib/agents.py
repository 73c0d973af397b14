"""agent_of(): the agent, for the tools that look inside, of a run, a checkpoint, a saved agent or a policy."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import torch
import tree  # type: ignore[import-untyped]
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec
from torch import Tensor, nn

from rlhf_ray.agents.agent import FORMS, MEMORY, Agent, AgentStep, Edit, NetworkAgent
from rlhf_ray.data.checkpoints import last_checkpoint
from rlhf_ray.data.errors import SettingError
from rlhf_ray.policies.network import ActorCriticNetwork, PolicyShape
from rlhf_ray.policies.sb3 import is_sb3
from rlhf_ray.rllib.checkpoint_parts import load_policy
from rlhf_ray.rllib.policy import ActorCritic, CollectorPolicy, built
from rlhf_ray.rllib.starting import check_policy, policy_weights


def agent_of(
    source: Path | str | CollectorPolicy | RLModule,
    name: str | None = None,
    observation_space: gym.Space[Any] | None = None,
    action_space: gym.Space[Any] | None = None,
) -> Agent:
    """Return the frozen agent of ``source``, which stays as it is.

    Args:
        source: a run's folder (its newest checkpoint), a checkpoint, a folder of `NetworkAgent.save`, a ``model.zip`` of
            Stable-Baselines3's PPO or A2C, a policy or an RLModule.
        name: for people. Defaults to the folder's name, or "agent".
        observation_space: the environment's, for a model of Stable-Baselines3.
        action_space: the environment's, for such a model.

    Raises:
        SettingError: there is no policy, or it has actions that the tools don't know.
    """
    if isinstance(source, Path | str):
        path = Path(source)
        if (path / "agent.json").exists():
            return NetworkAgent.load(path)
        if is_sb3(path) or is_sb3(path / "model.zip"):
            return _of_sb3(path, name or path.stem, observation_space, action_space)
        try:
            policy = load_policy(last_checkpoint(path / "checkpoints") or path)
        except SettingError:
            raise
        except ValueError as error:
            raise SettingError(f"{path} has no policy; give {FORMS}.") from error
        return agent_of(policy, name or path.name)
    module: Any = source.module if isinstance(source, CollectorPolicy) else source
    name = name or "agent"
    if type(module) is ActorCritic:
        return NetworkAgent(copy.deepcopy(module.network), module.observation_space, module.action_space, name)
    return ModuleAgent(module, name)


def _of_sb3(
    path: Path, name: str, observation_space: gym.Space[Any] | None, action_space: gym.Space[Any] | None
) -> NetworkAgent:
    """Return the agent of a model that Stable-Baselines3 saved."""
    weights = policy_weights(path, observation_space, action_space)
    assert observation_space is not None and action_space is not None, "policy_weights() refuses it"  # noqa: PT018
    if not any(key.startswith("critic.") for key in weights):
        raise SettingError(
            f"{path} is a model of SAC; agents are looked into if they are of PPO or A2C. `rlhf-ray train … --policy-from {path}` "
            "starts from it."
        )
    layers = [value for key, value in weights.items() if re.fullmatch(r"actor\.\d+\.weight", key)]
    shape = PolicyShape(
        hidden=tuple(len(layer) for layer in layers[:-1]) or PolicyShape.hidden,
        features=len(weights["encoder.1.weight"]) if "encoder.1.weight" in weights else None,
        normalize_observations=any("statistics." in key for key in weights),
    )
    network = ActorCriticNetwork(observation_space, action_space, shape)
    check_policy(weights, network.state_dict(), str(path), "ppo")
    state = network.state_dict() | {key: torch.as_tensor(value) for key, value in weights.items()}
    network.load_state_dict(state)
    return NetworkAgent(network, observation_space, action_space, name)


class ModuleAgent:
    """An `Agent` that is any RLModule whose actions are categorical or Gaussian.

    The state of a stateful module becomes one vector: the leaves of its dict, one after the other. An edit of `MEMORY` changes what
    the module carries to the next step, but not the action of this step, which the module computes by itself.

    Args:
        module: the RLModule; a copy of it is used.
        name: for people.

    Raises:
        SettingError: it has another distribution, no value, or doesn't return its state.
    """

    def __init__(self, module: Any, name: str = "agent"):
        kind = module.get_inference_action_dist_cls()
        if kind not in (TorchCategorical, TorchDiagGaussian):
            raise SettingError(
                f"The policy {type(module).__name__} has actions of {kind.__name__}; the tools for agents know categorical and "
                "Gaussian ones. Use agent=ppo, with its default distribution for Discrete or Box actions."
            )
        if not isinstance(module, ValueFunctionAPI):
            raise SettingError(
                f"The policy {type(module).__name__} has no compute_values(): implement ValueFunctionAPI."
            )
        self.module = copy.deepcopy(module).eval().requires_grad_(False)
        self.observation_space: gym.Space[Any] = module.observation_space
        self.action_space: gym.Space[Any] = module.action_space
        self.name = name
        initial = module.get_initial_state() if module.is_stateful() else {}
        self._initial = tree.map_structure(lambda of: torch.as_tensor(of).detach().float(), initial)
        self._sizes = [leaf.numel() for leaf in tree.flatten(self._initial)]
        self.memory_size = sum(self._sizes)
        self.layers: Sequence[str] = [
            path for path, layer in self.module.named_modules() if path and not list(layer.children())
        ]
        content = hashlib.sha256(f"{type(module).__name__} {self.observation_space} {self.action_space}".encode())
        for path, value in sorted(module.state_dict().items()):
            content.update(path.encode())
            content.update(value.detach().cpu().contiguous().numpy().tobytes())
        self.digest = content.hexdigest()[:16]

    def initial_memory(self, n: int) -> Tensor:
        """See `Agent.initial_memory`."""
        if not self.memory_size:
            return torch.zeros(n, 0)
        return torch.cat([leaf.flatten() for leaf in tree.flatten(self._initial)]).expand(n, -1)

    def step(
        self, observations: Tensor, memory: Tensor, *, edits: Mapping[str, Edit] = {}, keep: Sequence[str] = ()
    ) -> AgentStep:
        """See `Agent.step`; an edit of `MEMORY` acts on the memory after the step only."""
        kept: dict[str, Tensor] = {}

        def hook(name: str) -> Callable[..., Any]:
            def of(_module: nn.Module, _inputs: Any, output: Any) -> Any:
                kept[name] = edits[name](output) if name in edits else output
                return kept[name]

            return of

        sites = [name for name in dict.fromkeys([*edits, *keep]) if name != MEMORY]
        handles = [self.module.get_submodule(name).register_forward_hook(hook(name)) for name in sites]
        batch: dict[str, Any] = {Columns.OBS: observations}
        if self.memory_size:
            batch = {Columns.OBS: observations[:, None], Columns.STATE_IN: self._state(memory)}
        try:
            outputs = self._forward(batch)
            value = self.module.compute_values(dict(batch), outputs.get(Columns.EMBEDDINGS))
        finally:
            for handle in handles:
                handle.remove()
        logits, after = outputs[Columns.ACTION_DIST_INPUTS], memory
        if self.memory_size:
            logits, value = logits[:, 0], value[:, 0]
            after = torch.cat([leaf.flatten(1) for leaf in tree.flatten(outputs[Columns.STATE_OUT])], -1)
        if MEMORY in edits:
            after = edits[MEMORY](after)
        return AgentStep(logits, value, after, {name: kept[name] for name in keep})

    def fresh(self, seed: int) -> ModuleAgent | None:
        """See `Agent.fresh`."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = built(RLModuleSpec.from_module(self.module), self.observation_space, self.action_space)
        return ModuleAgent(module, f"{self.name}, untrained")

    def _forward(self, batch: dict[str, Any]) -> dict[str, Any]:
        outputs: dict[str, Any] = self.module.forward_train(batch)
        self.module.eval()
        if self.memory_size and Columns.STATE_OUT not in outputs:
            raise SettingError(
                f"The policy {type(self.module).__name__} has a state, but its _forward_train() doesn't return "
                f"{Columns.STATE_OUT!r}: return it there too."
            )
        return outputs

    def _state(self, memory: Tensor) -> Any:
        leaves = tree.flatten(self._initial)
        parts = [
            part.reshape(-1, *leaf.shape)
            for part, leaf in zip(torch.split(memory, self._sizes, -1), leaves, strict=True)
        ]
        return tree.unflatten_as(self._initial, parts)
