"""The reward of the user's own edits of steps, beside the reward that they should get."""

from __future__ import annotations

import numpy as np

from rlhf_ray.interpret.effects.regions import object_names
from rlhf_ray.interpret.reward.counterfactuals import evaluate, evaluate_folder, read_edits
from rlhf_ray.interpret.reward.steps.examples import step_tile
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.figures import values_of
from rlhf_ray.study.plots import gallery
from rlhf_ray.study.section import Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Your edits"
DRAWN_CASES = 8


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no counterfactuals; None if there are."""
    return "You gave none (--edits: a JSON file, or a folder of PNGs)." if context.subject.edits is None else None


def run(context: StepContext[Subject]) -> Section:
    """Evaluate the subject's edits.

    Raises:
        SettingError: an edit doesn't fit the observations.
    """
    subject = context.subject
    assert subject.edits is not None, "why_not() says so"
    if subject.edits.is_dir():
        pictured = evaluate_folder(subject.scaled, subject.edits)
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
    tiles = []
    for one in [one for one in outcomes if one.steps and one.case.edits][:DRAWN_CASES]:
        name = one.case.name if len(one.case.name) <= 34 else f"{one.case.name[:33]}…"
        after = one.after_steps.observations[0], one.after_steps.next_observations[0]
        if grid is not None or after[0].ndim == 3:
            tiles.append(step_tile(f"{name}\ngiven {one.given:.2f}", *after, grid))
    pictures = []
    if tiles:
        largest = float(np.max(subject.data.observations))
        image = gallery([("", tiles[at : at + 4]) for at in range(0, len(tiles), 4)], largest)
        pictures = [Picture("cases", image, "A step of each case, after its edits: state and next state.")]
    values = {"cases": values_of(outcomes)}
    return Section("counterfactuals", TITLE, (), (), [Table(columns, rows, caption)], pictures, (), values)


STEP = Step("counterfactuals", TITLE, run, why_not=why_not, options=lambda subject: str(subject.edits or ""))
