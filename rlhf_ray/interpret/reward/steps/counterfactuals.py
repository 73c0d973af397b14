"""The reward of the user's own edits of steps, beside the reward that they should get."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.interpret.effects.regions import object_names
from rlhf_ray.interpret.reward.counterfactuals import CaseOutcome, evaluate, evaluate_folder, read_edits
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import draw_observation, png
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Your edits"
DRAWN_CASES = 8


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no counterfactuals; None if there are."""
    if context.subject.edits is None:
        return "You gave none (--edits: a JSON file, or a folder of PNGs)."
    return None if len(context.subject.data) else "There are no steps to edit."


def run(context: StepContext[Subject]) -> Section:
    """Evaluate the subject's edits.

    Raises:
        SettingError: an edit doesn't fit the observations.
    """
    subject = context.subject
    assert subject.edits is not None, "why_not() says so"
    if subject.edits.is_dir():
        found = evaluate_folder(subject.scaled, subject.edits)
        pictured = [(row.type, row.action, row.mean, row.deviation, row.pictures) for row in found]
        columns = ["type", "action", "mean reward", "standard deviation", "pictures"]
        return Section("counterfactuals", TITLE, (), (), [Table(columns, pictured, "Rewards of the pictures.")])
    grid = subject.grid
    cases = read_edits(subject.edits, object_names(subject.environment))
    rng = subject.rng("counterfactuals")
    outcomes = evaluate(subject.reward, subject.data, cases, rng, grid=grid, truth=subject.true_reward)
    rows = []
    for one in outcomes:
        rewards = (one.before, one.given, one.deviation) if one.steps else (None, None, None)
        rows.append((one.case.name, one.steps, one.expected, *rewards))
    columns = ["case", "steps", "expected", "before", "given", "standard deviation"]
    caption = "Mean rewards of steps that the edits change. Expected: yours, or the true reward's, whose scale may be another one."
    image = _image(outcomes, grid)
    shown = "A step of each case, after its edits: state and next state."
    pictures = [] if image is None else [Picture("cases", image, shown)]
    values = {"cases": values_of(outcomes)}
    return Section("counterfactuals", TITLE, (), (), [Table(columns, rows, caption)], pictures, (), values)


def _image(cases: Sequence[CaseOutcome], grid: tuple[int, int] | None) -> bytes | None:
    shown = [case for case in cases if case.steps and case.case.edits][:DRAWN_CASES]
    if not shown or (grid is None and shown[0].after_steps.observations.ndim != 4):
        return None
    columns = min(4, len(shown))
    rows = -(-len(shown) // columns)
    figure = Figure((3.4 * columns, 2.1 * rows), layout="constrained")
    axes = figure.subplots(rows, 2 * columns, squeeze=False)
    largest = max(float(np.max(case.after_steps.next_observations)) for case in shown)
    for number, case in enumerate(shown):
        row, column = divmod(number, columns)
        pair, after = axes[row, 2 * column : 2 * column + 2], case.after_steps
        both = {"state": after.observations, "next state": after.next_observations}
        for place, (when, observations) in zip(pair, both.items(), strict=True):
            draw_observation(place, observations[0], grid, largest)
            place.set_xlabel(when, fontsize=7)
        name = case.case.name if len(case.case.name) <= 34 else f"{case.case.name[:33]}…"
        pair[0].set_title(f"{name}\ngiven {case.given:.2f}", fontsize=7, loc="left")
    for place in axes.flat[2 * len(shown) :]:
        place.set_axis_off()
    return png(figure)


STEP = Step("counterfactuals", TITLE, run, why_not=why_not, options=lambda subject: str(subject.edits or ""))
