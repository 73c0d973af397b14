"""Prepares some of a run's comparisons for the report: the fragments, the answer, and the true and learned returns."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from markupsafe import Markup
from matplotlib.image import imsave
from PIL import Image

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.data.returns import differences
from rlhf_ray.labelling.films import picture
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.probe import learned_rewards

Answer = Literal["preferred", "other", "tie"]

FRAMES = 8
"""Number of frames in a film strip."""
FPS = 15
"""Frames per second of a replayed fragment."""
COMPONENTS = 8
"""Maximum number of plotted components of an observation, and of an action."""


@dataclass(frozen=True)
class Frame:
    """One frame of a film strip: its step, and a PNG image as a data URI."""

    step: int
    image: str


@dataclass(frozen=True)
class Side:
    """One fragment of a comparison.

    Attributes:
        name: left or right.
        answer: the teacher's answer for this fragment.
        true_return: true return; NaN if unknown.
        learned_return: sum of the saved reward model's rewards, normalised as in training; NaN without one.
        policy: the policy that acted.
        start: number of episode steps before the fragment.
        frames: a film strip, for image observations.
        film: an animated WebP as a data URI, for image observations that are replayed; else empty.
        plot: components over steps, for vector observations.
        left_out: number of components that the plot does not show.
    """

    name: str
    answer: Answer
    true_return: float
    learned_return: float
    policy: str
    start: int
    frames: tuple[Frame, ...]
    plot: Markup | None
    left_out: int
    film: str = ""


@dataclass(frozen=True)
class Pair:
    """One comparison. ``number`` counts from 1, in the order in which answers were stored."""

    number: int
    preference: float
    left: Side
    right: Side
    against_true_return: bool
    """Whether the true returns contradict the answer. False for a tie, equal returns, or if they are unknown."""

    @property
    def model_agrees(self) -> bool | None:
        """Whether the reward model gives the preferred side the higher return; None for a tie or without a model."""
        difference = self.left.learned_return - self.right.learned_return
        if self.preference == 0.5 or math.isnan(difference):
            return None
        return difference * (self.preference - 0.5) > 0


def choose(preferences: FloatArray, count: int) -> IntArray:
    """Choose ``count`` positions spread evenly over a run's answers without ties, and one tie in place of one of them if any."""
    ties, decided = np.flatnonzero(preferences == 0.5), np.flatnonzero(preferences != 0.5)
    shown_ties = ties[len(ties) // 2 :][: min(1, count)] if len(decided) >= count else ties[:count]
    wanted = min(count - len(shown_ties), len(decided))
    spread = np.linspace(0, len(decided) - 1, wanted).round().astype(np.int64) if wanted else np.array([], np.int64)
    return np.sort(np.concatenate([decided[spread], shown_ties]))


def show_pairs(comparisons: Comparisons, reward: RewardEnsemble | None, count: int) -> list[Pair]:
    """Prepare ``count`` of the comparisons (see `choose`) for the report; see `show_those`."""
    return show_those(comparisons, reward, choose(comparisons.preferences, count))


def show_those(comparisons: Comparisons, reward: RewardEnsemble | None, chosen: IntArray) -> list[Pair]:
    """Prepare some of the comparisons for the report.

    Args:
        comparisons: all comparisons of the run.
        reward: the saved reward model, if there is one.
        chosen: positions of those to show.
    """
    shown = comparisons[chosen]
    sides = (shown.pairs.left, shown.pairs.right)
    learned = [np.full(len(shown), np.nan) if reward is None else learned_rewards(reward, s).sum(1) for s in sides]
    pairs = []
    for i, position in enumerate(chosen):
        left, right = (side[i : i + 1] for side in sides)
        pairs.append(_pair(int(position) + 1, float(shown.preferences[i]), left, right, learned[0][i], learned[1][i]))
    return pairs


def replay(comparisons: Comparisons, first: int) -> list[Pair]:
    """Prepare all of ``comparisons`` to be replayed: image observations become films.

    Args:
        comparisons: the comparisons.
        first: number of the first one.
    """
    pairs = []
    for i, preference in enumerate(comparisons.preferences.tolist()):
        sides = [side[i : i + 1] for side in (comparisons.pairs.left, comparisons.pairs.right)]
        pair = _pair(first + i, preference, sides[0], sides[1], math.nan, math.nan)
        if pair.left.frames:
            films = [_film(side.observations[0]) for side in sides]
            pair = replace(pair, left=replace(pair.left, film=films[0]), right=replace(pair.right, film=films[1]))
        pairs.append(pair)
    return pairs


def _film(observations: Array) -> str:
    """Return ``[steps, height, width, channels]`` uint8 observations as an animated WebP that repeats, as a data URI."""
    frames = [Image.fromarray(np.ascontiguousarray(picture(each))) for each in observations]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "WEBP", save_all=True, append_images=frames[1:], duration=1000 // FPS, loop=0, lossless=True, method=0
    )
    return "data:image/webp;base64," + base64.b64encode(buffer.getvalue()).decode()


