"""The reward of edited steps, beside the reward that they should get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.interpret.reward.counterfactuals import (
    CaseOutcome,
    automatic,
    evaluate,
    evaluate_folder,
    object_codes,
    read_edits,
    spread,
)
from rlhf_ray.interpret.effects.regions import object_names
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.true_reward import true_reward
from rlhf_ray.study.figures import DRAWN
from rlhf_ray.study.plots import draw_observation, png
from rlhf_ray.study.screen import strength
from rlhf_ray.study.section import Check, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words, capital

WORDS = Words(__file__)

SLACK = 0.25
"""A case is as expected if its mean reward is this close, in units of the reward's range between ordinary and rewarded steps."""
ACTOR = "agent"
"""The object that acts: it reaches others, and without it there is no step."""
SURPRISE = 0.5
"""A change, or an error, of the mean reward from which the verdict names it, in the same units."""
UNMOVED = 0.05
"""An object is ignored if no edit of it changes the reward by this much, in the same units."""
NAMED, DRAWN_CASES = 4, 8
"""Surprising cases that the verdict names; cases drawn."""


@dataclass(frozen=True)
class Counterfactuals:
    """What the step finds.

    Attributes:
        scale: the reward's range between ordinary and rewarded steps.
        cases: what came out of each case.
        constant: whether the reward is the same on all steps.
        own: whether the cases are the step's own, not the user's.
        grid: (rows, columns) if observations are grids.
    """

    scale: float
    cases: list[CaseOutcome]
    constant: bool = field(metadata=DRAWN)
    own: bool = field(metadata=DRAWN)
    grid: tuple[int, int] | None = field(metadata=DRAWN)


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no automatic counterfactuals; None if there are."""
    subject = context.subject
    if not len(subject.data):
        return WORDS.text("no_steps")
    if subject.edits is not None:
        return None
    if subject.regions is None or subject.regions.kind != "cell":
        return WORDS.text("no_grid")
    return None if object_codes(subject.data) else WORDS.text("no_objects")


def run(context: StepContext[Subject]) -> Section:
    """Evaluate counterfactuals: the subject's own edits, or the automatic cases of grids.

    Raises:
        SettingError: an edit doesn't fit the observations.
    """
    subject = context.subject
    if subject.edits is not None and subject.edits.is_dir():
        pictures = evaluate_folder(subject.scaled, subject.edits)
        rows = [(row.type, row.action, round(row.mean, 4), round(row.deviation, 4), row.pictures) for row in pictures]
        return WORDS.section(tables=[WORDS.table("folder", rows)])
    figures = measure(subject)
    if figures.constant:
        return WORDS.section([WORDS.statement("constant", 1.0)], tables=[_table(figures)])
    statements = list(_findings(figures) if figures.own else _surprises(figures.cases, figures.scale))
    image = _image(figures)
    drawn = [WORDS.picture("cases", image)] if image is not None else []
    return WORDS.section(statements, [_check(figures)], [_table(figures)], drawn, figures)


def measure(subject: Subject) -> Counterfactuals:
    """Edit steps and compute their reward."""
    cells = subject.regions is not None and subject.regions.kind == "cell"
    grid = subject.regions.layout if subject.regions is not None and cells else None
    names, truth, reward, data = object_names(subject.environment), true_reward(subject), subject.judged, subject.data
    slope, level = subject.true_line
    if subject.shaped:  # what shaping adds to an edited step is not known: the fit saw none
        truth, reward, data = None, subject.scaled, data.with_(rewards=np.full(len(data), np.nan))
        slope, level = 1.0, 0.0
    if subject.edits is not None:
        cases = read_edits(subject.edits, names)
    else:
        assert grid is not None, "why_not() says so"
        cases = automatic(subject.data, grid, names)
    outcomes = evaluate(reward, data, cases, subject.rng(WORDS.name), grid=grid, truth=truth)
    outcomes = [
        one if one.expected is None else replace(one, expected=slope * one.expected + level) for one in outcomes
    ]
    rewards = reward.of(data)
    constant = bool(np.ptp(rewards) <= 1e-6 * max(1e-3, float(np.abs(rewards).max())))
    return Counterfactuals(spread(reward, data), outcomes, constant, subject.edits is None, grid)


def _findings(figures: Counterfactuals) -> Iterator[Statement]:
    """Say what the automatic cases mean."""
    cases, large = {case.case.name: case for case in figures.cases}, SURPRISE * figures.scale
    objects = [name.removesuffix(" vanishes") for name in cases if name.endswith(" vanishes")]
    explained: set[str] = set()
    gains = {name: cases[f"{name} vanishes"].change / figures.scale for name in objects}
    for name in sorted(objects, key=lambda each: -np.nan_to_num(gains[each])):
        vanish = cases[f"{name} vanishes"]
        if not vanish.steps:
            continue
        if name != ACTOR and gains[name] > SURPRISE and (vanish.error is None or vanish.error > large):
            neither = cases[f"{name} is in neither state"]
            more = cases[f"rewarded step, one more of {name} in both states"]
            told = {
                "vanish": vanish,
                "neither": neither if neither.change > large else None,
                "more": more if more.steps and -more.change > large else None,
            }
            explained |= {case.case.name for case in told.values() if case is not None}
            usual = {"ordinary": cases["ordinary step"], "rewarded": cases["rewarded step"]}
            key = "disappearance" if vanish.expected is None else "disappearance_not_reaching"
            strong = strength((gains[name], gains[name]), SURPRISE)
            yield WORDS.statement(key, 2 * gains[name], strong, name=name, **told, **usual)
        elif gains[name] < -SURPRISE and vanish.error is None:
            strong = strength((gains[name], gains[name]), SURPRISE)
            yield WORDS.statement("presence", -gains[name], strong, name=name, vanish=vanish)
        edits = [each for each in figures.cases if f" {name} " in f" {each.case.name} " and each.edited]
        if edits and max(abs(each.change) for each in edits) < UNMOVED * figures.scale:
            yield WORDS.statement("ignores", 1.0, name=name, share=UNMOVED)
    yield from _surprises([case for case in figures.cases if case.case.name not in explained], figures.scale)


def _surprises(cases: Sequence[CaseOutcome], scale: float) -> Iterator[Statement]:
    """Name the cases that are furthest from what is expected."""
    wrong = [(abs(case.error), case) for case in cases if case.error is not None and abs(case.error) > SURPRISE * scale]
    for error, case in sorted(wrong, key=lambda each: -each[0])[:NAMED]:
        yield WORDS.statement("surprise", min(1.0, error / scale), case=case, name=capital(case.case.name))


def _check(figures: Counterfactuals) -> Check:
    known = [case for case in figures.cases if case.error is not None]
    wrong = [case for case in known if not _as_expected(case, figures.scale)]
    passed, value = (not wrong, float(len(wrong))) if known else (None, None)
    return WORDS.check("expected", passed, value, wrong=wrong, known=len(known), slack=SLACK)


def _as_expected(case: CaseOutcome, scale: float) -> bool:
    return abs(case.error or 0) <= SLACK * scale


def _table(figures: Counterfactuals) -> Table:
    rows = []
    for case in figures.cases:
        answer = "" if case.error is None else "yes" if _as_expected(case, figures.scale) else "no"
        rewards: list[Any] = [round(value, 3) for value in (case.before, case.given, case.deviation)]
        expected = "" if case.expected is None else round(case.expected, 3)
        rows.append((case.case.name, case.steps, expected, *(rewards if case.steps else [""] * 3), answer))
    return WORDS.table("cases", rows)


def _image(figures: Counterfactuals) -> bytes | None:
    shown = [case for case in figures.cases if case.edited]
    if figures.own:  # the most surprising cases first
        shown.sort(key=lambda case: -abs(case.change if case.error is None else case.error))
    shown, grid = shown[:DRAWN_CASES], figures.grid
    if not shown or (grid is None and shown[0].after_steps.observations.ndim != 4):
        return None
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure((3.4 * columns, 2.1 * rows), layout="constrained")
    axes = figure.subplots(rows, 2 * columns, squeeze=False)
    largest = max(float(case.after_steps.next_observations.max()) for case in shown)
    for number, case in enumerate(shown):
        row, column = divmod(number, columns)
        pair, after = axes[row, 2 * column : 2 * column + 2], case.after_steps
        for place, observations, when in zip(
            pair, (after.observations, after.next_observations), ("state", "next state"), strict=True
        ):
            draw_observation(place, observations[0], grid, largest)
            place.set_xlabel(when, fontsize=7)
        name = case.case.name if len(case.case.name) <= 34 else f"{case.case.name[:33]}…"
        pair[0].set_title(f"{name}\ngiven {case.given:.2f}", fontsize=7, loc="left")
    for place in axes.flat[2 * len(shown) :]:
        place.set_axis_off()
    return png(figure)


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
