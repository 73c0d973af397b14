"""The reward ensemble: networks, normalisers and a version number, saved and sent as one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.data.spaces import space_from_json, space_to_json
from rlhf_ray.reward.likelihood import discounts
from rlhf_ray.reward.networks import make_network
from rlhf_ray.settings import RewardModelSettings, from_json, to_json

FORMAT = "rlhf_ray.reward/1"
CHUNK = 4096
"""Steps per forward pass without gradients. Bounds memory for images."""


class RewardEnsemble(nn.Module):
    """An ensemble of reward networks.

    Each member's output is normalised to mean 0 and standard deviation 1 over the steps it was fitted on (Christiano et al.
    2017, section 2.2.1). The reward is the mean over members.

    Load a saved reward model in three lines::

        from rlhf_ray.reward import RewardEnsemble
        reward = RewardEnsemble.load("runs/pendulum/reward_model")
        rewards = reward.predict(observations, actions, next_observations, terminated)

    Args:
        observation_space: the environment's observation space.
        action_space: the environment's action space, Box or Discrete.
        settings: network architecture, ensemble size and likelihood settings.

    Attributes:
        reward_mean: ``[members]`` float32: mean of each member's raw reward.
        reward_std: ``[members]`` float32: standard deviation of each member's raw reward.
        version: scalar int64: number of fits; 0 before the first one.
    """

    reward_mean: Tensor
    reward_std: Tensor
    version: Tensor

    def __init__(self, observation_space: gym.spaces.Box, action_space: gym.Space[Any], settings: RewardModelSettings):
        super().__init__()
        self.observation_space = observation_space
        self.action_space = action_space
        self.settings = settings
        self.networks = make_network(observation_space, action_space, settings)
        self.register_buffer("reward_mean", torch.zeros(settings.ensemble_size))
        self.register_buffer("reward_std", torch.ones(settings.ensemble_size))
        self.register_buffer("version", torch.zeros((), dtype=torch.int64))

    def member_rewards(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute the normalised reward of each step for each member, without gradients.

        Args:
            observations: ``[batch, *observation_shape]``.
            actions: ``[batch, *action_shape]``, as given to the environment.
            next_observations: ``[batch, *observation_shape]``.
            terminated: ``[batch]`` bool.

        Returns:
            ``[members, batch]`` float32.
        """
        raw = self.raw_rewards(observations, actions, next_observations, terminated)
        return (raw - self.reward_mean[:, None]) / self.reward_std[:, None]

    def raw_rewards(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """Compute the rewards on the likelihood's scale, as `member_rewards` but not normalised."""
        rewards = []
        with torch.no_grad():
            for start in range(0, len(observations), CHUNK):
                part = slice(start, start + CHUNK)
                frames = torch.stack([observations[part], next_observations[part]], 1)
                inputs = self.networks.encode(frames, actions[part].unsqueeze(1), terminated[part])
                rewards.append(self.networks(inputs).squeeze(-1))
        return torch.cat(rewards, 1)

    def predict(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """Compute the reward of ``n`` steps: the mean of `member_rewards` over members.

        Args:
            observations: ``[n, *observation_shape]``.
            actions: ``[n, *action_shape]``, as given to the environment.
            next_observations: ``[n, *observation_shape]``.
            terminated: ``[n]`` bool.

        Returns:
            ``[n]`` float32.
        """
        arguments = [torch.as_tensor(np.asarray(a)) for a in (observations, actions, next_observations, terminated)]
        mean: FloatArray = self.member_rewards(*arguments).mean(0).numpy()
        return mean

    def fragment_returns(self, fragments: Fragments) -> FloatArray:
        """Compute the return of each fragment for each member, on the likelihood's scale.

        Returns are discounted with `RewardModelSettings.discount` and not normalised: the difference of two is the log odds
        that a member assigns to the pair.

        Returns:
            ``[members, n]`` float32.
        """
        n, length = fragments.rewards.shape
        rewards, at_once = [], max(1, CHUNK // length)
        with torch.no_grad():
            for start in range(0, n, at_once):
                rewards.append(self.networks(self.encode(fragments[start : start + at_once])))
        returns: FloatArray = (torch.cat(rewards, 1) @ discounts(length, self.settings.discount)).numpy()
        return returns

    def encode(self, fragments: Fragments) -> dict[str, Tensor]:
        """Compute the networks' inputs for ``fragments`` (`RewardNetwork.encode`), on the CPU."""
        encoded: dict[str, Tensor] = self.networks.encode(
            *(torch.as_tensor(np.array(of)) for of in (fragments.observations, fragments.actions, fragments.terminated))
        )
        return encoded

    def state(self) -> dict[str, Array]:
        """Return weights, normalisers and version as numpy arrays (copies): one complete version."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.state_dict().items()}

    def load_state(self, state: dict[str, Array]) -> None:
        """Restore what `state` returned."""
        self.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in state.items()})

    def save(self, directory: Path | str) -> None:
        """Write ``reward.safetensors`` and ``reward.json`` to ``directory``, which is created if missing."""
        directory = Path(directory)
        directory.mkdir(parents=True, exist_ok=True)
        save_file(
            {name: value.contiguous() for name, value in self.state_dict().items()}, directory / "reward.safetensors"
        )
        description = {
            "format": FORMAT,
            "version": int(self.version),
            "observation_space": space_to_json(self.observation_space),
            "action_space": space_to_json(self.action_space),
            "settings": to_json(self.settings),
        }
        (directory / "reward.json").write_text(json.dumps(description, indent=2) + "\n")

    @staticmethod
    def load(directory: Path | str) -> RewardEnsemble:
        """Load the reward model saved in ``directory``.

        Raises:
            ValueError: the folder holds no reward model, or its format is unknown to this version.
        """
        directory = Path(directory)
        try:
            description = json.loads((directory / "reward.json").read_text())
        except FileNotFoundError as error:
            raise ValueError(f"{directory} holds no reward model: it has no reward.json.") from error
        if description["format"] != FORMAT:
            raise ValueError(f"{directory} has format {description['format']!r}; this version reads {FORMAT!r}.")
        observation_space = space_from_json(description["observation_space"])
        assert isinstance(observation_space, gym.spaces.Box)  # networks accept no other space
        with torch.random.fork_rng(
            devices=[]
        ):  # the initial weights are overwritten below: keep the caller's random stream unchanged
            ensemble = RewardEnsemble(
                observation_space,
                space_from_json(description["action_space"]),
                from_json(RewardModelSettings, description["settings"]),
            )
        ensemble.load_state_dict(load_file(directory / "reward.safetensors"))
        return ensemble
