"""Inputs made to be rated high and low, and how real they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.consistency import gradients_are_own
from rlhf_ray.interpret.reward.manifold import Frame, Manifold, frames_of, total_variation
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.visualisation import (
    Objective,
    Visualisations,
    VisualisationSettings,
    codes_of,
    optimise,
    seen_frames,
)
from rlhf_ray.measure.statistics import constant
from rlhf_ray.study.figures import DRAWN, values_of
from rlhf_ray.study.plots import Tile, gallery
from rlhf_ray.study.section import Check, Picture, Section, Table
from rlhf_ray.study.step import Step, StepContext

TITLE = "Inputs made to be rated high and low"

STEPS = 4000
"""Most steps that inputs are compared with."""
COUNT = 4
"""Inputs of each kind."""
MOST_FEATURES = 12
FEWEST_STEPS = 20
HELD_OUT_OFF, FLAGGED, VARIATION = 0.1, 0.5, 1.05
"""Bounds: most real inputs off the manifold, fewest of those that nothing keeps near the data, most total variation of regularised
ones, relative to the data's mean."""
PLAIN, REGULARISED, CELLS = "not regularised", "regularised", "a few cells changed"


@dataclass(frozen=True)
class MadeUp:
    """Inputs of one kind, made to be rated high or low: of each its reward, whether it is off the manifold, and why."""

    rewards: FloatArray
    off: list[bool]
    reasons: list[tuple[str, ...]]
    kind: str = field(metadata=DRAWN)  # how they were made
    low: bool = field(metadata=DRAWN)  # whether they were made to be rated low
    beyond: float = field(
        metadata=DRAWN
    )  # how far their most extreme reward is beyond the data's, in standard deviations
    made: Visualisations = field(metadata=DRAWN)


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no such inputs."""
    subject = context.subject
    if not seen_frames(subject.scaled):
        return "The reward sees no observations."
    if not subject.scaled.observation_space.shape:
        return "The states are numbers in a table; the heat map shows the reward of each."
    if len(subject.data) < FEWEST_STEPS:
        return f"The data have {len(subject.data)} steps; {FEWEST_STEPS} are needed to say what inputs look like."
    own = subject.scaled.differentiable and gradients_are_own(subject.scaled, subject.data)
    return None if own or codes_of(subject.data) is not None else "No gradients of this reward are known."


def run(context: StepContext[Subject]) -> Section:
    """Make inputs that the reward rates high and low, and say how far from the data they are."""
    subject = context.subject
    reward, frames = subject.scaled, seen_frames(subject.scaled)
    data = subject.data.sample(STEPS, subject.rng("visualisation"))
    rewards = reward.of(data)
    if constant(rewards):
        return Section("visualisation", TITLE, skipped="The reward is constant: no input is rated higher than another.")
    seed = int(subject.rng("visualisation seed").integers(2**31))
    manifold, coded = Manifold(data, frames, seed), codes_of(data) is not None
    settings = VisualisationSettings(max(10, round(150 * subject.effort)), "action" in reward.inputs)
    kinds = {PLAIN: replace(settings, regularised=False), REGULARISED: settings}
    figures: dict[tuple[str, bool], MadeUp] = {}
    for kind, how in ({CELLS: settings} if coded else kinds).items():
        for low in (False, True):
            made = optimise(reward, data, seed, Objective(low=low), COUNT, how, manifold)
            up, down = made.rewards.max() - rewards.max(), rewards.min() - made.rewards.min()
            beyond = float(down if low else up) / float(rewards.std())
            reasons = [distance.reasons for distance in made.distances]
            figures[kind, low] = MadeUp(made.rewards, made.off, reasons, kind, low, beyond, made)
    regularised = [] if coded else [figures[REGULARISED, low].made.steps for low in (False, True)]
    flagged = variation = None
    if manifold.mean_variation is not None:  # vectors stay within their bounds, and their extremes may well be real
        flagged = float(np.mean(figures[PLAIN, False].off + figures[PLAIN, True].off))
        images = [frame for steps in regularised for frame in frames_of(steps, frames)]
        most = max(float(total_variation(each).max()) for each in images)
        variation = most / max(manifold.mean_variation, 1e-9)
    checks = list(_checks(manifold.held_out_off, flagged, variation))
    ends = {"lowest": float(rewards.min()), "highest": float(rewards.max()), "mean": float(rewards.mean())}
    tables = [_table(ends, list(figures.values()))]
    if not manifold.images and not coded:
        columns, rows = ["feature", "data", "deviation", "rated high", "rated low"], _features(subject, *regularised)
        tables.append(Table(columns, rows[:MOST_FEATURES], "Regularised inputs, the features that differ most."))
    pictures = []
    if manifold.images or subject.grid is not None:
        pictures = [_picture(data, rewards, list(figures.values()), low, frames, subject.grid) for low in (False, True)]
    by_name = {f"{kind}, {'low' if low else 'high'}": values_of(each) for (kind, low), each in figures.items()}
    values = {"data": ends, "held_out_off": manifold.held_out_off, "made": by_name}
    return Section("visualisation", TITLE, checks, (), tables, pictures, (), values)


def _features(subject: Subject, up: Transitions, down: Transitions) -> list[list[Any]]:
    """Compare features: name, mean and spread in the data, mean in inputs rated high and low; the most different first."""
    frames, rows, shifts = seen_frames(subject.scaled), list[list[Any]](), list[float]()
    for frame in frames:
        real, high, low = (
            frames_of(steps, [frame])[0].reshape(len(steps), -1).astype(np.float64)
            for steps in (subject.data, up, down)
        )
        names: Sequence[str] = [f"feature {i}" for i in range(real.shape[1])]
        if subject.regions is not None and len(subject.regions) == real.shape[1]:
            names = subject.regions.names
        when = f" ({'before' if frame == 'state' else 'after'})" if len(frames) > 1 else ""
        mean, spread, above, below = real.mean(0), real.std(0), high.mean(0), low.mean(0)
        shifts += np.where(spread > 1e-9, (above - below) / np.maximum(spread, 1e-9), 0.0).tolist()
        columns = (each.tolist() for each in (mean, spread, above, below))
        rows += [[name + when, *row] for name, *row in zip(names, *columns, strict=True)]
    return [rows[i] for i in np.argsort(-np.abs(shifts), kind="stable")]


def _picture(
    data: Transitions,
    rewards: FloatArray,
    made: Sequence[MadeUp],
    low: bool,
    frames: Sequence[Frame],
    grid: tuple[int, int] | None,
) -> Picture:
    """Draw the inputs rated low or high beside the data's lowest or highest."""

    def tile(steps: Transitions, i: int, reward: float, off: bool = False) -> Tile:
        shown = [frame[i] if grid is None else frame[i].reshape(grid) for frame in frames_of(steps, frames)]
        return Tile(shown, f"{reward:.2f}" + ("\noff the manifold" if off else ""), off)

    order, rated = np.argsort(rewards if low else -rewards, kind="stable")[:COUNT], "low" if low else "high"
    rows = [(f"the data's {rated}est", [tile(data, int(i), rewards[i]) for i in order])]
    for each in (each for each in made if each.low == low):
        tiles = [tile(each.made.steps, i, each.rewards[i], off) for i, off in enumerate(each.off)]
        rows.append((each.kind, tiles))
    when = " (before | after the step)" if len(frames) > 1 else ""
    caption = (
        f"Inputs rated {rated}, with their rewards{when}. Red: off the manifold; it never learned what to say there."
    )
    return Picture(f"rated_{rated}", gallery(rows, float(np.max(data.observations))), caption)


