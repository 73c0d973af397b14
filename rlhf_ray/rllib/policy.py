"""Policy networks: actor and critic in one RLModule, for vectors and uint8 images."""

from __future__ import annotations

import copy
import hashlib
import math
from dataclasses import dataclass, fields
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from ray.rllib.algorithms.ppo.torch.default_ppo_torch_rl_module import DefaultPPOTorchRLModule
from ray.rllib.core.columns import Columns
from ray.rllib.core.distribution.torch.torch_distribution import TorchCategorical, TorchDiagGaussian
from ray.rllib.core.rl_module.apis.value_function_api import ValueFunctionAPI
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.core.rl_module.torch import TorchRLModule
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.images import is_image
from rlhf_ray.policies.env_actions import to_env_actions
from rlhf_ray.settings import PolicyNetwork, PPOSettings


class ActorCritic(TorchRLModule, ValueFunctionAPI):  # type: ignore[misc]
    """Actor and critic.

    Vectors: two separate tanh networks; observations with finite bounds are scaled to [-1, 1]. Images: one shared
    convolutional encoder, which divides by 255 itself, so that images stay uint8 up to here. Weights are orthogonal, with a
    small last layer of the policy (Andrychowicz et al. 2021, "What matters in on-policy RL"); the encoder of impala has Glorot's
    uniform weights and zero biases, as in the published Procgen agents.

    ``model_config`` holds ``network``, ``hidden`` and ``initial_log_std`` of `PPOSettings`.
    """

    def setup(self) -> None:
        """Build the networks (called by RLlib)."""
        config = self.model_config
        hidden: tuple[int, ...] = tuple(config["hidden"])
        self.image = is_image(self.observation_space)
        network: PolicyNetwork = config["network"]
        if network == "auto":
            network = "nature" if self.image else "mlp"
        if (network == "mlp") == self.image:
            raise SettingError(
                f"ppo.network is {network!r}, but the observations are {self.observation_space}: use 'mlp' for vectors, "
                "'nature' or 'impala' for uint8 images, or 'auto'."
            )
        self.discrete = isinstance(self.action_space, gym.spaces.Discrete)
        outputs = int(self.action_space.n) if self.discrete else int(np.prod(self.action_space.shape))
        if not self.discrete:
            self.log_std = nn.Parameter(torch.full((outputs,), float(config["initial_log_std"])))
        if self.image:
            self.encoder, size = _image_encoder(network, self.observation_space.shape)
            self.actor: nn.Module = _linear(size, outputs, 0.01)
            self.critic: nn.Module = _linear(size, 1, 1.0)
        else:
            space = self.observation_space
            bounded = np.isfinite(space.low) & np.isfinite(space.high) & (space.high > space.low)
            low, high = np.where(bounded, space.low, -1.0), np.where(bounded, space.high, 1.0)
            middle, scale = (low + high) / 2.0, (high - low) / 2.0
            self.register_buffer("middle", torch.as_tensor(middle, dtype=torch.float32), persistent=False)
            self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)
            size = int(np.prod(space.shape))
            self.actor = _mlp(size, hidden, outputs, 0.01)
            self.critic = _mlp(size, hidden, 1, 1.0)

    def _forward(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings = self._embed(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: self._distribution(embeddings)}

    def _forward_train(self, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        embeddings = self._embed(batch[Columns.OBS])
        return {Columns.ACTION_DIST_INPUTS: self._distribution(embeddings), Columns.EMBEDDINGS: embeddings}

    def compute_values(self, batch: dict[str, Any], embeddings: Any = None) -> Tensor:
        """Compute the value of each observation, ``[batch]``."""
        embeddings = self._embed(batch[Columns.OBS]) if embeddings is None else embeddings
        return torch.squeeze(self.critic(embeddings), -1)

    def _embed(self, observations: Tensor) -> Tensor:
        if self.image:
            # The permuted images are channels-last in memory, the fastest layout for convolutions on a CPU.
            embedded: Tensor = self.encoder(observations.permute(0, 3, 1, 2).float().mul_(1.0 / 255.0))
            return embedded
        scaled: Tensor = (observations.float() - self.middle) / self.scale
        return scaled

    def _distribution(self, embeddings: Tensor) -> Tensor:
        outputs: Tensor = self.actor(embeddings)
        if self.discrete:
            return outputs
        return torch.cat([outputs, self.log_std.expand_as(outputs)], -1)


def policy_spec(settings: PPOSettings) -> RLModuleSpec:
    """Return the RLlib spec of an `ActorCritic`; RLlib fills in the spaces."""
    return RLModuleSpec(
        module_class=ActorCritic,
        model_config={
            "network": settings.network,
            "hidden": list(settings.hidden),
            "initial_log_std": settings.initial_log_std,
        },
    )


def built(spec: RLModuleSpec, observation_space: Any, action_space: Any) -> Any:
    """Build the module that ``spec`` describes, with these spaces."""
    spec = copy.copy(spec)
    spec.observation_space, spec.action_space = observation_space, action_space
    return spec.build()


def checked_network(spec: RLModuleSpec, observation_space: Any, action_space: Any) -> Any:
    """Build the module that ``spec`` describes, to check it.

    Raises:
        SettingError: building fails, or the module doesn't accept the observations, or it is recurrent.
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
        stateful = module.is_stateful()
        observations = torch.as_tensor(np.zeros((2, *observation_space.shape), observation_space.dtype))
        outputs = {} if stateful else module.forward_inference({Columns.OBS: observations})
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise SettingError(f"{name} doesn't accept the observations {observation_space}: {first}") from error
    if stateful:
        raise SettingError(
            f"{name} is recurrent, but rewards are learned for single observations: disable use_lstm and stack "
            "observations in the environment (gymnasium.wrappers.FrameStackObservation)."
        )
    if Columns.ACTION_DIST_INPUTS not in outputs:
        raise SettingError(f"{name} doesn't return {Columns.ACTION_DIST_INPUTS!r}: return it from its forward pass.")
    return module


class CollectorPolicy:
    """Adapts an RLModule to the rollout collector: observation in, environment action out."""

    def __init__(self, module: Any):
        self.module = module
        self.distribution = module.get_exploration_action_dist_cls()

    def act(self, observation: Array, rng: np.random.Generator) -> Any:
        """Sample an action from the policy for one observation."""
        inputs = self.module.forward_exploration({Columns.OBS: torch.as_tensor(np.asarray(observation)[None])})
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

    def best(self, observations: Array) -> Array:
        """Return the deterministic policy's action for each of ``n`` observations, as the environment takes it."""
        inputs = self.module.forward_inference({Columns.OBS: torch.as_tensor(np.asarray(observations))})
        distribution = self.module.get_inference_action_dist_cls().from_logits(inputs[Columns.ACTION_DIST_INPUTS])
        return to_env_actions(distribution.to_deterministic().sample().numpy(), self.module.action_space)

    def maker(self) -> PolicyMaker:
        """Return a factory of copies of this policy, for other processes."""
        of = self.module
        return PolicyMaker(RLModuleSpec.from_module(of), of.observation_space, of.action_space, of.get_state())


@dataclass(frozen=True)
class PolicyMaker:
    """Makes a `CollectorPolicy` in the process that calls it.

    Attributes:
        spec: the policy module's spec.
        observation_space, action_space: the environment's spaces.
        weights: the module's weights, as numpy arrays.
    """

    spec: RLModuleSpec
    observation_space: Any
    action_space: Any
    weights: dict[str, Any]

    def digest(self) -> str:
        """Compute a hash of the weights (16 hex digits)."""
        content = hashlib.sha256()
        for name in sorted(self.weights):
            content.update(name.encode())
            content.update(np.ascontiguousarray(self.weights[name]).tobytes())
        return content.hexdigest()[:16]

    def __call__(self) -> CollectorPolicy:
        """Build the policy."""
        module = built(self.spec, self.observation_space, self.action_space)
        module.set_state(self.weights)
        return CollectorPolicy(module)


def _linear(inputs: int, outputs: int, gain: float) -> nn.Linear:
    layer = nn.Linear(inputs, outputs)
    nn.init.orthogonal_(layer.weight, gain)
    nn.init.zeros_(layer.bias)
    return layer


def _mlp(inputs: int, hidden: tuple[int, ...], outputs: int, gain: float) -> nn.Sequential:
    layers: list[nn.Module] = []
    for size_in, size_out in zip((inputs, *hidden), hidden, strict=False):
        layers += [_linear(size_in, size_out, math.sqrt(2.0)), nn.Tanh()]
    return nn.Sequential(*layers, _linear(hidden[-1], outputs, gain))


def _image_encoder(network: PolicyNetwork, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
    height, width, channels = shape
    if network == "impala":
        convolutions: list[nn.Module] = []
        for filters in (16, 32, 32):
            convolutions.append(_ImpalaBlock(channels, filters))
            channels = filters
        convolutions.append(nn.ReLU())
        features = 256
    else:
        convolutions = []
        for filters, kernel, stride in ((32, 8, 4), (64, 4, 2), (64, 3, 1)):
            layer = nn.Conv2d(channels, filters, kernel, stride)
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
            convolutions += [layer, nn.ReLU()]
            channels = filters
        features = 512
    body = nn.Sequential(*convolutions, nn.Flatten())
    try:
        with torch.no_grad():
            flat = body(torch.zeros(1, shape[2], height, width)).shape[1]
    except RuntimeError as error:
        raise SettingError(
            f"ppo.network is {network!r}, but images of {height}x{width} pixels are too small for it; use images of 36x36 or more."
        ) from error
    encoder = nn.Sequential(body, _linear(flat, features, math.sqrt(2.0)), nn.ReLU())
    if network == "impala":
        for name, parameter in encoder.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            else:
                nn.init.xavier_uniform_(parameter)
    return encoder, features


class _ImpalaBlock(nn.Module):
    """Convolution, pooling and two residual blocks (IMPALA, Espeholt et al. 2018; the network of the Procgen paper)."""

    def __init__(self, channels: int, filters: int):
        super().__init__()
        self.first = nn.Conv2d(channels, filters, 3, padding=1)
        self.residuals = nn.ModuleList(
            nn.Sequential(
                nn.ReLU(),
                nn.Conv2d(filters, filters, 3, padding=1),
                nn.ReLU(),
                nn.Conv2d(filters, filters, 3, padding=1),
            )
            for _ in range(2)
        )

    def forward(self, inputs: Tensor) -> Tensor:
        outputs = nn.functional.max_pool2d(self.first(inputs), 3, stride=2, padding=1)
        for residual in self.residuals:
            outputs = outputs + residual(outputs)
        return outputs
