"""Rewards learned by supervision: a reward model fitted to recorded rewards instead of comparisons."""

from rlhf_ray.reward.supervised.fitting import fit_to_rewards
from rlhf_ray.reward.supervised.report import AdversarialReport, RewardLevel, SupervisedReport

__all__ = ["AdversarialReport", "RewardLevel", "SupervisedReport", "fit_to_rewards"]
