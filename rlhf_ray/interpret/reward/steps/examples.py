"""Report section: the steps that the reward values most and least."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.drawing import draw_observation, png
from rlhf_ray.interpret.reward.examples import Examples, examples
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.study.section import Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext

NAME = "examples"
TITLE = "Steps that it values most and least"

DRAWN = 6
"""Steps drawn of each kind."""
SHOWN = 8
"""Numbers of a vector that a table shows."""


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why the tool does not apply; None if it does."""
    subject = context.subject
    return None if len(subject.data) else "There are no steps."


def run(context: StepContext[Subject]) -> Section:
    """Choose the examples and draw them."""
    subject = context.subject
    data, found = subject.data, examples(subject.reward, subject.data)
    values = {
        "examples": [
            {"kind": each.kind, "indices": each.indices.tolist(), "rewards": each.rewards.tolist()} for each in found
        ]
    }
    grid = subject.regions.layout if subject.regions is not None and subject.regions.kind == "cell" else None
    picture = _picture(found[:2], data, grid)
    caption = "State and next state of the steps with the highest rewards (above) and the lowest ones (below)."
    return Section(
        NAME,
        TITLE,
        _statements(subject, found),
        tables=[_table(subject, found, vectors=picture is None)],
        pictures=[] if picture is None else [Picture("examples", picture, caption)],
        values=values,
    )


def _statements(subject: Subject, found: list[Examples]) -> list[Statement]:
    truth = subject.data.rewards
    highest, lowest = found[0], found[1]
    spread = float(np.ptp(truth)) if np.isfinite(truth).all() else 0.0
    if spread == 0 or highest.rewards[0] - lowest.rewards[0] <= 1e-6 * max(1e-3, abs(highest.rewards[0])):
        return []
    top, bottom = truth[highest.indices].mean(), truth[lowest.indices].mean()
    if top - bottom > 0.5 * spread:
        return []
    text = (
        f"The {len(highest.indices)} steps that it values most have a true reward of {top:.2f} on average, the "
        f"{len(lowest.indices)} that it values least {bottom:.2f}; over the data, it is {truth.min():.2f} to {truth.max():.2f}."
    )
    return [Statement("warning", text, float(0.5 - (top - bottom) / spread))]


def _table(subject: Subject, found: list[Examples], vectors: bool) -> Table:
    data, regions = subject.data, subject.regions
    heads: list[str] = ["kind", "index", "episode", "step", "action", "ends", "true reward", "reward"]
    names: list[str] = []
    if vectors:
        size = int(np.prod(data.observations.shape[1:]))
        names = list(regions.names) if regions is not None and regions.kind == "feature" else ["state"] * (size == 1)
        names = (names or [f"feature {i}" for i in range(size)])[:SHOWN]
        heads += [*names, *(f"next {name}" for name in names)]
    rows: list[list[Any]] = []
    for each in found:
        for index, value in zip(each.indices, each.rewards, strict=True):
            action = np.asarray(data.actions[index])
            said: Any = (
                action.item() if action.ndim == 0 else ", ".join(f"{float(a):.3g}" for a in action.ravel()[:SHOWN])
            )
            place = [int(index), int(data.episodes[index]), int(data.steps[index])]
            truth = float(data.rewards[index])
            true: Any = round(truth, 4) if np.isfinite(truth) else "unknown"
            row = [each.kind, *place, said, "yes" if data.terminated[index] else "", true, round(float(value), 4)]
            for shown in (data.observations[index], data.next_observations[index]):
                row += [round(float(number), 3) for number in np.asarray(shown).ravel()[: len(names)]]
            rows.append(row)
    return Table(heads, rows, "Examples, with their index in the data.")


def _picture(found: list[Examples], data: Transitions, grid: tuple[int, int] | None) -> bytes | None:
    if grid is None and data.observations.ndim != 4:
        return None
    columns = min(DRAWN, max(len(each.indices) for each in found))
    figure = Figure((2.6 * columns, 1.9 * len(found)), layout="constrained")
    axes = figure.subplots(len(found), 2 * columns, squeeze=False)
    most = float(max(data.observations[:200].max(), data.next_observations[:200].max()))
    for row, each in zip(axes, found, strict=True):
        for place in row:
            place.set_axis_off()
        for at, index in enumerate(each.indices[:columns]):
            for place, observation in zip(
                row[2 * at : 2 * at + 2], (data.observations[index], data.next_observations[index]), strict=True
            ):
                place.set_axis_on()
                draw_observation(place, observation, grid, most)
            truth = data.rewards[index]
            true = f", true {truth:.2g}" if np.isfinite(truth) else ""
            row[2 * at].set_title(f"step {index}\n{each.rewards[at]:.2f}{true}", fontsize=7, loc="left")
    return png(figure)


STEP = Step(NAME, TITLE, run, why_not=why_not)
