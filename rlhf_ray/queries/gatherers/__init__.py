"""Gatherers get pairs answered and commit the answers. `rlhf_ray.actors.labelling_page` serves people."""

from __future__ import annotations

from typing import Any

from rlhf_ray.data.registry import Registry
from rlhf_ray.queries.gatherers.gatherer import DESERTED, Commit, FramesOf, Gatherer, Skip
from rlhf_ray.queries.gatherers.scripted import ScriptedGatherer, answer_waits
from rlhf_ray.settings import PreferenceSettings

__all__ = ["DESERTED", "GATHERERS", "Commit", "FramesOf", "Gatherer", "ScriptedGatherer", "Skip", "answer_waits"]

GATHERERS: Registry[Gatherer] = Registry("preferences.gatherer", Gatherer, {"scripted": ScriptedGatherer})
"""Built-in gatherers by name."""


def wants_films(preferences: PreferenceSettings) -> bool:
    """Return whether the gatherer that ``preferences.gatherer`` names looks at films: whether its class says so.

    Raises:
        SettingError: there is no such gatherer.
    """
    if preferences.comparisons == 0 or preferences.people_share == 1.0:  # it gets no questions
        return False
    return bool(getattr(GATHERERS.find(preferences.gatherer), "wants_films", False))


def who_sees_films(preferences: PreferenceSettings) -> str | None:
    """Return the setting because of which films are needed, for errors; None if nobody looks at films."""
    if preferences.asks_people:
        return "preferences.teacher is human"
    return f"preferences.gatherer={preferences.gatherer} wants films" if wants_films(preferences) else None


def make_gatherer(
    commit: Commit, skip: Skip, settings: PreferenceSettings, seed: int, films: FramesOf | None = None
) -> Gatherer:
    """Make the gatherer that ``settings.gatherer`` names.

    Args:
        commit: stores answers.
        skip: stores skips.
        settings: the settings.
        seed: the run's seed.
        films: for a gatherer that wants films.

    Raises:
        SettingError: no gatherer has this name, or it doesn't satisfy `Gatherer`.
    """
    offered: dict[str, Any] = {"commit": commit, "skip": skip, "settings": settings, "seed": seed}
    return GATHERERS.make(settings.gatherer, **offered, **({} if films is None else {"films": films}))
