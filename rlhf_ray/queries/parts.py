"""The parts that settings name, tried before a run begins: a name that stands for nothing is one line, not a dead actor."""

from __future__ import annotations

from rlhf_ray.queries.gatherers import GATHERERS
from rlhf_ray.queries.selection import SELECTIONS
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.teachers import TEACHERS


def check_parts(preferences: PreferenceSettings, reward_model: RewardModelSettings) -> None:
    """Find and try everything that is named, but for the network, which needs the environment's spaces.

    Raises:
        SettingError: with the setting, its value and what is asked of such a part.
    """
    SELECTIONS.make(preferences.selection)
    GATHERERS.check(preferences.gatherer)  # which is made where it works, with what stores its answers
    if preferences.teacher != "human":
        TEACHERS.make(preferences.teacher, settings=preferences)
    if reward_model.loss != "bradley_terry":
        from rlhf_ray.reward.likelihood import make_loss  # torch: a large import

        make_loss(reward_model)
