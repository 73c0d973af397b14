"""Gatherer: gets answers to pairs. This one asks a scripted teacher."""

from __future__ import annotations

import time

import numpy as np

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import make_teacher


class SyntheticGatherer:
    """Answers pairs with the scripted teacher that ``settings`` names.

    The teacher's chances come from a generator seeded with the round's number, so that asking again gives the same answers.
    """

    def __init__(self, settings: PreferenceSettings, seed: int):
        self.name = settings.teacher
        self.teacher = make_teacher(settings.teacher, settings.rationality)
        self.answer_seconds = settings.answer_seconds
        self.seed = seed

    def gather(self, pairs: Pairs, round_number: int, part: slice = slice(None)) -> Comparisons:
        """The teacher's answers to the pairs in ``part`` of ``pairs``: the same ones in however many parts they are asked for."""
        preferences = self.teacher.answer(pairs, np.random.default_rng([self.seed, 2, round_number]))
        answers = Comparisons(pairs, preferences, (self.name,) * len(pairs))[part]
        time.sleep(self.answer_seconds * len(answers))
        return answers
