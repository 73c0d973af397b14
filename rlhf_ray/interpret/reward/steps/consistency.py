"""Whether the reward is a function of a step, and its gradients are its own."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.consistency import Consistency, consistency
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.reward.functions import RewardFunction
from rlhf_ray.study.section import Check, Section, Statement
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

FEWEST = 2
"""Steps from which answers alone and in a batch differ in more than their number."""


def check_function(reward: RewardFunction, data: Transitions) -> None:
    """Check that the reward is a function of a step.

    Raises:
        SettingError: it gives a step no finite reward, or the same step another one in another call or batch.
    """
    bad = np.flatnonzero(~np.isfinite(reward.of(data)))
    if len(bad):
        raise SettingError(WORDS.text("not_finite", name=reward.name, bad=len(bad), steps=len(data), first=int(bad[0])))
    if len(data) < FEWEST:
        return
    found = consistency(reward, data)
    if found.fault:
        raise SettingError(WORDS.text("no_function", name=reward.name, found=found))


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there is nothing to compare."""
    return None if len(context.subject.data) >= FEWEST else WORDS.text("few")


def run(context: StepContext[Subject]) -> Section:
    """Ask the reward about the same steps in several ways."""
    found = consistency(context.subject.reward, context.subject.data)
    return WORDS.section(_statements(found), _checks(found), figures=found)


def _statements(found: Consistency) -> Iterator[Statement]:
    if found.fault:
        yield WORDS.statement("no_function", 10.0, found=found)
    if not found.own_gradients:
        yield WORDS.statement("other_gradients", 5.0, found=found)
    if found.remembers > found.most:
        yield WORDS.statement("remembers", 4.0, found=found)
    if found.changes:
        yield WORDS.statement("changes", 3.0, inputs=[WORDS.text(name) for name in found.changes])


def _checks(found: Consistency) -> Iterator[Check]:
    for name in ("again", "alone", "elsewhere"):
        value = getattr(found, name)
        yield WORDS.check(name, value is not None and value <= found.most, value, found=found)
    if found.gap is not None:
        yield WORDS.check("gradients", found.own_gradients, found.gap, found=found)


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
