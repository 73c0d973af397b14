"""Inputs made to be rated high and low, and how real they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.consistency import gradients_are_own
from rlhf_ray.interpret.reward.gallery import Tile, gallery
from rlhf_ray.interpret.reward.manifold import Manifold, frames_of, total_variation
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
    """Inputs of one kind, made to be rated high or low.

    Attributes:
        rewards, off, reasons: of each input: its reward, whether it is off the manifold, and why.
        kind: how they were made.
        low: whether they were made to be rated low.
        beyond: how far their most extreme reward is beyond the data's, in standard deviations.
        made: the inputs.
    """

    rewards: FloatArray
    off: list[bool]
    reasons: list[tuple[str, ...]]
    kind: str = field(metadata=DRAWN)
    low: bool = field(metadata=DRAWN)
    beyond: float = field(metadata=DRAWN)
    made: Visualisations = field(metadata=DRAWN)

    @property
    def name(self) -> str:
        """The kind, and what they were made for."""
        return f"{self.kind}, {'low' if self.low else 'high'}"


@dataclass(frozen=True)
class VisualisationFigures:
    """What the step finds.

    Attributes:
        data: lowest, highest and mean reward in the data.
        held_out_off: share of the data that is off the manifold by its own measure.
        made: the inputs, by kind and direction.
        flagged: share of the inputs that nothing keeps near the data that is off the manifold; None unless they are images.
        variation: total variation of the regularised inputs, relative to the data's mean; None for vectors.
        features: of vectors: name, mean and spread in the data, mean in inputs rated high and low; the most different first.
    """

    data: dict[str, float]
    held_out_off: float
    made: dict[str, MadeUp]
    flagged: float | None = field(default=None, metadata=DRAWN)
    variation: float | None = field(default=None, metadata=DRAWN)
    features: list[list[Any]] = field(default_factory=list, metadata=DRAWN)


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
    making = _Making(context.subject)
    if constant(making.rewards):
        return Section("visualisation", TITLE, skipped="The reward is constant: no input is rated higher than another.")
    figures = making.measure()
    pictures = list(making.pictures(figures))
    tables = list(_tables(figures))
    return Section("visualisation", TITLE, list(_checks(figures)), (), tables, pictures, (), values_of(figures))


class _Making:
    """Makes the inputs for a subject, and compares them with its data."""

    def __init__(self, subject: Subject):
        self.subject, self.frames = subject, seen_frames(subject.scaled)
        self.data = subject.data.sample(STEPS, subject.rng("visualisation"))
        self.seed = int(subject.rng("visualisation seed").integers(2**31))
        self.rewards = subject.scaled.of(self.data)
        self.coded = codes_of(self.data) is not None

    @cached_property
    def manifold(self) -> Manifold:
        return Manifold(self.data, self.frames, self.seed)

    def measure(self) -> VisualisationFigures:
        reward, images = self.subject.scaled, self.manifold.images
        action, steps = "action" in reward.inputs, max(10, round(150 * self.subject.effort))
        settings = VisualisationSettings(steps, action)
        kinds = {PLAIN: replace(settings, regularised=False), REGULARISED: settings}
        figures = {}
        for kind, how in ({CELLS: settings} if self.coded else kinds).items():
            for low in (False, True):
                made = optimise(reward, self.data, self.seed, Objective(low=low), COUNT, how, self.manifold)
                up, down = made.rewards.max() - self.rewards.max(), self.rewards.min() - made.rewards.min()
                beyond = float(down if low else up) / float(self.rewards.std())
                reasons = [distance.reasons for distance in made.distances]
                figures[kind, low] = MadeUp(made.rewards, made.off, reasons, kind, low, beyond, made)
        regularised = [] if self.coded else [figures[REGULARISED, low].made.steps for low in (False, True)]
        flagged = None  # of images: vectors stay within their bounds, and their extremes may well be real
        if images:
            flagged = float(np.mean(figures[PLAIN, False].off + figures[PLAIN, True].off))
        lowest, highest, mean = map(float, (self.rewards.min(), self.rewards.max(), self.rewards.mean()))
        return VisualisationFigures(
            {"lowest": lowest, "highest": highest, "mean": mean},
            self.manifold.held_out_off,
            {each.name: each for each in figures.values()},
            flagged,
            self._variation(regularised),
            [] if images or self.coded else self._features(*regularised),
        )

    def _variation(self, regularised: list[Transitions]) -> float | None:
        if (mean := self.manifold.mean_variation) is None:
            return None
        images = [frame for steps in regularised for frame in frames_of(steps, self.frames)]
        return max(float(total_variation(each).max()) for each in images) / max(mean, 1e-9)

    def _features(self, up: Transitions, down: Transitions) -> list[list[Any]]:
        regions, rows, shifts = self.subject.regions, list[list[Any]](), list[float]()
        for frame in self.frames:
            real, high, low = (
                frames_of(steps, [frame])[0].reshape(len(steps), -1).astype(np.float64)
                for steps in (self.subject.data, up, down)
            )
            own = regions is not None and len(regions.names) == real.shape[1]
            names = regions.names if regions is not None and own else [f"feature {i}" for i in range(real.shape[1])]
            when = f" ({'before' if frame == 'state' else 'after'})" if len(self.frames) > 1 else ""
            mean, spread, above, below = real.mean(0), real.std(0), high.mean(0), low.mean(0)
            shifts += np.where(spread > 1e-9, (above - below) / np.maximum(spread, 1e-9), 0.0).tolist()
            columns = (each.tolist() for each in (mean, spread, above, below))
            rows += [[name + when, *row] for name, *row in zip(names, *columns, strict=True)]
        return [rows[i] for i in np.argsort(-np.abs(shifts), kind="stable")]

    def pictures(self, figures: VisualisationFigures) -> Iterator[Picture]:
        """Draw the inputs beside the data's highest and lowest."""
        regions, most = self.subject.regions, float(np.max(self.data.observations))
        grid = regions.layout if regions is not None and regions.kind == "cell" else None
        if not self.manifold.images and grid is None:
            return

        def tile(steps: Transitions, i: int, reward: float, off: bool = False) -> Tile:
            shown = [frame[i] if grid is None else frame[i].reshape(grid) for frame in frames_of(steps, self.frames)]
            return Tile(shown, f"{reward:.2f}" + ("\noff the manifold" if off else ""), off)

        for low, rated in ((False, "high"), (True, "low")):
            order = np.argsort(self.rewards if low else -self.rewards, kind="stable")[:COUNT]
            rows = [(f"the data's {rated}est", [tile(self.data, int(i), self.rewards[i]) for i in order])]
            for each in figures.made.values():
                if each.low == low:
                    made = enumerate(zip(each.rewards, each.off, strict=True))
                    rows.append((each.kind, [tile(each.made.steps, i, reward, off) for i, (reward, off) in made]))
            when = " (before | after the step)" if len(self.frames) > 1 else ""
            caption = f"Inputs rated {rated}, with their rewards{when}. Red: off the manifold; it never learned what to say there."
            yield Picture(f"rated_{rated}", gallery(rows, most), caption)


