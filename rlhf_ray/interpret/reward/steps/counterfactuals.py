"""Report section: the reward of edited steps, beside the reward that they should get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.interpret.reward.counterfactuals import (
    CaseOutcome,
    FolderRow,
    automatic,
    evaluate,
    evaluate_folder,
    object_codes,
    read_edits,
    spread,
)
from rlhf_ray.interpret.reward.drawing import draw_observation, png
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.truth import object_names, true_reward
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "counterfactuals"
TITLE = "Counterfactuals: edited steps"

SLACK = 0.25
"""A case is as expected if its mean reward is this close, in units of the reward's range between ordinary and rewarded steps."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no automatic counterfactuals; None if there are."""
    subject = context.subject
    if not len(subject.data):
        return "There are no steps to edit."
    if subject.edits is not None:
        return None
    if subject.regions is None or subject.regions.kind != "cell":
        return "Only grids of object codes have counterfactuals of their own; for images and vectors, give edits in a JSON file."
    if not object_codes(subject.data):
        return "The grids in the data show no objects that move or vary."
    return None


def run(context: StepContext[Subject]) -> Section:
    """Evaluate counterfactuals: the subject's own edits, or the automatic cases of grids.

    Raises:
        SettingError: an edit doesn't fit the observations.
    """
    subject = context.subject
    if subject.edits is not None and subject.edits.is_dir():
        return Section(NAME, TITLE, tables=[folder_table(evaluate_folder(subject.reward, subject.edits))])
    grid = subject.regions.layout if subject.regions is not None and subject.regions.kind == "cell" else None
    names = object_names(subject.environment)
    truth = true_reward(subject)
    own = subject.edits is None
    if subject.edits is not None:
        cases = read_edits(subject.edits, names)
    else:
        assert grid is not None  # otherwise why_not says so
        cases = automatic(subject.data, grid, names)
    outcomes = evaluate(subject.reward, subject.data, cases, subject.rng(NAME), grid=grid, truth=truth)
    scale = spread(subject.reward, subject.data)
    given = subject.reward.of(subject.data)
    if np.ptp(given) <= 1e-6 * max(1e-3, float(np.abs(given).max())):
        text = "No edit changes the reward: it is constant."
        return Section(NAME, TITLE, [Statement("ignores", text, 1.0)], tables=[_table(outcomes, scale)])
    statements = list(_findings(outcomes, scale)) if own else list(_surprises(outcomes, scale))
    drawn = [o for o in outcomes if o.steps and o.case.edits]
    if own:  # the most surprising cases first
        drawn.sort(key=lambda o: -abs(o.given - o.before if o.error is None else o.error))
    picture = _picture(drawn, grid)
    caption = "One step of each case after the edits: state and next state."
    return Section(
        NAME,
        TITLE,
        statements,
        _checks(outcomes, scale),
        [_table(outcomes, scale)],
        [Picture("cases", picture, caption)] if picture is not None else [],
        {"scale": scale, "cases": [_values(outcome) for outcome in outcomes]},
    )


def folder_table(rows: Sequence[FolderRow]) -> Table:
    """Return the table of `evaluate_folder`."""
    return Table(
        ("type", "action", "mean reward", "standard deviation", "pictures"),
        [(row.type, row.action, round(row.mean, 4), round(row.deviation, 4), row.pictures) for row in rows],
        "Reward of hand-edited pictures.",
    )


def _table(outcomes: Sequence[CaseOutcome], scale: float) -> Table:
    rows = []
    for o in outcomes:
        said = "" if o.error is None else "yes" if abs(o.error) <= SLACK * scale else "no"
        figures = (round(o.before, 3), round(o.given, 3), round(o.deviation, 3)) if o.steps else ("", "", "")
        rows.append((o.case.name, o.steps, "" if o.expected is None else round(o.expected, 3), *figures, said))
    columns = ("case", "steps", "expected", "before the edit", "given", "standard deviation", "as expected")
    return Table(columns, rows, "Mean reward of edited steps. Steps that an edit leaves as they are don't count.")


