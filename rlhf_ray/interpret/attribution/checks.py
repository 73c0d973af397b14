"""Checks of attributions: completeness, untrained networks, permuted labels, agreement with interventions.

Each asks whether a map shows what the function learned, or only what is in the picture (Adebayo et al. 2018; Yeh et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.interpret.attribution.faithfulness import rank_correlation
from rlhf_ray.interpret.attribution.interventions import PartEffects, part_effects
from rlhf_ray.interpret.attribution.question import Maps, Method, Question, contributions
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
NETWORKS = 2
"""Networks that learned nothing, of each kind: the mean over them is less a matter of luck."""


@dataclass(frozen=True)
class Judged:
    """A method's maps of the steps that the checks use, and the checks that they went through.

    The infidelity is the mean squared difference of part sums and interventions' effects over the effects' mean square; 1 is no
    better than an empty map.
    """

    method: Method
    maps: Maps
    checks: tuple[Check, ...]
    infidelity: float

    @property
    def crossed_out(self) -> str | None:
        """Why not to trust the maps; None if no check failed."""
        return " ".join(check.remedy for check in self.checks if check.passed is False) or None

    def to_json(self) -> dict[str, Any]:
        """Return the figures as JSON values."""
        checks = {check.name: {"value": check.value, "passed": check.passed} for check in self.checks}
        return {"crossed_out": self.crossed_out, "infidelity": self.infidelity, "checks": checks}


class Judge:
    """Runs all checks of methods on the same moments, against the same other networks and interventions; no constant functions.

    Networks that learn permuted outputs do so in ``updates`` gradient steps.
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
    def others(self) -> dict[str, list[Question]]:
        """Questions about networks that learned nothing, by key of `MAPS`; empty lists if there can be none."""
        first = FIRST + self.question.seed
        made = {
            "untrained": [self.question.untrained(first + i) for i in range(NETWORKS)],
            "permuted": [self.question.permuted(first + NETWORKS + i, self.updates, i) for i in range(NETWORKS)],
        }
        return {key: [question for question in each if question is not None] for key, each in made.items()}

    def judge(self, method: Method) -> Judged:
        """Compute a method's maps and check them."""
        maps = contributions(method, self.question, self.moments)
        sums = self.question.part_sums(maps)
        checks = [self._completeness(maps)] if method.complete else []
        checks += [
            *(self._differs(key, method, sums) for key in MAPS),
            self._agreement(method, sums),
        ]
        size = float(np.square(self.effects.signed).mean())
        infidelity = float(np.square(sums - self.effects.signed).mean()) / size if size else 0.0
        return Judged(method, maps, tuple(checks), infidelity)

    def _completeness(self, maps: Maps) -> Check:
        error = float(self.question.gap(self.moments, maps).max()) / self.question.unit
        remedy = f"Its sums miss the output's difference by up to {error:.2g} of its standard deviation."
        return _check("completeness", error < GAP, error, f"< {GAP}", remedy)

    def _differs(self, key: str, method: Method, sums: FloatArray) -> Check:
        parts, others = int(self.question.varies.sum()), self.others[key]
        name, maps = MAPS[key]
        bound = f"< {SIMILAR}"
        if not others:
            return Check(name, None, bound=bound, remedy="This function has no weights to draw anew.")
        if parts < PARTS:
            few = f"Only {parts} parts of the input vary: the maps of any two networks may look alike by chance."
            return Check(name, None, bound=bound, remedy=few)
        value = float(np.mean([self._correlation(method, sums, other) for other in others]))
        remedy = f"{maps} look alike (rank correlation {value:.2f}): it shows what the data have there, not what was learned."
        return _check(name, value < SIMILAR, value, bound, remedy)

    def _correlation(self, method: Method, sums: FloatArray, other: Question) -> float:
        theirs = other.part_sums(contributions(method, other, self.moments))
        both = [of[:, self.question.varies] for of in (sums, theirs)]
        return rank_correlation(*(both if method.signed else map(abs, both)))

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
