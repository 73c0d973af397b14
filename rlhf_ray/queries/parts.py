"""Checks the parts that settings name before a run starts, so that a wrong name is a one-line error and not a dead actor."""

from __future__ import annotations

from rlhf_ray.queries.gatherers import GATHERERS
from rlhf_ray.queries.machine import check as check_machine
from rlhf_ray.queries.schedule import make_rate
from rlhf_ray.queries.selection import SELECTIONS
from rlhf_ray.settings import MachineSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.settings.checks import require
from rlhf_ray.teachers import TEACHERS


def check_parts(
    preferences: PreferenceSettings, reward_model: RewardModelSettings, machine: MachineSettings | None = None
) -> None:
    """Find and try all named parts except the network, which needs the environment's spaces; ``machine`` if that is the teacher.

    Raises:
        SettingError: a part is missing or invalid. The message names the setting, the value and what such a part needs.
    """
    make_rate(preferences.schedule, preferences.steepness)
    SELECTIONS.make(preferences.selection, reward_model=reward_model)
    GATHERERS.check(preferences.gatherer_in_use)  # made later in its own actor, with the store's commit
    if preferences.asks_machine:
        check_machine(machine or MachineSettings())
        beside = "people answer beside the machine, which needs preferences.mode=asynchronous"
        require(
            not preferences.asks_people or preferences.mode == "asynchronous",
            "preferences.mode",
            preferences.mode,
            beside,
        )
    elif preferences.teacher != "human":
        TEACHERS.make(preferences.teacher, settings=preferences)
    if reward_model.loss != "bradley_terry":
        from rlhf_ray.reward.likelihood import make_loss  # imports torch, which is slow

        make_loss(reward_model)
    if reward_model.methods:
        from rlhf_ray.reward.methods import make_methods

        make_methods(reward_model)
