"""Maps of the frames that an agent sees: whether they are faithful, and their strips through time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import WorldMoments
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent.questions import AgentQuestion, Quantity, Source
from rlhf_ray.interpret.agent.world_model.simulate import World
from rlhf_ray.interpret.attribution import Method, attribute
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.interpret.attribution.faithfulness import Curves, curves
from rlhf_ray.study.section import Picture

THROUGH_TIME, NOW = "smoothgrad", "difference_x_gradient"
"""Methods whose maps are drawn: gradients averaged over noisy copies through time, and the panel's of the step itself."""
UNFAITHFUL = "By deletion and insertion it orders the frame no better than a random order can."
UNCHECKED = "Its faithfulness was not checked."
COPIES = 4
"""Noisy copies of each strip."""
UNMOVED = 1e-6
"""Share of its standard deviation by which a quantity that doesn't depend on the frame may change with the whole frame."""


@dataclass(frozen=True)
class Faithful:
    """Which maps order the parts of a frame better than every random order does, in deletion and in insertion.

    Attributes:
        by_map: by QUANTITY/METHOD.
        unmoved: names of quantities that the frame doesn't move: their maps are zeros.
    """

    by_map: Mapping[str, bool] = field(default_factory=dict)
    unmoved: tuple[str, ...] = ()

    def doubt(self, quantity: str, method: str) -> str:
        """Return why not to trust a map; empty if there is no reason."""
        if quantity in self.unmoved:
            return ""
        known = self.by_map.get(f"{quantity}/{method}")
        return "" if known else UNCHECKED if known is None else UNFAITHFUL


def judge_maps(
    agent: Agent,
    judged: WorldMoments,
    methods: Mapping[Quantity, Mapping[str, Method]],
    seed: int,
    rng: Callable[[str], np.random.Generator],
) -> tuple[Faithful, dict[str, Curves]]:
    """Delete and insert parts of the frame, at the ``judged`` moments, in the order of the maps of each quantity's ``methods``.

    ``seed`` is that of the maps' noise, and ``rng`` returns what draws a quantity's random orders, by its name.

    Returns:
        Which maps are faithful, and the curves by QUANTITY/METHOD.
    """
    by_map: dict[str, Curves] = {}
    unmoved = []
    for quantity, asked in methods.items():
        question = AgentQuestion(agent, quantity, seed=seed).against(judged)
        maps = {name: attribute(method, question, judged)["frame"] for name, method in asked.items()}
        orders = curves(question, judged, maps, rng(quantity.name), "frame")
        spread = float(question.values(judged).std()) or 1.0
        if all(order.deletion[-1] <= UNMOVED * spread for order in orders.values()):
            unmoved.append(quantity.name)
        else:
            by_map |= {f"{quantity.name}/{name}": order for name, order in orders.items()}
    return Faithful({name: order.faithful for name, order in by_map.items()}, tuple(unmoved)), by_map


def strips(
    agent: Agent,
    world: World | None,
    moments: WorldMoments,
    usual: WorldMoments,
    asked: Sequence[Quantity],
    steps: int,
    faithful: Faithful,
    horizon: int | None,
) -> Iterator[Picture]:
    """Draw gradients of each quantity by the frames up to its step; crossed out where they are not faithful at the last one.

    Strips start at ``moments``, and go on in the world model, or without one in the recording; ``usual`` moments give the noise its
    size. Steps after the world model's valid horizon are grey.
    """
    sources: tuple[Source, ...] = ("frame", "memory") if world is None else ("world", "memory")
    columns = [f"step {step}" for step in range(steps + 1)]
    captions = [f"episode {row}\nstep {step}" for row, step in zip(moments.rows, moments.steps, strict=True)]
    beyond = np.arange(steps + 1) > (steps if world is None or horizon is None else horizon)
    source, names = "recorded" if world is None else "simulated", feature_names(agent.observation_space)
    for quantity in asked:
        question = AgentQuestion(agent, quantity, steps, world, sources=sources)
        slopes = through_time(question, moments, question.against(usual).scales, samples=COPIES)
        maps, why = slopes["observations"].astype(np.float64), faithful.doubt(quantity.name, THROUGH_TIME) or None
        faded = np.tile(beyond, (len(moments), 1))
        image = strip(slopes["seen"], maps, captions, columns, "per unit of the frame", faded, why, names)
        caption = (
            f"Gradient of the {quantity.title} at step {steps} by the frames that the agent sees until then ({source}). "
            "One scale for all; what is beyond it has the full colour."
        )
        yield Picture(f"saliency_{quantity.name}", image, caption, why)


def through_time(
    question: AgentQuestion,
    moments: WorldMoments,
    scales: Mapping[str, Tensor],
    *,
    samples: int = 1,
) -> dict[str, Array]:
    """Return the gradients of a quantity ``k`` steps on with respect to every step up to it, averaged over noisy copies.

    The first of the ``samples`` has no noise; that of the others has its size in ``scales`` of the sources. Gradients are not
    multiplied by scales.

    Returns:
        ``observations`` ``[n, k + 1, …]``: gradients to the frame that the agent sees at each step; ``memory`` and ``states``: to
        the agent's memory before it and the world's. ``seen``: the frames themselves, without noise.
    """
    inputs = question.inputs(moments)
    generator = torch.Generator().manual_seed(0)
    total: dict[str, Tensor] = {}
    upto = slice(question.steps + 1)
    for copy in range(samples):
        size = AgentQuestion.noise if copy else 0.0
        moved = {
            name: (actual + size * scales[name] * torch.randn(actual.shape, generator=generator)).requires_grad_()
            for name, actual in inputs.items()
        }
        simulation = question.rollout(moments, moved)
        slopes = simulation.gradients(question.read(simulation))
        for name in ("observations", "memory", "states"):
            part = getattr(slopes, name)[:, upto].detach() / samples
            total[name] = total[name] + part if name in total else part
        if not copy:
            seen = simulation.observations[:, upto].detach()
    return {name: slope.numpy() for name, slope in total.items()} | {"seen": seen.numpy()}