def _checks(held_out_off: float, flagged: float | None, variation: float | None) -> Iterator[Check]:
    bounded: list[tuple[str, float | None, float, bool, str]] = [
        (
            "real inputs that count as off the manifold",
            held_out_off,
            HELD_OUT_OFF,
            False,
            "The data's episodes differ so much that the red frames say little.",
        ),
        (
            "unregularised inputs off the manifold",
            flagged,
            FLAGGED,
            True,
            "The reward has its extremes near the data, or the distance misses something.",
        ),
        (
            "total variation of regularised inputs, beside the data's",
            variation,
            VARIATION,
            False,
            "The reward pays for fine patterns.",
        ),
    ]
    for name, value, bound, least, remedy in bounded:
        if value is not None:
            passed = value >= bound if least else value <= bound
            yield Check.of(name, passed, value, f"{'≥' if least else '≤'} {bound:g}", remedy)


def _table(data: dict[str, float], made: Sequence[MadeUp]) -> Table:
    rows: list[list[Any]] = [["the data", "", data["lowest"], data["highest"], None, "", ""]]
    for each in made:
        reasons = {reason for all_reasons in each.reasons for reason in all_reasons}
        off, why = f"{sum(each.off)} of {len(each.off)}", max(reasons, default="")
        ends = float(each.rewards.min()), float(each.rewards.max())
        rows.append([each.kind, "low" if each.low else "high", *ends, each.beyond, off, why])
    beyond = "beyond the data, in deviations"
    columns = ["inputs", "made for", "lowest reward", "highest reward", beyond, "off the manifold", "why"]
    return Table(columns, rows, "Rewards of made-up inputs beside those of the data.")


STEP = Step("visualisation", TITLE, run, why_not=why_not)
