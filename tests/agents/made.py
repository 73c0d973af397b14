"""Agents and episodes for tests, made without training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import torch

from rlhf_ray.agents.agent import NetworkAgent
from rlhf_ray.agents.episodes import Episodes, WindowNumbers
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.interpret.agent.world_model.quality import cut_out
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape


def network_agent(
    observed: gym.Space, acted: gym.Space, memory: str = "gru", seed: int = 0, **shape: Any
) -> NetworkAgent:
    """An untrained agent with clear preferences, and 8 units of memory."""
    network = "small" if observed.dtype == np.uint8 else "mlp"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        whole = {"network": network, "hidden": (16,), "memory": memory, "memory_units": 8, **shape}
        made = ActorCriticNetwork(observed, acted, PolicyShape(**whole))
        for layer in made.actor.modules():
            if isinstance(layer, torch.nn.Linear):
                torch.nn.init.normal_(layer.weight, std=0.5)
    return NetworkAgent(made, observed, acted)


def episodes(n: int, steps: int, **fields: Any) -> Episodes:
    """Episodes of ``steps`` steps that see nothing and terminate; ``fields`` take the place of theirs."""
    numbers = np.zeros((n, steps), np.float32)
    nothing = np.zeros((n, steps + 1, 0), np.float32)
    blank = Episodes(
        observations=nothing, actions=np.zeros((n, steps), np.int64), logits=np.zeros((n, steps, 2), np.float32),
        values=numbers, memory=nothing, rewards=numbers.astype(float), lengths=np.full(n, steps), terminated=np.ones(n, bool),
        truncated=np.zeros(n, bool), causes=[""] * n, levels=np.arange(n),
    )  # fmt: skip
    return replace(blank, **fields)


class EpisodeWindows(WindowNumbers):
    """Windows of ``length`` consecutive observations of ``episodes``; shorter episodes have one window, with padding after it."""

    def __init__(self, episodes: Episodes, length: int):
        super().__init__(episodes.lengths, length)
        self.episodes = episodes

    def __getitem__(self, numbers: Sequence[int] | IntArray) -> Episodes:
        """Return the windows with these numbers."""
        starts = self.starts(numbers)
        return cut_out(self.episodes, starts.rows, starts.steps, self.length)
