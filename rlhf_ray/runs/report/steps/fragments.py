"""Some of a run's comparisons, and the answers that are likely wrong: fragments, answers, true and learned returns."""

from __future__ import annotations

import io
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from PIL import Image

from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.data.comparisons import Comparisons, differences
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments
from rlhf_ray.data.metrics import plain
from rlhf_ray.labelling.camera import picture
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.probe import learned_rewards
from rlhf_ray.runs.report.subject import Run
from rlhf_ray.study.curves import INK, Axes, stroke, svg, text
from rlhf_ray.study.section import Picture, Section, figure

SHOWN, SHOWN_DOUBTS = 6, 4
"""Number of comparisons on the page, and of answers that are likely wrong."""
SIDE = 96
"""Least height of a frame, in pixels."""
FPS = 15
"""Frames per second of a replayed fragment."""
COMPONENTS = 8
"""Maximum number of plotted components of an observation, and of an action."""
TOP, ROW = 22, 30
"""Pixels above the components of a fragment, and of each."""


def _answer(pair: dict[str, Any]) -> str:
    """Say what the annotator of a pair of `show_pairs` said, and who disagrees."""
    if pair["preference"] == 0.5:
        return f"{pair['annotator']} considers both equally good"
    said = f"{pair['annotator']} prefers the {'left' if pair['preference'] > 0.5 else 'right'} side"
    if pair["against_true_return"]:
        said += ", although the other has the higher true return"
    difference = pair["learned_returns"][0] - pair["learned_returns"][1]
    if math.isnan(difference):
        return said
    return f"{said}; the reward model {'agrees' if difference * (pair['preference'] - 0.5) > 0 else 'disagrees'}"


def _side(pair: dict[str, Any], at: int) -> str:
    """Say what is known of the left (0) or right (1) fragment of a pair."""
    true, learned, policy, start = (pair[of][at] for of in ("true_returns", "learned_returns", "policies", "starts"))
    acted = "random actions" if policy is None else f"policy version {policy}"
    returns = f"true return {figure(true)}, learned return {figure(learned)}"
    return f"{('Left', 'Right')[at]}: {returns}, {acted}, from step {start}."


def section(run: Run) -> Section:
    """Show comparisons from the first to the last."""
    title, stored, reward = "Compared fragments", run.comparisons, run.reward
    if stored is None or not len(stored):
        return Section("fragments", title, skipped="This folder has no stored comparisons.")
    pairs, pictures = show_pairs(stored, reward, choose(stored.preferences, SHOWN))
    learned = (
        "Learned returns are missing, because this folder has no saved reward model."
        if reward is None
        else f"Learned returns are from the saved reward model (version {reward.version.item()}): the sums of its rewards as the "
        "agent gets them and `predict` returns them."
    )
    note = f"{len(pairs)} of {len(stored):,} stored comparisons, in the order of the answers. {learned}"
    return Section("fragments", title, pictures=pictures, notes=[note], values={"pairs": plain(pairs)})


