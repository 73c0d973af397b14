"""The reward model: networks, ensemble, preference likelihood, fitting, saving."""

from rlhf_ray.reward.ensemble import RewardEnsemble
from rlhf_ray.reward.trainer import RewardTrainer

__all__ = ["RewardEnsemble", "RewardTrainer"]
