"""Rewards that read the steps before, applied to an episode: each step gets the last reward of the fragment that ends with it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def last_of_windows(
    networks: Any, observations: Tensor, actions: Tensor, terminated: bool, window: int, most_steps: int
) -> Tensor:
    """Compute the reward of each step of an episode from the steps up to it.

    Windows slide by one step: every step but the first ones has a whole window, as long as the fragments of a fit. That costs
    ``window`` times the work of a pass over the episode. The first steps, which have fewer before them, are one pass over the first
    window, because the network is causal.

    Args:
        networks: a `rlhf_ray.reward.networks.RewardNetwork` that reads only earlier steps.
        observations: ``[n + 1, …]``.
        actions: ``[n, …]``.
        terminated: whether the last step terminated the episode.
        window: steps of a window.
        most_steps: of one forward pass.

    Returns:
        ``[members, n]`` float32, on the likelihood's scale.
    """
    n = len(actions)
    first = min(window, n)
    ends = torch.zeros(1, dtype=torch.bool, device=observations.device)
    ends[0] = terminated and first == n
    parts = [networks(networks.encode(observations[None, : first + 1], actions[None, :first], ends)).squeeze(1)]
    steps = torch.arange(window, device=observations.device)
    at_once = max(1, most_steps // window)
    for start in range(1, n - window + 1, at_once):
        begin = torch.arange(start, min(start + at_once, n - window + 1), device=observations.device)
        rows = begin[:, None] + steps
        frames = torch.cat([observations[rows], observations[rows[:, -1:] + 1]], 1)
        ends = (rows[:, -1] == n - 1) & terminated
        parts.append(networks(networks.encode(frames, actions[rows], ends))[..., -1])
    return torch.cat(parts, 1)
