"""Inputs made to be rated high and low, and how real they are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.reward.codes import codes_of
from rlhf_ray.interpret.reward.consistency import gradients_are_own
from rlhf_ray.interpret.reward.gallery import Tile, gallery
from rlhf_ray.interpret.reward.manifold import Manifold, frames_of, total_variation
from rlhf_ray.interpret.reward.prior import fit_prior
from rlhf_ray.interpret.reward.subject import Subject
from rlhf_ray.interpret.reward.visualisation import (
    Objective,
    Visualisations,
    VisualisationSettings,
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
HELD_OUT_OFF = 0.1
"""Largest share of real inputs that may count as off the manifold."""
EXPLAINED = 0.3
"""Share of held-out images' variance that the prior has to explain."""
FLAGGED = 0.5
"""Share of inputs that nothing keeps near the data which must be off the manifold."""
VARIATION = 1.05
"""Largest total variation of the regularised inputs, relative to the data's mean."""
PLAIN, REGULARISED, PRIOR, CELLS = "not regularised", "regularised", "with a prior", "a few cells changed"


@dataclass(frozen=True)
class MadeUp:
    """Inputs of one kind, made to be rated high or low.

    Attributes:
        rewards, off, reasons: of each input: its reward, whether it is off the manifold, and why.
        kind: how they were made.
        low: whether they were made to be rated low.
        extreme, real: their most extreme reward, and the data's.
        beyond: how far that is beyond the data's, in standard deviations.
        made: the inputs.
    """

    rewards: FloatArray
    off: list[bool]
    reasons: list[tuple[str, ...]]
    kind: str = field(metadata=DRAWN)
    low: bool = field(metadata=DRAWN)
    extreme: float = field(metadata=DRAWN)
    real: float = field(metadata=DRAWN)
    beyond: float = field(metadata=DRAWN)
    made: Visualisations = field(metadata=DRAWN)

    @property
    def name(self) -> str:
        """The kind, and what they were made for."""
        return f"{self.kind}, {'low' if self.low else 'high'}"


@dataclass(frozen=True)
class FeatureShift:
    """A feature: its mean and spread in the data, its mean in inputs rated high and low, their difference in spreads."""

    name: str
    mean: float
    spread: float
    high: float
    low: float
    shift: float


@dataclass(frozen=True)
class VisualisationFigures:
    """What the step finds.

    Attributes:
        data: lowest, highest and mean reward in the data.
        held_out_off: share of the data that is off the manifold by its own measure.
        made: the inputs, by kind and direction.
        prior_explains: share of held-out images' variance that the prior explains; None without a prior.
        flagged: share of the inputs that nothing keeps near the data that is off the manifold; None unless they are images.
        variation: total variation of the regularised inputs, relative to the data's mean; None for vectors.
        features: how inputs rated high and low differ, the largest difference first; for vectors.
    """

    data: dict[str, float]
    held_out_off: float
    made: dict[str, MadeUp]
    prior_explains: float | None = None
    flagged: float | None = field(default=None, metadata=DRAWN)
    variation: float | None = field(default=None, metadata=DRAWN)
    features: tuple[FeatureShift, ...] = field(default=(), metadata=DRAWN)


def why_not(context: StepContext[Subject]) -> str | None:
    """Return why there are no such inputs."""
    subject = context.subject
    if not seen_frames(subject.scaled):
        return "The reward sees no observations."
    if not subject.scaled.observation_space.shape:
        return "The states are numbers in a table; the heat map shows the reward of each."
    if len(subject.data) < FEWEST_STEPS:
        return (
            f"The data have {len(subject.data)} steps; at least {FEWEST_STEPS} are needed to say what inputs look like."
        )
    own = subject.scaled.differentiable and gradients_are_own(subject.scaled, subject.data)
    gradients = codes_of(subject.data) is not None or own
    return None if gradients else "No gradients of this reward are known."


