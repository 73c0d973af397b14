"""What an attribution method is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.interpret.attribution.question import Maps, Question


class Method(ABC):
    """An attribution method: how much each element of each input contributes to what a function computes.

    Attributes:
        name: name in tables and file names; by default the class's.
        title: what texts call it; by default the name.
        signed: whether the maps tell what raises the output from what lowers it. The sign of a gradient does not, since it says
            nothing about the input's own value: reports about rewards show its size.
        complete: whether the maps should add up to the difference between the output and that of typical inputs.
    """

    name: str
    title: str
    signed: bool = True
    complete: bool = False

    def __init_subclass__(cls, **options: Any) -> None:
        """Name the method."""
        super().__init_subclass__(**options)
        if "name" not in vars(cls):
            cls.name = cls.__name__
        if "title" not in vars(cls):
            cls.title = cls.name if isinstance(cls.name, str) else cls.__name__

    def why_not(self, question: Question) -> str | None:
        """Return why the method does not apply, in one sentence; None if it does."""
        return None

    @abstractmethod
    def attribute(self, question: Question, moments: Any) -> Maps:
        """Compute the maps of ``moments``, for each of the question's inputs.

        Args:
            question: what is asked, with the typical values of its inputs.
            moments: steps that the question can be asked about: `Transitions` for rewards, `WorldMoments` for agents.

        Returns:
            For each of ``question.names``, ``[n, *shape]`` in units of the output.
        """


def attribute(method: Method, question: Question, moments: Any) -> Maps:
    """Compute a method's maps and check their names, shapes and values.

    Raises:
        SettingError: they are not those that `Method.attribute` promises.
    """
    maps = method.attribute(question, moments)
    wanted = {name: (len(moments), *question.parts(name)[1].shape[1:]) for name in question.names}
    shapes = {name: np.shape(values) for name, values in maps.items()}
    if shapes != wanted:
        raise SettingError(f"The attribution method {method.name!r} returned maps {shapes}; it must return {wanted}.")
    if not all(np.isfinite(values).all() for values in maps.values()):
        raise SettingError(f"The attribution method {method.name!r} returned maps that are not finite.")
    return {name: np.asarray(maps[name], np.float64) for name in question.names}


def contributions(method: Method, question: Question, moments: Any) -> Maps:
    """Compute a method's maps; their sizes alone if their signs tell nothing."""
    maps = attribute(method, question, moments)
    return maps if method.signed else {name: np.abs(values) for name, values in maps.items()}
