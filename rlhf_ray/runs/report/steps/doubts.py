"""Answers that are more likely wrong than right."""

from __future__ import annotations

import numpy as np

from rlhf_ray.runs.report.steps.fragments import show_pairs
from rlhf_ray.runs.report.subject import Run
from rlhf_ray.study.section import Section
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

SHOWN = 4
"""Number of suspicious answers shown on the page."""


def why_not(context: StepContext[Run]) -> str | None:
    """Return why there is nothing to show: no such answers."""
    run = context.subject
    return None if run.doubts and run.comparisons is not None else WORDS.text("none")


def run(context: StepContext[Run]) -> Section:
    """Show the likeliest wrong answers."""
    stored, doubts = context.subject.comparisons, context.subject.doubts
    assert stored is not None  # see why_not
    position = {key: i for i, key in enumerate(zip(stored.pairs.ids, stored.annotators, strict=True))}
    keys = [(chance, (row["pair_id"], row["annotator"])) for chance, row in doubts]
    shown = [(position[key], chance) for chance, key in keys if key in position][:SHOWN]
    chosen = np.array([place for place, _ in shown], np.int64)
    pairs, pictures = show_pairs(stored, context.subject.reward, chosen, errors=[chance for _, chance in shown])
    people = any(row["annotator_type"] == "human" for _, row in doubts)
    statement = WORDS.statement("doubts", doubts=len(doubts), shown=len(pairs), people=people)
    return WORDS.section([statement], pictures=pictures, figures={"doubts": len(doubts), "pairs": pairs})


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
