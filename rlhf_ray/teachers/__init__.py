"""Teachers answer comparisons in place of a person."""

from __future__ import annotations

from functools import partial
from typing import Any

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.registry import Registry
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers.annotators import (
    Annotator,
    Guessing,
    HumanLike,
    Inverted,
    Leaving,
    Population,
    Renamed,
    Systematic,
    six_annotators,
)
from rlhf_ray.teachers.teacher import NOBODY, Answers, Oracle, SimulatedTeacher, Stochastic, Teacher

PRESETS: dict[str, tuple[str, ...]] = {
    "oracle": (),
    "stochastic": ("rationality",),
    "mistake": ("mistake",),
    "skip": ("skip",),
    "equal": ("equal",),
    "myopic": ("myopia",),
    "soft": ("rationality", "soft"),
}
"""Which parameters of `SimulatedTeacher` each preset takes from the settings of the same name. The first six are B-Pref's."""


def simulated(name: str, settings: PreferenceSettings) -> SimulatedTeacher:
    """Make the teacher that ``name`` describes: one preset, or several joined by ``+``, such as ``stochastic+mistake``."""
    parameters = {parameter for preset in name.split("+") for parameter in PRESETS[preset]}
    values = {parameter: True if parameter == "soft" else getattr(settings, parameter) for parameter in parameters}
    return SimulatedTeacher(name, discount=settings.teacher_discount, **values)


class _Teachers(Registry[Teacher]):
    """Knows joined presets too."""

    def make(self, name: str, **offered: Any) -> Teacher:
        """See `Registry.make`."""
        joined = name.split("+")
        if len(joined) > 1 and all(preset in PRESETS for preset in joined):
            return simulated(name, offered["settings"])
        if len(joined) > 1:
            wrong = next(preset for preset in joined if preset not in PRESETS)
            raise SettingError(
                f"{self.setting} is {name!r}, but {wrong!r} can't be joined by +; only {', '.join(PRESETS)} can."
            )
        teacher = super().make(name, **offered)
        if not isinstance(teacher.name, str) or not teacher.name:
            raise SettingError(
                f"{self.setting} is {name!r}, whose name is {teacher.name!r}; it must be a text, the annotator's in the store."
            )
        return teacher


ANNOTATORS = _Teachers(
    "preferences.annotators",
    Teacher,
    {name: partial(simulated, name) for name in PRESETS}
    | {
        "human_like": HumanLike,
        "systematic": Systematic,
        "inverted": lambda settings: Inverted(SimulatedTeacher("inverted", discount=settings.teacher_discount)),
        "guessing": Guessing,
    },
)
"""Built-in teachers who are one annotator each, by name."""


def population(settings: PreferenceSettings) -> Population:
    """Make the population of ``settings.annotators``; of six annotators (`six_annotators`) if there are none.

    A second annotator of one name is called ``oracle_2``, and so on.

    Raises:
        SettingError: an annotator is no teacher.
    """
    entries = settings.annotator_entries
    if not entries:
        return six_annotators(settings.rationality)
    annotators: dict[str, Teacher] = {}
    for entry in entries:
        teacher = ANNOTATORS.make(entry.teacher, settings=settings)
        name, number = teacher.name, 2
        while name in annotators:
            name, number = f"{teacher.name}_{number}", number + 1
        if name != teacher.name:
            teacher = Renamed(teacher, name)
        annotators[name] = teacher if entry.after is None else Leaving(teacher, entry.after)
    return Population(list(annotators.values()), [entry.share for entry in entries])


TEACHERS = _Teachers(
    "preferences.teacher",
    Teacher,
    {**ANNOTATORS.parts, "population": population},
    others=("human", "machine", "machine+human"),
)
"""Built-in teachers by name."""

__all__ = [
    "NOBODY",
    "PRESETS",
    "TEACHERS",
    "Annotator",
    "Answers",
    "Guessing",
    "HumanLike",
    "Inverted",
    "Leaving",
    "Oracle",
    "Population",
    "Renamed",
    "SimulatedTeacher",
    "Stochastic",
    "Systematic",
    "Teacher",
]