def run(context: StepContext[Subject]) -> Section:
    """Make inputs that the reward rates high and low, and say how far from the data they are."""
    making = _Making(context.subject)
    if constant(making.rewards):
        return Section("visualisation", TITLE, skipped="The reward is constant: no input is rated higher than another.")
    figures = making.measure()
    pictures = list(making.pictures(figures))
    return Section(
        "visualisation", TITLE, list(_checks(figures)), (), list(_tables(figures)), pictures, (), values_of(figures)
    )


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
        reward, images, effort = self.subject.scaled, self.manifold.images, self.subject.effort
        prior = fit_prior(self.data, self.frames, self.seed, steps=max(20, round(400 * effort))) if images else None
        made = {
            (kind, low): optimise(
                reward, self.data, self.seed, Objective(low=low), COUNT, settings, self.manifold, prior
            )
            for kind, settings in self._kinds().items()
            for low in (False, True)
        }
        lowest, highest, mean = (
            float(value) for value in (self.rewards.min(), self.rewards.max(), self.rewards.mean())
        )
        flagged = float(np.mean(made[PLAIN, False].off + made[PLAIN, True].off)) if images and not self.coded else None
        figures = [self._made_up(kind, low, each) for (kind, low), each in made.items()]
        regularised = [made[REGULARISED, low].steps for low in (False, True)] if not self.coded else []
        return VisualisationFigures(
            {"lowest": lowest, "highest": highest, "mean": mean},
            self.manifold.held_out_off,
            {each.name: each for each in figures},
            None if prior is None else prior.explained,
            flagged,  # vectors stay within their bounds: their extremes may well be real
            self._variation(regularised),
            () if images or self.coded else tuple(self._features(*regularised)),
        )

    def _kinds(self) -> dict[str, VisualisationSettings]:
        action, steps = "action" in self.subject.scaled.inputs, max(10, round(150 * self.subject.effort))
        settings = VisualisationSettings(action="best" if action else "fixed", steps=steps)
        if self.coded:
            return {CELLS: settings}
        kinds = {PLAIN: settings.unregularised(), REGULARISED: settings}
        return kinds | {PRIOR: replace(settings, parametrisation="prior")} if self.manifold.images else kinds

    def _made_up(self, kind: str, low: bool, made: Visualisations) -> MadeUp:
        real, extreme = (float(values.min() if low else values.max()) for values in (self.rewards, made.rewards))
        beyond = (real - extreme if low else extreme - real) / float(self.rewards.std())
        reasons = [distance.reasons for distance in made.distances]
        return MadeUp(made.rewards, made.off, reasons, kind, low, extreme, real, beyond, made)

    def _variation(self, regularised: list[Transitions]) -> float | None:
        mean = self.manifold.mean_variation
        if mean is None:
            return None
        images = [frame for steps in regularised for frame in frames_of(steps, self.manifold.frames)]
        return max(float(total_variation(each).max()) for each in images) / max(mean, 1e-9)

    def _features(self, up: Transitions, down: Transitions) -> list[FeatureShift]:
        regions, frames = self.subject.regions, self.manifold.frames
        shifts = []
        for frame in frames:
            real, high, low = (
                frames_of(steps, [frame])[0].reshape(len(steps), -1).astype(np.float64)
                for steps in (self.subject.data, up, down)
            )
            size = real.shape[1]
            own = regions is not None and len(regions.names) == size
            names = regions.names if regions is not None and own else [f"feature {i}" for i in range(size)]
            when = f" ({'before' if frame == 'state' else 'after'})" if len(frames) > 1 else ""
            mean, spread, above, below = real.mean(0), real.std(0), high.mean(0), low.mean(0)
            shift = np.where(spread > 1e-9, (above - below) / np.maximum(spread, 1e-9), 0.0)
            columns = zip(*(each.tolist() for each in (mean, spread, above, below, shift)), strict=True)
            shifts += [FeatureShift(name + when, *each) for name, each in zip(names, columns, strict=True)]
        return sorted(shifts, key=lambda each: -abs(each.shift))

    def pictures(self, figures: VisualisationFigures) -> Iterator[Picture]:
        """Draw the inputs beside the data's highest and lowest."""
        regions, most = self.subject.regions, float(np.max(self.data.observations))
        grid = regions.layout if regions is not None and regions.kind == "cell" else None
        if not self.manifold.images and grid is None:
            return

        def tile(steps: Transitions, i: int, text: str, off: bool = False) -> Tile:
            shown: list[Array] = [frame[i] for frame in frames_of(steps, self.manifold.frames)]
            return Tile(shown if grid is None else [each.reshape(grid) for each in shown], text, off)

        for low in (False, True):
            order = np.argsort(self.rewards if low else -self.rewards, kind="stable")[:COUNT]
            real = [tile(self.data, i, f"{self.rewards[i]:.2f}") for i in order]
            rows = [("the data's " + ("lowest" if low else "highest"), real)]
            for each in figures.made.values():
                if each.low == low:
                    texts = [
                        f"{r:.2f}" + ("\noff the manifold" if o else "")
                        for r, o in zip(each.rewards, each.off, strict=True)
                    ]
                    rows.append(
                        (each.kind, [tile(each.made.steps, i, texts[i], each.off[i]) for i in range(len(texts))])
                    )
            when = " (before | after the step)" if len(self.manifold.frames) > 1 else ""
            rated = "low" if low else "high"
            caption = f"Inputs rated {rated}, with their rewards{when}. Red: off the manifold; it never learned what to say there."
            yield Picture(f"rated_{rated}", gallery(rows, most), caption)


