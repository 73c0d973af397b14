"""Checks of attributions: completeness, untrained networks, permuted labels, agreement with interventions.

Each asks whether a map shows what the reward learned, or only what is in the picture (Adebayo et al. 2018; Yeh et al. 2019).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.attribution.background import Background, Maps
from rlhf_ray.interpret.reward.attribution.gradients import gap
from rlhf_ray.interpret.reward.attribution.interventions import Effects, part_effects
from rlhf_ray.interpret.reward.attribution.method import Method
from rlhf_ray.measure.statistics import spearman
from rlhf_ray.optim.adam import Adam
from rlhf_ray.reward.functions import RewardFunction, TorchReward
from rlhf_ray.study.section import Check
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

GAP = 0.05
"""Largest gap of a complete map, in standard deviations of the reward."""
SIMILAR = 0.5
"""Rank correlation with the maps of a network that learned nothing from which a map is not about this reward."""
AGREEMENT = 0.4
"""Least rank correlation with interventions."""
PARTS = 8
"""Least number of parts: of fewer, two maps that have nothing to do with each other often have the same order."""
FIRST = 7919
"""Added to the seeds of new networks: with the seed of the reward's own training, they would start from its initial weights."""
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
        failed = [check.says for check in self.checks if check.passed is False]
        return " ".join(failed) or None


class Judge:
    """Runs all checks of methods on the same steps, against the same other networks and interventions.

    Args:
        background: reward and data.
        steps: the steps that checks use.
        updates: gradient steps of the network that learns permuted rewards.
    """

    def __init__(self, background: Background, steps: Transitions, updates: int = 150):
        self.background, self.steps, self.updates = background, steps, updates

    @cached_property
    def effects(self) -> Effects:
        """Effects of the matching intervention: each part exchanged with other steps'; cells get their most frequent code."""
        return part_effects(self.background, self.steps, "typical" if self.background.coded else "donor")

    @cached_property
    def exchanged(self) -> Effects:
        """As `effects`, exchanged with other steps' in any case."""
        return part_effects(self.background, self.steps) if self.background.coded else self.effects

    @cached_property
    def untrained(self) -> list[RewardFunction]:
        """Networks like the reward's with new weights; empty if there are none."""
        made = [self.background.reward.fresh(FIRST + self.background.seed + i) for i in range(UNTRAINED)]
        return [each for each in made if each is not None]

    @cached_property
    def permuted(self) -> list[RewardFunction]:
        """Networks like the reward's that learned its rewards, permuted; empty if none can be trained."""
        made = [learn_permuted(self.background, self.updates, i) for i in range(PERMUTED)]
        return [each for each in made if each is not None]

    def judge(self, method: Method) -> Judged:
        """Compute a method's maps and check them."""
        maps = method(self.background, self.steps)
        sums = self.background.part_sums(maps)
        if not self.background.spread:
            return Judged(method, maps, (WORDS.check("constant", None),), 0.0)
        checks = [self._completeness(method, maps)] if method.complete else []
        checks += [
            self._differs("untrained", method, sums, self.untrained),
            self._differs("permuted", method, sums, self.permuted),
            self._agreement(method, sums),
        ]
        size = float(np.square(self.effects.signed).mean())
        infidelity = float(np.square(sums - self.effects.signed).mean()) / size if size else 0.0
        return Judged(method, maps, tuple(checks), infidelity)

    def _completeness(self, method: Method, maps: Maps) -> Check:
        error = float(gap(self.background, self.steps, maps).max()) / self.background.spread
        return WORDS.check("completeness", error < GAP, error, most=GAP)

    def _differs(self, key: str, method: Method, sums: FloatArray, others: list[RewardFunction]) -> Check:
        parts = int(self.background.varies.sum())
        values = {"most": SIMILAR, "parts": parts, "networks": len(others)}
        if not others or parts < PARTS:
            return WORDS.check(key, None, **values)
        found = [
            self._correlation(method, sums, self.background.part_sums(method(self.background.of(other), self.steps)))
            for other in others
        ]
        value = float(np.mean(found))
        return WORDS.check(key, value < SIMILAR, value, **values)

    def _correlation(self, method: Method, sums: FloatArray, others: FloatArray) -> float:
        varies = self.background.varies
        mine, theirs = sums[:, varies], others[:, varies]
        return rank_correlation(mine, theirs) if method.signed else rank_correlation(abs(mine), abs(theirs))

    def _agreement(self, method: Method, sums: FloatArray) -> Check:
        varies = self.background.varies
        if varies.sum() < 2:
            return WORDS.check("agreement", None, least=AGREEMENT)
        effects = self.exchanged if method.name == "occlusion_donor" else self.effects
        value = rank_correlation(abs(sums[:, varies]), effects.size[:, varies])
        return WORDS.check("agreement", value > AGREEMENT, value, least=AGREEMENT)


def rank_correlation(one: FloatArray, other: FloatArray) -> float:
    """Return Spearman's correlation of all elements, equal but for rounding; 0 if one of them is constant."""
    return spearman(np.round(one, 12), np.round(other, 12), 0.0)


def learn_permuted(
    background: Background, updates: int = 150, number: int = 0, batch: int = 64
) -> RewardFunction | None:
    """Train a new network of the reward's architecture to predict the reward's values, permuted among the steps.

    Args:
        background: reward and data.
        updates: gradient steps.
        number: tells several such networks apart.
        batch: steps per gradient step.

    Returns:
        The network; None if the reward has no network that can be drawn anew.
    """
    fresh = background.reward.fresh(FIRST + background.seed + UNTRAINED + number)
    if not isinstance(fresh, TorchReward) or not list(fresh.module.parameters()):
        return None
    rng = background.rng(f"permuted labels {number}")
    data = background.data
    labels = background.reward.of(data)[rng.permutation(len(data))]
    labels = (labels - labels.mean()) / (labels.std() or 1.0)
    weights = list(fresh.module.requires_grad_(True).parameters())
    optimiser = Adam(weights, lr=1e-3)
    for _ in range(updates):
        at = np.sort(rng.choice(len(data), min(batch, len(data)), replace=False))
        error = fresh.member_tensor(*fresh.tensors(data[at])) - torch.as_tensor(labels[at], dtype=torch.float32)
        optimiser.zero_grad()
        error.square().mean().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
    fresh.module.requires_grad_(False)
    return fresh
