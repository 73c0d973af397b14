"""Checks of attributions: completeness, untrained networks, permuted labels, agreement with interventions.

Each asks whether a map shows what the function learned, or only what is in the picture (Adebayo et al. 2018; Yeh et al. 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.attribution.faithfulness import rank_correlation
from rlhf_ray.interpret.attribution.interventions import PartEffects, part_effects
from rlhf_ray.interpret.attribution.method import Method, contributions
from rlhf_ray.interpret.attribution.question import Maps, Question
from rlhf_ray.study.section import Check

GAP = 0.05
"""Largest gap of a complete map, in units of the question."""
SIMILAR = 0.5
"""Rank correlation with the maps of a network that learned nothing from which a map is not about this function."""
AGREEMENT = 0.4
"""Least rank correlation with interventions."""
PARTS = 8
"""Least number of parts: of fewer, two maps that have nothing to do with each other often have the same order."""
FIRST = 7919
"""Added to the seeds of new networks: with the seed of the function's own training, they would start from its initial weights."""
MAPS = {
    "untrained": ("untrained network", "The maps of untrained networks"),
    "permuted": ("permuted labels", "The maps after learning permuted outputs"),
}
UNTRAINED = PERMUTED = 2
"""Networks that learned nothing: the mean over them is less a matter of luck."""


@dataclass(frozen=True)
class Judged:
    """A method's maps with the checks they went through.

    Attributes:
        method: the method.
        maps: its maps of the steps that the checks use.
        checks: the checks.
        infidelity: mean squared difference of part sums and interventions' effects over the effects' mean square; 1 is no better
            than an empty map.
    """

    method: Method
    maps: Maps
    checks: tuple[Check, ...]
    infidelity: float

    @property
    def crossed_out(self) -> str | None:
        """Why not to trust the maps; None if no check failed."""
        failed = [check.remedy for check in self.checks if check.passed is False]
        return " ".join(failed) or None


class Judge:
    """Runs all checks of methods on the same moments, against the same other networks and interventions.

    Args:
        question: the function.
        moments: those that the checks use.
        updates: gradient steps of the networks that learn permuted outputs.
    """

    def __init__(self, question: Question, moments: Any, updates: int = 150):
        self.question, self.moments, self.updates = question, moments, updates

    @cached_property
    def effects(self) -> PartEffects:
        """Effects of the matching intervention: each part exchanged with other moments'; cells get their most frequent code."""
        return part_effects(self.question, self.moments, "typical" if self.question.coded else "donor")

    @cached_property
    def exchanged(self) -> PartEffects:
        """As `effects`, exchanged with other moments' in any case."""
        return part_effects(self.question, self.moments) if self.question.coded else self.effects

    @cached_property
    def untrained(self) -> list[Question]:
        """Questions about networks like the function's with new weights; empty if there are none."""
        questions = [self.question.untrained(FIRST + self.question.seed + i) for i in range(UNTRAINED)]
        return [question for question in questions if question is not None]

    @cached_property
    def permuted(self) -> list[Question]:
        """Questions about networks that learned the function's outputs, permuted; empty if none can be trained."""
        first = FIRST + self.question.seed + UNTRAINED
        questions = [self.question.permuted(first + i, self.updates, i) for i in range(PERMUTED)]
        return [question for question in questions if question is not None]

    def judge(self, method: Method) -> Judged:
        """Compute a method's maps and check them."""
        maps = contributions(method, self.question, self.moments)
        sums = self.question.part_sums(maps)
        if not self.question.unit:
            return Judged(
                method,
                maps,
                (Check("differs from chance", None, remedy="The output is constant."),),
                0.0,
            )
        checks = [self._completeness(maps)] if method.complete else []
        checks += [
            self._differs("untrained", method, sums, self.untrained),
            self._differs("permuted", method, sums, self.permuted),
            self._agreement(method, sums),
        ]
        size = float(np.square(self.effects.signed).mean())
        infidelity = float(np.square(sums - self.effects.signed).mean()) / size if size else 0.0
        return Judged(method, maps, tuple(checks), infidelity)

    def _completeness(self, maps: Maps) -> Check:
        error = float(self.question.gap(self.moments, maps).max()) / self.question.unit
        remedy = f"Its sums miss the output's difference by up to {error:.2g} of its standard deviation."
        return _check("completeness", error < GAP, error, f"< {GAP}", remedy)

    def _differs(self, key: str, method: Method, sums: FloatArray, others: Sequence[Question]) -> Check:
        parts = int(self.question.varies.sum())
        name, maps = MAPS[key]
        bound = f"< {SIMILAR}"
        if not others:
            return Check(name, None, bound=bound, remedy="This function has no weights to draw anew.")
        if parts < PARTS:
            few = f"Only {parts} parts of the input vary: the maps of any two networks may look alike by chance."
            return Check(name, None, bound=bound, remedy=few)
        correlations = [
            self._correlation(method, sums, other.part_sums(contributions(method, other, self.moments)))
            for other in others
        ]
        value = float(np.mean(correlations))
        remedy = f"{maps} look alike (rank correlation {value:.2f}): it shows what the data have there, not what was learned."
        return _check(name, value < SIMILAR, value, bound, remedy)

    def _correlation(self, method: Method, sums: FloatArray, others: FloatArray) -> float:
        varies = self.question.varies
        mine, theirs = sums[:, varies], others[:, varies]
        return rank_correlation(mine, theirs) if method.signed else rank_correlation(abs(mine), abs(theirs))

    def _agreement(self, method: Method, sums: FloatArray) -> Check:
        varies = self.question.varies
        if varies.sum() < 2:
            return Check("agreement with interventions", None, remedy="Fewer than two parts vary in the data.")
        effects = self.exchanged if method.name == "occlusion_donor" else self.effects
        value = rank_correlation(abs(sums[:, varies]), effects.size[:, varies])
        remedy = f"It ranks the parts otherwise than exchanging them does (rank correlation {value:.2f})."
        return _check("agreement with interventions", value > AGREEMENT, value, f"> {AGREEMENT}", remedy)


def _check(name: str, passed: bool, value: float, bound: str, remedy: str) -> Check:
    return Check(name, passed, value, bound=bound, remedy="" if passed else remedy)
