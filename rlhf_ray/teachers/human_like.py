"""A simulated human: skips and errs where the returns are close, as often as people do."""

from __future__ import annotations

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.teachers.margins import signed_margins

SKIP, SKIP_SCALE, ERROR, ERROR_SCALE = 0.45, 0.15, 0.5, 0.33
"""Fitted to the published answers of CLARIFY's people and Uni-RLHF's crowd (arXiv 2506.00388; arXiv 2402.02423)."""


class HumanLike:
    """A teacher that skips and errs as people do: often where the true returns are close, hardly ever where they are far apart.

    With the margin ``m = |R_left - R_right| / spread`` (`rlhf_ray.teachers.margins`), it skips a pair with probability
    ``skip * exp(-m / skip_scale)``, and an answer is wrong with probability ``error * exp(-m / error_scale)``. So it answers equal
    returns by the toss of a coin, with ``error`` at one half, and never calls a pair equal. The curves are fitted to the published
    answers of CLARIFY's people and Uni-RLHF's crowd (arXiv 2506.00388; arXiv 2402.02423). The teacher has no state: the same pairs
    and generator give the same answers.

    Args:
        name: the annotator's name in the store.
        skip: probability of a skip at margin 0, in [0, 1].
        skip_scale: margin at which the probability of a skip has fallen to 1/e, above 0.
        error: probability that an answer is wrong at margin 0, in [0, 1].
        error_scale: margin at which the probability of a wrong answer has fallen to 1/e, above 0.

    Raises:
        SettingError: a parameter is out of range.
    """

    def __init__(
        self,
        name: str = "human_like",
        *,
        skip: float = SKIP,
        skip_scale: float = SKIP_SCALE,
        error: float = ERROR,
        error_scale: float = ERROR_SCALE,
    ):
        for parameter, value, valid, rule in (
            ("skip", skip, 0 <= skip <= 1, "between 0 and 1"),
            ("skip_scale", skip_scale, skip_scale > 0, "above 0"),
            ("error", error, 0 <= error <= 1, "between 0 and 1"),
            ("error_scale", error_scale, error_scale > 0, "above 0"),
        ):
            if not valid:
                raise SettingError(f"{parameter} of the annotator {name} is {value}; it must be {rule}.")
        self.name, self.skip, self.skip_scale = name, skip, skip_scale
        self.error, self.error_scale = error, error_scale

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        """See `Teacher.answer`."""
        margins = signed_margins(pairs)
        skips, errors = self.rates(np.abs(margins))
        skipped = rng.random(len(pairs)) < skips
        wrong = rng.random(len(pairs)) < errors
        answers = np.where((margins > 0) != wrong, 1.0, 0.0)
        answers[skipped] = np.nan
        return answers.astype(np.float32)

    def rates(self, margins: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the probability of a skip, and of a wrong answer where there is one, for margins of 0 or more."""
        return self.skip * np.exp(-margins / self.skip_scale), self.error * np.exp(-margins / self.error_scale)
