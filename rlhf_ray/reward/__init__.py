"""The reward model: networks, ensemble, preference likelihood, fitting and saving."""

from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.reward.fitting import fit
from rlhf_ray.reward.trainer import RewardTrainer

__all__ = ["FitReport", "RewardEnsemble", "RewardTrainer", "fit"]
