"""The reward ensemble: networks, their normalisers and a version number, which travel together."""

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
from rlhf_ray.reward.likelihood import discounts
from rlhf_ray.reward.networks import make_network
from rlhf_ray.reward.spaces import space_from_json, space_to_json
from rlhf_ray.settings import RewardModelSettings, from_json, to_json

FORMAT = "rlhf_ray.reward/1"
CHUNK = 4096
"""Steps per forward pass where gradients are not needed: bounds memory for images."""


class RewardEnsemble(nn.Module):
    """An ensemble of reward networks.

    Each member's output is normalised to mean 0 and standard deviation 1 over the steps it was fitted on (Christiano et al.
    2017, section 2.2.1), and the reward is the mean over members.

    Load a saved one in three lines::

        from rlhf_ray.reward import RewardEnsemble
        reward = RewardEnsemble.load("runs/pendulum/reward_model")
        rewards = reward.predict(observations, actions, next_observations, terminated)

    Args:
        observation_space: what the environment gives.
        action_space: what it takes.
        settings: the networks.
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
        """Normalised reward of each step for each member, ``[members, batch]`` float32, without gradients.

        Args:
            observations: ``[batch, *observation_shape]``.
            actions: ``[batch, *action_shape]``, as given to the environment.
            next_observations: ``[batch, *observation_shape]``.
            terminated: ``[batch]`` bool.
        """
        raw = self.raw_rewards(observations, actions, next_observations, terminated)
        return (raw - self.reward_mean[:, None]) / self.reward_std[:, None]

    def raw_rewards(
        self, observations: Tensor, actions: Tensor, next_observations: Tensor, terminated: Tensor
    ) -> Tensor:
        """The same on the likelihood's scale, as the networks were fitted: not normalised."""
        rewards = []
        with torch.no_grad():
            for start in range(0, len(observations), CHUNK):
                part = slice(start, start + CHUNK)
                frames = torch.stack([observations[part], next_observations[part]], 1)
                inputs = self.networks.encode(frames, actions[part].unsqueeze(1), terminated[part])
                rewards.append(self.networks(inputs).squeeze(-1))
        return torch.cat(rewards, 1)

    def predict(self, observations: Array, actions: Array, next_observations: Array, terminated: Array) -> FloatArray:
        """The reward of each of ``n`` steps, ``[n]`` float32, from numpy arrays (shapes as in `member_rewards`)."""
        arguments = [torch.as_tensor(np.asarray(a)) for a in (observations, actions, next_observations, terminated)]
        mean: FloatArray = self.member_rewards(*arguments).mean(0).numpy()
        return mean

    def fragment_returns(self, fragments: Fragments) -> FloatArray:
        """The return of each fragment for each member as the likelihood has it, ``[members, n]`` float32.

        With `RewardModelSettings.discount` and not normalised: the difference of two is the log odds that a member gives the pair.
        """
        n, length = fragments.rewards.shape
        rewards, at_once = [], max(1, CHUNK // length)
        with torch.no_grad():
            for start in range(0, n, at_once):
                rewards.append(self.networks(self.encode(fragments[start : start + at_once])))
        returns: FloatArray = (torch.cat(rewards, 1) @ discounts(length, self.settings.discount)).numpy()
        return returns

    def encode(self, fragments: Fragments) -> dict[str, Tensor]:
        """What the networks take of ``fragments`` (`RewardNetwork.encode`), on the CPU."""
        encoded: dict[str, Tensor] = self.networks.encode(
            *(torch.as_tensor(np.array(of)) for of in (fragments.observations, fragments.actions, fragments.terminated))
        )
        return encoded

    def state(self) -> dict[str, Array]:
        """Weights, normalisers and version as numpy arrays (copies): one whole version."""
        return {name: value.detach().cpu().numpy().copy() for name, value in self.state_dict().items()}

    def load_state(self, state: dict[str, Array]) -> None:
        """The inverse of `state`."""
        self.load_state_dict({name: torch.as_tensor(np.array(value)) for name, value in state.items()})

    def save(self, directory: Path | str) -> None:
        """Write ``reward.safetensors`` and ``reward.json`` to ``directory``."""
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
        """The reward model saved in ``directory``.

        Raises:
            ValueError: the folder holds no reward model, or one of a format this version does not read.
        """
        directory = Path(directory)
        try:
            description = json.loads((directory / "reward.json").read_text())
        except FileNotFoundError as error:
            raise ValueError(f"{directory} holds no reward model (no reward.json in it).") from error
        if description["format"] != FORMAT:
            raise ValueError(f"{directory} has format {description['format']!r}; this version reads {FORMAT!r}.")
        observation_space = space_from_json(description["observation_space"])
        assert isinstance(observation_space, gym.spaces.Box)  # networks take no other
        with torch.random.fork_rng(
            devices=[]
        ):  # the weights drawn here are overwritten: nobody else's draws should shift
            ensemble = RewardEnsemble(
                observation_space,
                space_from_json(description["action_space"]),
                from_json(RewardModelSettings, description["settings"]),
            )
        ensemble.load_state_dict(load_file(directory / "reward.safetensors"))
        return ensemble
