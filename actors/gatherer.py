"""Gatherer: gets answers to pairs. This one asks a scripted teacher, who answers at once."""

from __future__ import annotations

import numpy as np

from rlhf_ray.comparisons import Comparisons, Pairs
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import make_teacher


class SyntheticGatherer:
    """Answers pairs with the scripted teacher that ``settings`` names.

    The teacher's chances come from a generator seeded with the round's number, so that asking again gives the same answers.
    """

    def __init__(self, settings: PreferenceSettings, seed: int):
        self.teacher = make_teacher(settings.teacher, settings.rationality)
        self.seed = seed

    def gather(self, pairs: Pairs, round_number: int) -> Comparisons:
        """The teacher's answers to ``pairs``."""
        return Comparisons(pairs, self.teacher.answer(pairs, np.random.default_rng([self.seed, 2, round_number])))
