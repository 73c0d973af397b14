"""Some of a run's comparisons: the fragments, the answers, and the true and learned returns."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.data.returns import differences
from rlhf_ray.labelling.camera import picture
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.probe import learned_rewards
from rlhf_ray.runs.report.subject import Run
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Picture, Section
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

SHOWN = 6
"""Number of comparisons shown on the page."""
FRAMES = 8
"""Number of frames in a film strip."""
SIDE = 96
"""Least height of a frame, in pixels."""
FPS = 15
"""Frames per second of a replayed fragment."""
COMPONENTS = 8
"""Maximum number of plotted components of an observation, and of an action."""


@dataclass(frozen=True)
class ShownPair:
    """One comparison of the report; pairs are (left, right).

    Attributes:
        number: counts from 1, in the order in which answers were stored.
        annotator: who answered.
        preference: 1: left, 0: right, 0.5: both are equally good.
        true_returns: NaN if unknown.
        learned_returns: sums of the reward model's rewards, normalised as in training; NaN without one.
        against_true_return: whether the true returns contradict the answer. False for a tie, equal returns, or if they are unknown.
        policies: versions of the policies that acted; None for random actions.
        starts: number of episode steps before the fragments.
    """

    number: int
    annotator: str
    preference: float
    true_returns: tuple[float, float]
    learned_returns: tuple[float, float]
    against_true_return: bool
    policies: tuple[int | None, int | None]
    starts: tuple[int, int]

    @property
    def model_agrees(self) -> bool | None:
        """Whether the reward model gives the preferred side the higher return; None for a tie or without a model."""
        difference = self.learned_returns[0] - self.learned_returns[1]
        if self.preference == 0.5 or math.isnan(difference):
            return None
        return difference * (self.preference - 0.5) > 0


def why_not(context: StepContext[Run]) -> str | None:
    """Return why there is nothing to show: no comparisons."""
    stored = context.subject.comparisons
    return None if stored is not None and len(stored) else WORDS.text("none")


def run(context: StepContext[Run]) -> Section:
    """Show comparisons from the first to the last."""
    stored, reward = context.subject.comparisons, context.subject.reward
    assert stored is not None  # see why_not
    chosen = choose(stored.preferences, SHOWN)
    pairs, pictures = show_pairs(stored, reward, chosen)
    note = WORDS.statement("note", shown=len(pairs), stored=len(stored), reward=reward)
    return WORDS.section([note], pictures=pictures, figures={"pairs": pairs})


def choose(preferences: FloatArray, count: int) -> IntArray:
    """Choose ``count`` positions spread evenly over a run's answers without ties, and one tie in place of one of them if any."""
    ties, decided = np.flatnonzero(preferences == 0.5), np.flatnonzero(preferences != 0.5)
    shown_ties = ties[len(ties) // 2 :][: min(1, count)] if len(decided) >= count else ties[:count]
    wanted = min(count - len(shown_ties), len(decided))
    spread = np.linspace(0, len(decided) - 1, wanted).round().astype(np.int64) if wanted else np.array([], np.int64)
    return np.sort(np.concatenate([decided[spread], shown_ties]))


def show_pairs(
    comparisons: Comparisons,
    reward: RewardEnsemble | None,
    chosen: IntArray,
    first: int = 1,
    films: bool = False,
    errors: Sequence[float | None] | None = None,
) -> tuple[list[ShownPair], list[Picture]]:
    """Prepare some of the comparisons for a page.

    Args:
        comparisons: the comparisons.
        reward: the reward model, if there is one.
        chosen: positions of those to show.
        first: number of the comparison at position 0.
        films: show image observations as films instead of film strips.
        errors: how likely each answer is wrong, if known.

    Returns:
        What is known of them, and a picture of each.
    """
    shown = comparisons[chosen]
    sides = (shown.pairs.left, shown.pairs.right)
    learned = [np.full(len(shown), np.nan) if reward is None else learned_rewards(reward, s).sum(1) for s in sides]
    returns = [side.returns() for side in sides]
    against = differences(sides[0].rewards, sides[1].rewards) * (shown.preferences - 0.5) < 0
    pairs, pictures = [], []
    for i, position in enumerate(chosen):
        versions = [int(side.policy_versions[i]) for side in sides]
        left, right = (None if version == RANDOM_POLICY else version for version in versions)
        pair = ShownPair(
            first + int(position),
            shown.annotators[i],
            float(shown.preferences[i]),
            (float(returns[0][i]), float(returns[1][i])),
            (float(learned[0][i]), float(learned[1][i])),
            bool(against[i]),
            (left, right),
            (int(sides[0].starts[i]), int(sides[1].starts[i])),
        )
        image, components = _draw(sides[0][i : i + 1], sides[1][i : i + 1], films)
        error = None if errors is None else errors[i]
        caption = WORDS.text("comparison", pair=pair, error=error, hidden=components)
        pairs.append(pair)
        pictures.append(Picture(f"comparison_{pair.number}", image, caption))
    return pairs, pictures


def _draw(left: Fragments, right: Fragments, film: bool) -> tuple[bytes, int]:
    """Draw both fragments beside each other: a PNG or an animated WebP, and the number of components that are not shown."""
    if left.observations.dtype == np.uint8 and left.observations.ndim == 5:
        frames = [[picture(frame) for frame in side.observations[0]] for side in (left, right)]
        return (_film if film else _strips)(*frames), 0
    observed = [*_components("observation", left.observations[0], right.observations[0])]
    acted = [*_components("action", left.actions[0], right.actions[0])]
    rows = observed[:COMPONENTS] + acted[:COMPONENTS]
    figure = Figure(figsize=(9, 0.5 + 0.4 * len(rows)))
    figure.subplots_adjust(0.22, 0.16, 0.99, 0.88, 0.03)
    for side, axes in enumerate(figure.subplots(1, 2, sharey=True)):
        for height, (name, _, values) in enumerate(rows):
            action = name.startswith("action")
            axes.plot(
                height + 0.4 - 0.8 * values[side],
                color="#d55e00" if action else "#1b1f24",
                linewidth=1,
                drawstyle="steps-post" if action else "default",
            )
        axes.set_title(("left", "right")[side], fontsize=9)
        axes.tick_params(labelsize=7)
        axes.set_frame_on(False)
    figure.axes[0].set_yticks(range(len(rows)), [f"{name}, {bounds}" for name, bounds, _ in rows])
    figure.axes[0].invert_yaxis()
    return png(figure, 80), len(observed) + len(acted) - len(rows)


def _components(name: str, left: Array, right: Array) -> Iterator[tuple[str, str, list[FloatArray]]]:
    """Yield name, bounds and both sides' values of each component, scaled to 0 to 1; a constant one is at half height."""
    sides = [values.reshape(len(values), -1).astype(np.float64) for values in (left, right)]
    if name == "action":  # it lasts until the next step
        sides = [np.concatenate([values, values[-1:]]) for values in sides]
    for i in range(sides[0].shape[1]):
        both = np.stack([values[:, i] for values in sides])
        finite = both[np.isfinite(both)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
        shares = (both - low) / (high - low) if high > low else np.full(both.shape, 0.5)
        bounds = f"{low:.3g} to {high:.3g}" if high > low else f"{low:.3g}"
        yield f"{name}[{i}]", bounds, [np.where(np.isfinite(side), side, np.nan) for side in shares]


def _strips(left: Sequence[Array], right: Sequence[Array]) -> bytes:
    """Draw evenly spaced frames of both sides, the left one above the right one."""
    steps = np.linspace(0, len(left) - 1, min(FRAMES, len(left))).round().astype(int)
    rows = [np.concatenate([_framed(side[step]) for step in steps], 1) for side in (left, right)]
    buffer = io.BytesIO()
    Image.fromarray(np.concatenate(rows, 0)).save(buffer, "PNG")
    return buffer.getvalue()


def _film(left: Sequence[Array], right: Sequence[Array]) -> bytes:
    """Draw both sides beside each other as an animated WebP that repeats."""
    frames = [Image.fromarray(np.concatenate([_framed(a), _framed(b)], 1)) for a, b in zip(left, right, strict=True)]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "WEBP", save_all=True, append_images=frames[1:], duration=1000 // FPS, loop=0, lossless=True, method=0
    )
    return buffer.getvalue()


def _framed(frame: Array) -> Array:
    """Enlarge a small frame by a whole factor, and leave a white edge around it."""
    factor = max(1, SIDE // frame.shape[0])
    enlarged = frame.repeat(factor, 0).repeat(factor, 1)
    return np.pad(enlarged, ((2, 2), (2, 2), (0, 0)), constant_values=255)


STEP = Step(WORDS.name, WORDS.title, run, why_not=why_not)
