"""The probe set: a fixed set of fragments on which reward versions are compared.

Each fit changes the scale and the origin of the learned reward, so learned returns of two versions don't compare. On the same
fragments they do: what changes there is the reward, not the policy. `gain` measures the policy in the probe set's own units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import settled
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.measure.intervals import rank_correlation
from rlhf_ray.reward.ensemble import RewardEnsemble


@dataclass(frozen=True)
class ProbeReading:
    """What one reward version says about the probe set.

    Attributes:
        version: the reward version.
        returns: ``[fragments]`` learned return of each fragment.
        mean, std: mean and standard deviation of the learned reward per step.
    """

    version: int
    returns: FloatArray
    mean: float
    std: float

    @staticmethod
    def of(reward: RewardEnsemble, probe: Fragments) -> ProbeReading:
        """Read the probe set with a reward version."""
        rewards = learned_rewards(reward, probe)
        return ProbeReading(int(reward.version), rewards.sum(1), float(rewards.mean()), float(rewards.std()))

    def gain(self, learned_reward_mean: float) -> float:
        """Return how far a policy's mean learned reward per step is above the probe set's, in its standard deviations."""
        return (learned_reward_mean - self.mean) / self.std if self.std > 0 else math.nan

    def drift(self, earlier: ProbeReading) -> float:
        """Return one minus the rank correlation of the returns with an earlier version's: 0 for the same order, 2 opposite."""
        return 1 - rank_correlation(self.returns, earlier.returns, interval=False).mean

    def truth(self, probe: Fragments) -> float:
        """Return the rank correlation of the returns with the true ones; NaN where these are unknown or constant."""
        return rank_correlation(self.returns, settled(probe.rewards), interval=False).mean


def learned_rewards(reward: RewardEnsemble, fragments: Fragments) -> FloatArray:
    """Compute the learned reward of each step, as `RewardEnsemble.combine` has it: ``[fragments, length]`` float64."""
    parts, at_once = [], max(1, reward.at_once // fragments.length)
    with torch.no_grad():
        for start in range(0, len(fragments), at_once):
            raw = reward.networks(reward.encode(fragments[start : start + at_once]))
            members = (raw - reward.reward_mean[:, None, None]) / reward.reward_std[:, None, None]
            parts.append(reward.combine(members))
        return np.asarray(torch.cat(parts).double().numpy())
