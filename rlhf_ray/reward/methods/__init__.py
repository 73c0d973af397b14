"""Methods: additions to a fit of the reward ensemble, one file each. `RewardModelSettings.methods` names those that a fit uses."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_ray.data.registry import Registry
from rlhf_ray.reward.methods.method import FitLabels as FitLabels
from rlhf_ray.reward.methods.method import FitMethod as FitMethod
from rlhf_ray.reward.methods.rime import Rime
from rlhf_ray.reward.methods.rune import Rune
from rlhf_ray.reward.methods.surf import Surf
from rlhf_ray.settings import RewardModelSettings

UNLABELLED_PAIRS = 512
"""Pairs without labels that each fit gets from the clip pool, if a method wants any."""

METHODS: Registry[FitMethod] = Registry("reward_model.methods", FitMethod, {"surf": Surf, "rime": Rime, "rune": Rune})
"""Built-in methods by name."""


def make_methods(settings: RewardModelSettings) -> Sequence[FitMethod]:
    """Make the methods that ``settings.methods`` names, in this order.

    Raises:
        SettingError: no method has such a name, or it doesn't behave like a `FitMethod`.
    """
    return [METHODS.make(name, settings=settings) for name in settings.methods]


def unlabelled_pairs(settings: RewardModelSettings) -> int:
    """Return the number of pairs without labels that each fit wants; 0 for none."""
    return UNLABELLED_PAIRS if any(method.unlabelled_ratio for method in make_methods(settings)) else 0
