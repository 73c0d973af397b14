"""One version of the reward for the few steps of one ``step`` call: the ensemble's forward pass without torch's overhead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.networks import MLP
from rlhf_ray.settings import Activation

_ACTIVATIONS: dict[Activation, Callable[[Any], Any]] = {
    "relu": lambda x: np.maximum(x, 0.0),
    "leaky_relu": lambda x: np.maximum(x, 0.01 * x),
    "tanh": np.tanh,
}


class Predictor:
    """Predicts like `RewardEnsemble.predict`, in numpy: ten times faster for a handful of steps.

    Networks other than the MLP fall back to torch.

    Args:
        ensemble: the version to predict with. The MLP's weights are copied: later changes have no effect.
    """

    def __init__(self, ensemble: RewardEnsemble):
        networks = ensemble.networks
        self._settings = ensemble.settings
        self._ensemble = None if isinstance(networks, MLP) else ensemble
        if self._ensemble is not None:
            return
        state = ensemble.state()
        self._mean, self._std = state["reward_mean"][:, None], state["reward_std"][:, None]
        self._activate = _ACTIVATIONS[ensemble.settings.activation]
        names = [name for name in state if name.endswith(".weight") and "head" in name]
        names.sort(key=lambda name: int(name.split(".")[-2]))  # by the layer's position
        self._layers = [(state[name], state[name.replace(".weight", ".bias")]) for name in names]
        self._observation_scale = networks.scale_observation
        encode, space = networks.encode_action, ensemble.action_space
        self._choices = np.eye(encode.size, dtype=np.float32) if isinstance(space, gym.spaces.Discrete) else None
        self._low, self._scale = encode.low.numpy().copy(), encode.scale.numpy().copy()

    def predict(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward of ``n`` steps, ``[n]`` float32. Takes the arguments of `RewardEnsemble.predict`."""
        if self._ensemble is not None:
            return self._ensemble.predict(observations, actions, next_observations, terminated)
        parts = []
        if self._settings.use_state:
            parts.append(self._vector(observations))
        if self._settings.use_next_state:
            parts.append(self._vector(next_observations))
        if self._settings.use_action:
            parts.append(self._encoded(actions))
        if self._settings.use_done:
            parts.append(np.asarray(terminated, np.float32)[:, None])
        values: Any = np.concatenate(parts, 1)
        for weight, bias in self._layers[:-1]:
            values = self._activate(values @ weight + bias)
        weight, bias = self._layers[-1]
        raw = (values @ weight + bias)[..., 0]
        rewards: FloatArray = ((raw - self._mean) / self._std).mean(0)
        return rewards

    def _vector(self, observations: Array) -> Any:
        flat = observations.reshape(len(observations), -1)
        return flat.astype(np.float32) * np.float32(self._observation_scale)

    def _encoded(self, actions: Array) -> Any:
        if self._choices is not None:
            return self._choices[actions.astype(np.int64) - int(self._low[0])]
        return ((actions.astype(np.float32) - self._low) / self._scale).reshape(len(actions), -1)
