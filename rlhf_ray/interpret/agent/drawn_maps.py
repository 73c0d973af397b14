"""The maps of frames that strips and the panel draw: whether they are faithful, and occlusion where gradients are not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.moments import Stretches, WorldMoments, moments_of
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent.questions import AgentQuestion, Quantity
from rlhf_ray.interpret.agent.questions.samples import GradientSamples
from rlhf_ray.interpret.attribution import attribute
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.interpret.attribution.faithfulness import curves
from rlhf_ray.interpret.attribution.gradients import DifferenceXGradient, SmoothGrad
from rlhf_ray.interpret.attribution.occlusion import Occlusion
from rlhf_ray.study.section import Picture
from rlhf_ray.study.words import Words

STRIP, NOW, INSTEAD = "gradient", "difference_x_gradient", "occlusion"
"""Maps: gradients averaged over noisy copies, as strips and the panel's quantities some steps on have them; the panel's of now; and
what is drawn in place of either."""
SHOWN = 3
"""Samples in pictures."""


@dataclass(frozen=True)
class DrawnMaps:
    """Which maps order the parts of a frame better than every random order does, in deletion and in insertion.

    Attributes:
        faithful: by QUANTITY/MAP; a quantity that the frame doesn't move has maps of zeros, and is left out.
        empty: names of these quantities.
    """

    faithful: Mapping[str, bool] = field(default_factory=dict)
    empty: tuple[str, ...] = ()

    def choose(self, quantity: str, drawn: str) -> str:
        """Return which map to draw: ``drawn`` if it is faithful or empty, occlusion if that is; else "" (cross it out)."""
        if quantity in self.empty:
            return drawn
        return next((name for name in (drawn, INSTEAD) if self.faithful.get(f"{quantity}/{name}", False)), "")

    def knows(self, quantity: str) -> bool:
        """Whether the quantity's maps were checked."""
        return quantity in self.empty or any(name.startswith(f"{quantity}/") for name in self.faithful)


@dataclass(frozen=True)
class OfAttribution:
    """What the panel reads of the attribution's figures."""

    drawn: DrawnMaps


def judge_drawn(
    agent: Agent,
    judged: WorldMoments,
    asked: Sequence[Quantity],
    seed: int,
    rng: Callable[[str], np.random.Generator],
    unmoved: float,
) -> DrawnMaps:
    """Judge the maps of the moments' own frames.

    Args:
        agent: the agent.
        judged: the moments.
        asked: the quantities.
        seed: of the maps' noise.
        rng: returns what draws the random orders, by a quantity's name.
        unmoved: share of its standard deviation by which a quantity moves with the whole frame if it doesn't depend on it.
    """
    faithful: dict[str, bool] = {}
    empty = []
    for quantity in asked:
        question = AgentQuestion(agent, quantity, seed=seed).against(judged)
        maps = {
            STRIP: attribute(SmoothGrad(), question, judged)["frame"] / _unit(question),
            NOW: attribute(DifferenceXGradient(), question, judged)["frame"],
            INSTEAD: attribute(Occlusion(), question, judged)["frame"],
        }
        orders = curves(question, judged, maps, rng(quantity.name), "frame")
        if orders[NOW].deletion[-1] <= unmoved * (float(question.values(judged).std()) or 1.0):
            empty.append(quantity.name)
        else:
            faithful |= {f"{quantity.name}/{name}": order.faithful for name, order in orders.items()}
    return DrawnMaps(faithful, tuple(empty))


def _unit(question: AgentQuestion) -> FloatArray:
    """What SmoothGrad multiplies gradients by."""
    scales = question.scales["frame"].numpy().astype(np.float64)
    return np.where(scales > 0, scales, 1.0)


def occluded(
    agent: Agent, episodes: Episodes, pieces: Stretches, quantity: Quantity, judged: WorldMoments, seed: int
) -> tuple[Array, FloatArray, BoolArray]:
    """Occlude each part of each recorded frame, and see what the quantity of the same step loses: see `Occlusion`.

    Args:
        agent: the agent.
        episodes: with observations.
        pieces: the steps.
        quantity: what is asked.
        judged: moments that give typical values.
        seed: of the question.

    Returns:
        The frames ``[n, T, …]``, their maps, and which steps lie beyond their piece: they repeat its last one.
    """
    times, lead = pieces.times, pieces.times.shape
    moments = moments_of(agent, episodes, np.repeat(pieces.rows, lead[1]), times.ravel(), ahead=1)
    question = AgentQuestion(agent, quantity, seed=seed).against(judged)
    maps = attribute(Occlusion(), question, moments)["frame"]
    frames, maps = (values.reshape(*lead, *values.shape[1:]) for values in (moments.frames, maps))
    return frames, maps, np.arange(lead[1])[None] >= pieces.lengths[:, None]


def strips(
    agent: Agent,
    episodes: Episodes,
    samples: GradientSamples,
    asked: Sequence[Quantity],
    drawn: DrawnMaps,
    judged: WorldMoments,
    rng: np.random.Generator,
    words: Words,
) -> Iterator[Picture]:
    """Draw gradients over time where they are faithful at their last step, occlusion where that is; else cross them out."""
    rows = np.sort(rng.permutation(len(samples))[:SHOWN])
    seen, steps = samples.observations[rows], samples.observations.shape[1]
    columns = [f"step {step}" for step in range(steps)]
    captions = [f"episode {samples.rows[i]}\nstep {samples.steps[i]}" for i in rows]
    beyond = np.arange(steps) > (steps if samples.horizon is None else samples.horizon)
    left = episodes.lengths[samples.rows[rows]] - samples.steps[rows]
    pieces = Stretches(samples.rows[rows], samples.steps[rows], np.minimum(steps, left), steps)
    names = feature_names(agent.observation_space)
    for index, quantity in enumerate(asked):
        choice = drawn.choose(quantity.name, STRIP)
        if choice == INSTEAD:
            frames, maps, over = occluded(agent, episodes, pieces, quantity, judged, 0)
            image = strip(frames, maps, captions, columns, "what it adds", over, names=names)
            yield Picture(f"saliency_{quantity.name}", image, words.text("occluded", title=quantity.title))
            continue
        why = None if choice else words.text("crossed_out")
        maps, faded = samples.saliency[rows, index].astype(np.float64), np.tile(beyond, (len(rows), 1))
        image = strip(seen, maps, captions, columns, "per unit of the frame", faded, why, names)
        caption = words.text("strip", title=quantity.title, step=steps - 1, samples=samples)
        yield Picture(f"saliency_{quantity.name}", image, caption, why)
