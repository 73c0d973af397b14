"""Methods: additions to a fit of the reward ensemble, one file each. `RewardModelSettings.methods` names those that a fit uses."""

from __future__ import annotations

from collections.abc import Sequence

from rlhf_ray.data.errors import SettingError
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
        SettingError: no method has such a name, it doesn't behave like a `FitMethod`, or it has a hook that is never called.
    """
    methods = [METHODS.make(name, settings=settings) for name in settings.methods]
    for name, method in zip(settings.methods, methods, strict=True):
        for switch, hook in (("revises", "revise"), ("unlabelled_ratio", "unlabelled_loss")):
            own = getattr(type(method), hook, None) is not getattr(FitMethod, hook)
            if bool(getattr(method, switch)) != own:
                raise SettingError(
                    f"reward_model.methods has {name!r}, whose {switch} is {getattr(method, switch)!r} although it has "
                    f"{'a' if own else 'no'} {hook}() of its own: it is called only if {switch} is set."
                )
    return methods


def unlabelled_pairs(settings: RewardModelSettings) -> int:
    """Return the number of pairs without labels that each fit wants; 0 for none."""
    return UNLABELLED_PAIRS if any(method.unlabelled_ratio for method in make_methods(settings)) else 0