def _pair(number: int, preference: float, left: Fragments, right: Fragments, *learned: float) -> Pair:
    strips: list[tuple[Frame, ...]] = [(), ()]
    plots: list[Markup | None] = [None, None]
    left_out = 0
    if left.observations.dtype == np.uint8 and left.observations.ndim == 5:
        strips = [_film_strip(side.observations[0]) for side in (left, right)]
    else:
        observations = [side.observations[0].reshape(side.length + 1, -1) for side in (left, right)]
        actions = [side.actions[0].reshape(side.length, -1) for side in (left, right)]
        left_out = sum(max(0, both[0].shape[1] - COMPONENTS) for both in (observations, actions))
        observations, actions = ([side[:, :COMPONENTS] for side in both] for both in (observations, actions))
        limits = [*_limits(observations), *_limits(actions)]
        plots = [_components_plot(*both, limits) for both in zip(observations, actions, strict=True)]
    shares = (preference, 1 - preference)
    sides = [
        Side(
            name=("left", "right")[i],
            answer="preferred" if shares[i] > 0.5 else "tie" if shares[i] == 0.5 else "other",
            true_return=float(side.returns()[0]),
            learned_return=float(learned[i]),
            policy=_policy(int(side.policy_versions[0])),
            start=int(side.starts[0]),
            frames=strips[i],
            plot=plots[i],
            left_out=left_out,
        )
        for i, side in enumerate((left, right))
    ]
    against = float(differences(left.rewards, right.rewards)[0]) * (preference - 0.5) < 0
    return Pair(number, preference, sides[0], sides[1], against)


def _policy(version: int) -> str:
    return "random actions" if version == RANDOM_POLICY else f"policy version {version}"


def _limits(sides: list[Array]) -> list[tuple[float, float]]:
    """Minimum and maximum finite value of each component over both sides."""
    values = np.concatenate([side.astype(np.float64) for side in sides])
    columns = [column[np.isfinite(column)] for column in values.T]
    return [(float(c.min()), float(c.max())) if len(c) else (0.0, 0.0) for c in columns]


def _components_plot(observations: Array, actions: Array, limits: Sequence[tuple[float, float]]) -> Markup:
    """Plot one fragment: a line per observation component and a step plot per action component, stacked.

    Does not use matplotlib: a page has twelve of these plots, and each would take longer than all curves together.

    Args:
        observations: ``[length + 1, observations]``.
        actions: ``[length, actions]``.
        limits: minimum and maximum of each component, the same for both sides of a comparison.
    """
    length, n = len(actions), observations.shape[1]
    left, right, row, line = 46, 255, 42, 24
    scale = (right - left) / length

    def text(x: float, y: float, anchor: str, content: str) -> Markup:
        return Markup('<text x="{:g}" y="{:g}" text-anchor="{}">{}</text>').format(x, y, anchor, content)

    parts = []
    for i, (low, high) in enumerate(limits):
        top = 6 + i * row
        values = observations[:, i] if i < n else actions[:, i - n]
        # Draw a constant component at half height.
        depths = (high - values.astype(np.float64)) / (high - low) if high > low else np.full(len(values), 0.5)
        heights: FloatArray = top + line * depths
        if i < n:
            shape, label = "observation", f"observation[{i}]"
            points = [(left + scale * t, y) for t, y in enumerate(heights)]
        else:
            shape, label = "action", "action" if actions.shape[1] == 1 else f"action[{i - n}]"
            # An action lasts until the next step.
            points = [(left + scale * (t + dt), y) for t, y in enumerate(heights) for dt in (0, 1)]
        bounds = [(top, high), (top + line, low)] if high > low else [(top + line / 2, low)]
        for y, bound in bounds:
            parts.append(Markup('<path class="bound" d="M{} {:g}H{}"/>').format(left, y, right))
            parts.append(text(left - 5, y + 3, "end", f"{bound:.3g}".replace("-", "−")))
        parts.append(Markup('<path class="{}" d="{}"/>').format(shape, _path(points)))
        parts.append(text(right + 8, top + line / 2 + 3, "start", label))
    bottom = 6 + len(limits) * row
    parts += [text(left, bottom + 2, "middle", "0"), text(right, bottom + 2, "middle", str(length))]
    parts.append(text((left + right) / 2, bottom + 2, "middle", "step of the fragment"))
    return Markup(
        '<svg class="plot components" role="img" aria-label="Observations and actions over the fragment\'s steps." '
        'viewBox="0 0 340 {}">{}</svg>'
    ).format(bottom + 8, Markup("").join(parts))


def _path(points: Sequence[tuple[float, float]]) -> str:
    """An SVG path through ``points``, interrupted at non-finite ones."""
    commands, command = [], "M"
    for x, y in points:
        if math.isfinite(y):
            commands.append(f"{command}{x:.1f} {y:.1f}")
        command = "L" if math.isfinite(y) else "M"
    return "".join(commands)


def _film_strip(observations: Array) -> tuple[Frame, ...]:
    """Evenly spaced frames of ``[steps, height, width, channels]`` uint8 observations."""
    steps = np.linspace(0, len(observations) - 1, min(FRAMES, len(observations))).round().astype(int)
    return tuple(Frame(int(step), _png(picture(observations[step]))) for step in steps)


def _png(picture: Array) -> str:
    buffer = io.BytesIO()
    imsave(buffer, picture, format="png", metadata={"Software": "rlhf_ray"})
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
