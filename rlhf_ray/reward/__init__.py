"""The reward model: networks, ensemble, preference likelihood, training and saving."""

from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.reward.trainer import RewardTrainer

__all__ = ["FitReport", "RewardEnsemble", "RewardTrainer"]