def _checks(figures: VisualisationFigures) -> Iterator[Check]:
    yield _bounded(
        "real inputs that count as off the manifold",
        figures.held_out_off,
        HELD_OUT_OFF,
        "The data's episodes differ so much that the red frames say little.",
    )
    if (prior := figures.prior_explains) is not None:
        name, remedy = "held-out images' variance that the prior explains", "Its images are blurred averages."
        yield _bounded(name, prior, EXPLAINED, remedy, least=True)
    if (flagged := figures.flagged) is not None:
        remedy = "The reward has its extremes near the data, or the distance misses something."
        yield _bounded("unregularised inputs off the manifold", flagged, FLAGGED, remedy, least=True)
    if (variation := figures.variation) is not None:
        name, remedy = "total variation of regularised inputs, beside the data's", "The reward pays for fine patterns."
        yield _bounded(name, variation, VARIATION, remedy)


def _bounded(name: str, value: float, bound: float, remedy: str, least: bool = False) -> Check:
    passed = value >= bound if least else value <= bound
    return Check(name, passed, value, bound=f"{'≥' if least else '≤'} {bound:g}", remedy="" if passed else remedy)


def _tables(figures: VisualisationFigures) -> Iterator[Table]:
    rows: list[list[Any]] = [["the data", "", figures.data["lowest"], figures.data["highest"], None, "", ""]]
    for each in figures.made.values():
        reasons = {reason for all_reasons in each.reasons for reason in all_reasons}
        off, why = f"{sum(each.off)} of {len(each.off)}", max(reasons, default="")
        ends = float(each.rewards.min()), float(each.rewards.max())
        rows.append([each.kind, "low" if each.low else "high", *ends, each.beyond, off, why])
    columns = [
        "inputs",
        "made for",
        "lowest reward",
        "highest reward",
        "beyond the data, in deviations",
        "off the manifold",
        "why",
    ]
    yield Table(columns, rows, "Rewards of made-up inputs beside those of the data.")
    if figures.features:
        shown = figures.features[:MOST_FEATURES]
        features = [[each.name, each.mean, each.spread, each.high, each.low] for each in shown]
        columns = ["feature", "data", "deviation", "rated high", "rated low"]
        yield Table(columns, features, "Regularised inputs, the features that differ most.")


STEP = Step("visualisation", TITLE, run, why_not=why_not)