def doubts(run: Run) -> Section:
    """Show the likeliest wrong answers."""
    title, stored = "Answers to look at again", run.comparisons
    if not run.doubts or stored is None:
        none = "No answer is more likely wrong than right, as far as was estimated."
        return Section("doubts", title, skipped=none)
    position = {key: i for i, key in enumerate(zip(stored.pairs.ids, stored.annotators, strict=True))}
    keys = [(chance, (row["pair_id"], row["annotator"])) for chance, row in run.doubts]
    shown = [(position[key], chance) for chance, key in keys if key in position][:SHOWN_DOUBTS]
    chosen = np.array([place for place, _ in shown], np.int64)
    pairs, pictures = show_pairs(stored, run.reward, chosen, errors=[chance for _, chance in shown])
    note = (
        f"Answers more likely wrong than right, by the members of the reward model that were not fitted to them, at the last "
        f"checkpoint: {len(run.doubts)}, of which the likeliest {len(pairs)} are shown."
    )
    if any(row["annotator_type"] == "human" for _, row in run.doubts):
        note += (
            " While the run goes on, its owner keeps or changes people's answers in the labelling page; `rlhf-ray links` with this "
            "folder shows the link."
        )
    values = {"doubts": len(run.doubts), "pairs": plain(pairs)}
    return Section("doubts", title, pictures=pictures, notes=[note], values=values)


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
    errors: Sequence[float] | None = None,
) -> tuple[list[dict[str, Any]], list[Picture]]:
    """Prepare the comparisons at the positions ``chosen`` for a page: what is known of them, and a picture or film of each.

    ``first``: number of the comparison at position 0. ``errors``: how likely each answer is wrong, if known. Of each comparison:
    ``number``, in the order of the answers; ``annotator``; ``preference`` (1: left, 0: right, 0.5: equal); ``against_true_return``,
    whether the true returns contradict it; and of both sides ``true_returns`` and ``learned_returns``, as the agent gets rewards
    (NaN if unknown), ``policies`` (versions; None for random actions) and ``starts`` (steps of the episode before).
    """
    shown = comparisons[chosen]
    sides = (shown.pairs.left, shown.pairs.right)
    learned = [np.full(len(shown), np.nan) if reward is None else learned_rewards(reward, s).sum(1) for s in sides]
    returns = [side.returns() for side in sides]
    against = differences(sides[0].rewards, sides[1].rewards) * (shown.preferences - 0.5) < 0
    pairs, pictures = [], []
    for i, position in enumerate(chosen):
        versions = [int(side.policy_versions[i]) for side in sides]
        pair: dict[str, Any] = {
            "number": first + int(position),
            "annotator": shown.annotators[i],
            "preference": float(shown.preferences[i]),
            "true_returns": [float(of[i]) for of in returns],
            "learned_returns": [float(of[i]) for of in learned],
            "against_true_return": bool(against[i]),
            "policies": [None if version == RANDOM_POLICY else version for version in versions],
            "starts": [int(side.starts[i]) for side in sides],
        }
        image, hidden = _draw(sides[0][i : i + 1], sides[1][i : i + 1])
        wrong = "" if errors is None else f"; wrong with a probability of {100 * errors[i]:.0f} %"
        caption = f"Comparison {pair['number']}: {_answer(pair)}{wrong}. {_side(pair, 0)} {_side(pair, 1)}"
        caption += f" {hidden} more components are not shown." if hidden else ""
        pairs.append(pair)
        pictures.append(Picture(f"comparison_{pair['number']}", image, caption))
    return pairs, pictures


def _draw(left: Fragments, right: Fragments) -> tuple[bytes, int]:
    """Draw both fragments beside each other: an animated WebP or an SVG, and the number of components that are not shown."""
    if left.observations.dtype == np.uint8 and left.observations.ndim == 5:
        return _film(*([picture(frame) for frame in side.observations[0]] for side in (left, right))), 0
    observed = [*_components("observation", left.observations[0], right.observations[0])]
    acted = [*_components("action", left.actions[0], right.actions[0])]
    rows = observed[:COMPONENTS] + acted[:COMPONENTS]
    parts, bottom = [], TOP + ROW * len(rows)
    for side, (name, left_edge) in enumerate((("left", 240), ("right", 510))):
        at = np.arange(len(rows[0][2][side]))
        axes = Axes((left_edge, left_edge + 250), (TOP, bottom), (0, max(1, len(at) - 1)), (len(rows), 0))
        parts += [text(left_edge + 125, 14, name, "middle"), *axes.below("step", whole=True)]
        for row, (what, bounds, values) in enumerate(rows):
            parts += [text(230, TOP + ROW * (row + 0.5) + 4, f"{what}, {bounds}", "end")] if not side else []
            acts = what.startswith("action")
            height = axes.y(row + 0.9 - 0.8 * values[side])
            parts.append(stroke(axes.x(at), height, "#d55e00" if acts else INK, steps=acts))
    return svg(780, bottom + 44, parts), len(observed) + len(acted) - len(rows)


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
