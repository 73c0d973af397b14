"""Both agents play the same levels: true returns, and why episodes end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rlhf_ray.interpret.agent.comparison.pair import LEVELS, LONGEST, AgentPair
from rlhf_ray.interpret.agent.effects import CausalEffect, Change, effect
from rlhf_ray.interpret.agent.levels import FEW
from rlhf_ray.measure.intervals import MeanEstimate, estimate_mean
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)


@dataclass(frozen=True)
class SameLevels:
    """What both reach on the same levels.

    Attributes:
        levels: how many.
        distinct: how many different ones are among them: the sample of all intervals.
        first, second: true returns.
        difference: first minus second, level by level.
        random: random actions minus second.
    """

    levels: int
    distinct: int
    first: MeanEstimate
    second: MeanEstimate
    difference: CausalEffect
    random: CausalEffect


def run(context: StepContext[AgentPair]) -> Section:
    """Play the same levels."""
    pair = context.subject
    levels = pair.levels(0, pair.count(LEVELS, 20))
    how: dict[str, Any] = {"max_steps": LONGEST, "frames": False}
    context.say("both play the same levels")
    first, second = (subject.play(levels, **how) for subject in pair.subjects)
    played = {"difference": first, "random": pair.subjects[0].play(levels, epsilon=1.0, seed=pair.seed, **how)}
    groups, names = pair.groups(levels), pair.subjects[0].action_names
    effects = {name: effect(second, of, pair.space, names, groups) for name, of in played.items()}
    returns = [estimate_mean(episodes.returns, groups) for episodes in (first, second)]
    figures = SameLevels(len(levels), len(np.unique(groups)), returns[0], returns[1], **effects)
    statements = [WORDS.statement("returns", names=pair.names, figures=figures)]
    if figures.distinct < FEW:
        statements.append(WORDS.statement("few_levels", 0.5, figures=figures, few=FEW))
    table = WORDS.table(
        "played", _rows(figures), figures=figures, columns=(*pair.names, "difference", "random actions")
    )
    return WORDS.section(statements, tables=[table], figures=figures)


def _rows(figures: SameLevels) -> Iterator[list[str]]:
    difference, random = figures.difference, figures.random
    change = estimate(difference.returns.difference)
    yield [
        "true return", estimate(figures.first), estimate(figures.second), change, f"{random.returns.after:.2f}"
    ]  # fmt: skip
    yield from _compared("", {"steps": difference.lengths}, {"steps": random.lengths}, 1)
    yield from _compared("ends by ", difference.outcomes, random.outcomes, 2)
    yield from _compared("action ", difference.actions, random.actions, 2)


def _compared(
    head: str, changes: Mapping[str, Change], random: Mapping[str, Change], digits: int
) -> Iterator[list[str]]:
    for name, change in changes.items():
        chance = random[name].after if name in random else 0.0
        first, second, by_chance = (f"{value:.{digits}f}" for value in (change.after, change.before, chance))
        yield [f"{head}{name}", first, second, estimate(change.difference, digits), by_chance]


STEP = Step(WORDS.name, WORDS.title, run)
