"""Teachers that are wrong in a way of their own: about close pairs, about the keys, or about everything."""

from __future__ import annotations

import copy

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs, differences
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.teachers.margins import signed_margins
from rlhf_ray.teachers.simulated import SimulatedTeacher
from rlhf_ray.teachers.teacher import Feature, Teacher, plain

MARGIN = 0.1
"""Pairs closer than this are hard: people err in more than a third of them (`rlhf_ray.teachers.HumanLike`)."""


class Systematic:
    """An oracle that judges close pairs by one wrong feature, the same every time: nothing is left to chance.

    Pairs whose returns are at least ``margin`` apart (`rlhf_ray.teachers.margins`) are answered by the true return, closer ones by
    the feature: the fragment with more of it is preferred, whatever the returns. Equal features are "equally good". More answers do
    not average such errors out.

    Args:
        name: the annotator's name in the store.
        margin: below it the feature decides, 0 or more; without unit, as a share of the spread of returns.
        feature: what decides close pairs, ``[n, k]`` floats of ``n`` fragments, of which the sums are compared. By default the mean
            of the observations' first number; of images, the mean brightness.

    Raises:
        SettingError: ``margin`` is out of range.
    """

    def __init__(self, name: str = "systematic", *, margin: float = MARGIN, feature: Feature | None = None):
        if not margin >= 0:
            raise SettingError(f"margin of the annotator {name} is {margin}; it must be 0 or more.")
        self.name, self.margin, self.feature = name, margin, feature or first_number

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`. Draws nothing."""
        margins = signed_margins(pairs)
        misled = differences(*(np.asarray(self.feature(copy.deepcopy(side))) for side in (pairs.left, pairs.right)))
        decides = np.where(np.abs(margins) < self.margin, misled, margins)
        return ((np.sign(decides) + 1.0) / 2.0).astype(np.float32)


class Inverted:
    """Answers the opposite of another teacher, as someone does who mixed up the keys. Skips and ties stay as they are.

    Args:
        teacher: what the annotator means to answer. By default the oracle.
        name: the annotator's name in the store.
    """

    def __init__(self, teacher: Teacher | None = None, name: str = "inverted"):
        self.name, self.teacher = name, teacher or SimulatedTeacher(name)

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        return (1.0 - plain(self.teacher.answer(pairs, rng))).astype(np.float32)


class Guessing:
    """Answers left or right at random, each half of the time, without looking. Needs no true rewards.

    Args:
        name: the annotator's name in the store.
    """

    def __init__(self, name: str = "guessing"):
        self.name = name

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        return rng.integers(0, 2, len(pairs)).astype(np.float32)


def first_number(fragments: Fragments) -> FloatArray:
    """The mean over a fragment of the first number of its observations; of images, of all: ``[n, 1]`` float64."""
    seen = fragments.observations
    per_step = seen.reshape(*seen.shape[:2], -1)
    numbers = per_step if seen.ndim > 3 else per_step[:, :, :1]
    means: FloatArray = numbers.astype(np.float64).reshape(len(seen), -1).mean(1, keepdims=True)
    return means