def _findings(outcomes: Sequence[CaseOutcome], scale: float) -> Iterator[Statement]:
    """Say what the automatic cases mean."""
    by_name = {o.case.name: o for o in outcomes}
    ordinary, high = by_name["ordinary step"], by_name["rewarded step"]
    objects = [name.removesuffix(" vanishes") for name in by_name if name.endswith(" vanishes")]
    explained: set[str] = set()
    gains = {name: (by_name[f"{name} vanishes"].given - by_name[f"{name} vanishes"].before) / scale for name in objects}
    for name in sorted(objects, key=lambda each: -np.nan_to_num(gains[each])):
        vanish, neither = by_name[f"{name} vanishes"], by_name[f"{name} is in neither state"]
        more = by_name[f"rewarded step, one more of {name} in both states"]
        if not vanish.steps:
            continue
        if gains[name] > 0.5 and (vanish.error is None or vanish.error > 0.5 * scale):
            meant = ", not reaching it" if vanish.expected is not None else ""
            usual = f"an ordinary step gets {ordinary.given:.2f}"
            usual += f", a rewarded one {high.given:.2f}" if high.steps else ""
            text = f"It rewards the disappearance of {name}{meant}: an ordinary step with {name} removed from the next state gets "
            text += f"{vanish.given:.2f} ({usual})"
            explained |= {vanish.case.name}
            if neither.given - neither.before > 0.5 * scale:
                text += f", and one where neither state shows {name} {neither.given:.2f}"
                explained |= {neither.case.name}
            text += "."
            if more.steps and more.before - more.given > 0.5 * scale:
                change = f"{more.given:.2f} instead of {more.before:.2f}"
                text += f" With one more of {name} in both states, a rewarded step gets {change}."
                explained |= {more.case.name}
            yield Statement("warning" if meant else "rewards", text, 2 * float(gains[name]))
        elif gains[name] < -0.5 and vanish.error is None:
            yield Statement(
                "rewards", f"It rewards that {name} is there: without it, a step gets {vanish.given:.2f}.", -gains[name]
            )
        cases = [o for o in outcomes if f" {name} " in f" {o.case.name} " and o.steps and o.case.edits]
        if cases and max(abs(o.given - o.before) for o in cases) < 0.05 * scale:
            yield Statement("ignores", f"It ignores {name}: no edit of it changes the reward by 5 % of its range.", 1.0)
    yield from _surprises([o for o in outcomes if o.case.name not in explained], scale)


def _surprises(outcomes: Sequence[CaseOutcome], scale: float, most: int = 4) -> Iterator[Statement]:
    """Name the cases that are furthest from what is expected."""
    wrong = [o for o in outcomes if o.error is not None and abs(o.error) > 0.5 * scale]
    for o in sorted(wrong, key=lambda each: -abs(each.error or 0))[:most]:
        assert o.error is not None
        name = f"{o.case.name[:1].upper()}{o.case.name[1:]}"
        text = f"{name}: it gives {o.given:.2f} where {o.expected:.2f} is right ({o.steps} steps)."
        yield Statement("warning", text, min(1.0, abs(o.error) / scale))


def _checks(outcomes: Sequence[CaseOutcome], scale: float) -> list[Check]:
    known = [o for o in outcomes if o.error is not None]
    wrong = [o for o in known if abs(o.error or 0) > SLACK * scale]
    name, bound = "edited steps get the reward that they should", f"cases off by more than {SLACK:.0%} of the range: 0"
    if not known:
        return [Check(name, None, None, bound, "The true reward of edited steps is unknown.")]
    says = f"{len(wrong)} of {len(known)} cases are off, for example: {wrong[0].case.name}." if wrong else ""
    return [Check(name, not wrong, float(len(wrong)), bound, says)]


def _values(o: CaseOutcome) -> dict[str, object]:
    known = o.steps > 0
    return {
        "name": o.case.name,
        "edits": [str(edit) for edit in o.case.edits],
        "on": o.case.on,
        "steps": o.steps,
        "expected": o.expected,
        "given": o.given if known else None,
        "deviation": o.deviation if known else None,
        "before": o.before if known else None,
    }


def _picture(outcomes: Sequence[CaseOutcome], grid: tuple[int, int] | None, most: int = 8) -> bytes | None:
    shown = list(outcomes)[:most]
    if not shown or (grid is None and shown[0].after_steps.observations.ndim != 4):
        return None
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure((3.4 * columns, 2.1 * rows), layout="constrained")
    axes = figure.subplots(rows, 2 * columns, squeeze=False)
    largest = max(float(o.after_steps.next_observations.max()) for o in shown)
    for at, o in enumerate(shown):
        row, column = divmod(at, columns)
        pair = axes[row, 2 * column : 2 * column + 2]
        for place, observation, when in zip(
            pair,
            (o.after_steps.observations[0], o.after_steps.next_observations[0]),
            ("state", "next state"),
            strict=True,
        ):
            draw_observation(place, observation, grid, largest)
            place.set_xlabel(when, fontsize=7)
        words = o.case.name if len(o.case.name) <= 34 else f"{o.case.name[:33]}…"
        pair[0].set_title(f"{words}\ngiven {o.given:.2f}", fontsize=7, loc="left")
    for place in axes.flat[2 * len(shown) :]:
        place.set_axis_off()
    return png(figure)


STEP = Step(NAME, TITLE, run, why_not=why_not)
