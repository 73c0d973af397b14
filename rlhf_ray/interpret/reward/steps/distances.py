"""How far the reward is from the true one, shaping and scale aside, and what is left after the best shaping."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.data.images import is_image
from rlhf_ray.interpret.reward.equivalence import Equivalence
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.teaching import SHIFTED
from rlhf_ray.interpret.reward.true_reward import true_reward
from rlhf_ray.measure.statistics import constant
from rlhf_ray.reward.distance_estimates import Estimate
from rlhf_ray.reward.sampled_distances import DISTANCES, all_distances, recorded_distances
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Section, Statement
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

STEPS = 2000
"""Recorded steps that the distances rest on; a quarter for images."""
PAIRS, PAIRS_OF_IMAGES = 512, 128

NEAR, FAR = 0.2, 0.6
"""EPIC below and above which, with its whole interval, a statement says so. 0: equal up to shaping and scale; 0.71: unrelated; 1:
opposite."""


@dataclass(frozen=True)
class Distances:
    """What the step finds.

    Attributes:
        distances: by name (`DISTANCES`), each with its interval.
        equivalence: what the true reward explains, with and without shaping; None for few steps or a constant reward.
        known: whether the true reward is known for any step; else the distances are those that need recorded steps only.
        shaped: whether the reward is the true one but for shaping.
        level: the constant that a line through the true reward adds, in units of the true reward; None if that is small.
    """

    distances: dict[str, Estimate]
    equivalence: Equivalence | None
    known: bool = True
    shaped: bool = False
    level: float | None = None


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no distances: the true reward is unknown."""
    return None if np.isfinite(context.subject.data.rewards).all() else WORDS.text("unknown")


def run(context: StepContext[Subject]) -> Section:
    """Estimate the distances on recorded steps, and tell what shaping explains."""
    figures = measure(context.subject)
    rows = [
        [label, *(each.value, each.low, each.high), each.refused]
        for name, label in DISTANCES.items()
        if (each := figures.distances.get(name)) is not None
    ]
    tables = [WORDS.table("distances", rows, known=figures.known)]
    if figures.equivalence is not None:
        tables.append(WORDS.table("explained", _explained(figures.equivalence)))
    return WORDS.section(_statements(figures), tables=tables, figures=figures)


def measure(subject: Subject) -> Distances:
    """Compute the figures."""
    truth, image = true_reward(subject), is_image(subject.reward.observation_space)
    steps = round(STEPS * min(1.0, subject.effort) / (4 if image else 1))
    data, pairs = subject.data.sample(steps, subject.rng(WORDS.name)), PAIRS_OF_IMAGES if image else PAIRS
    if truth is None:
        found = recorded_distances(subject.scaled, data, subject.gamma, subject.seed)
    else:
        found = all_distances(subject.scaled, truth, data, subject.gamma, subject.seed, pairs=pairs)
    return Distances(found, subject.equivalence, truth is not None, subject.shaped, _level(subject))


def _level(subject: Subject) -> float | None:
    """Return the constant by which the reward exceeds the true one on the steps, in units of the true one."""
    true = subject.data.rewards
    if not np.isfinite(true).all() or constant(true):
        return None
    slope, start = np.polyfit(true, subject.reward.of(subject.data), 1)
    level = float(start / slope) if slope > 0 else None
    return level if level is not None and abs(level) >= SHIFTED * np.ptp(true) else None


def _statements(figures: Distances) -> Iterator[Statement]:
    distances, shares = figures.distances, figures.equivalence
    kind = _kind(distances["epic_published"], distances["epic"]) if figures.known else None
    if kind is not None:
        yield WORDS.statement(kind, 1.0, **distances)
    if shares is not None and not figures.shaped and shares.holds and not shares.by_shaping and not shares.steady:
        strong = strength((shares.truth.low or 0.0, 1.0))
        yield WORDS.statement("same", 2.0, strong, shares=shares, level=figures.level)
    if shares is not None and figures.shaped:
        yield WORDS.statement("equivalent", 2.0, strength((shares.rest.low or 0.0, 1.0)), shares=shares)


def _kind(published: Estimate, with_ends: Estimate) -> str | None:
    """Return which sentence the distances allow, if any."""
    if with_ends.high < NEAR:  # as published, it is not 0 for a truth whose shaping ends with the episode
        return "near"
    if published.high < NEAR:
        return "level" if with_ends.low > NEAR else None
    return "far" if min(published.low, with_ends.low) > FAR else None


def _explained(shares: Equivalence) -> Iterator[list[Any]]:
    for name in ("truth", "shaping", "both", "rest"):
        share = getattr(shares, name)
        yield [WORDS.text(name), share.mean, share.low, share.high]


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