def _checks(figures: VisualisationFigures) -> Iterator[Check]:
    bounded: list[tuple[str, float | None, float, bool, str]] = [
        ("real inputs that count as off the manifold", figures.held_out_off, HELD_OUT_OFF, False,
         "The data's episodes differ so much that the red frames say little."),
        ("unregularised inputs off the manifold", figures.flagged, FLAGGED, True,
         "The reward has its extremes near the data, or the distance misses something."),
        ("total variation of regularised inputs, beside the data's", figures.variation, VARIATION, False,
         "The reward pays for fine patterns."),
    ]  # fmt: skip
    for name, value, bound, least, remedy in bounded:
        if value is not None:
            passed = value >= bound if least else value <= bound
            text = f"{'≥' if least else '≤'} {bound:g}"
            yield Check(name, passed, value, bound=text, remedy="" if passed else remedy)


def _tables(figures: VisualisationFigures) -> Iterator[Table]:
    rows: list[list[Any]] = [["the data", "", figures.data["lowest"], figures.data["highest"], None, "", ""]]
    for each in figures.made.values():
        reasons = {reason for all_reasons in each.reasons for reason in all_reasons}
        off, why = f"{sum(each.off)} of {len(each.off)}", max(reasons, default="")
        ends = float(each.rewards.min()), float(each.rewards.max())
        rows.append([each.kind, "low" if each.low else "high", *ends, each.beyond, off, why])
    beyond = "beyond the data, in deviations"
    columns = ["inputs", "made for", "lowest reward", "highest reward", beyond, "off the manifold", "why"]
    yield Table(columns, rows, "Rewards of made-up inputs beside those of the data.")
    if figures.features:
        columns = ["feature", "data", "deviation", "rated high", "rated low"]
        yield Table(columns, figures.features[:MOST_FEATURES], "Regularised inputs, the features that differ most.")


STEP = Step("visualisation", TITLE, run, why_not=why_not)
