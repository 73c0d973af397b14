"""Maps of the frames that an agent sees: whether they are faithful, and their strips through time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.moments import WorldMoments
from rlhf_ray.data.spaces import feature_names
from rlhf_ray.interpret.agent.questions import AgentQuestion, Quantity
from rlhf_ray.interpret.agent.questions.samples import GradientSamples
from rlhf_ray.interpret.attribution import Method, attribute
from rlhf_ray.interpret.attribution.drawing import strip
from rlhf_ray.interpret.attribution.faithfulness import Curves, curves
from rlhf_ray.study.section import Picture

THROUGH_TIME, NOW = "smoothgrad", "difference_x_gradient"
"""Methods whose maps are drawn: gradients averaged over noisy copies through time, and the panel's of the step itself."""
UNFAITHFUL = "By deletion and insertion it orders the frame no better than a random order can."
UNCHECKED = "Its faithfulness was not checked."
SHOWN = 3
"""Samples in pictures."""
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
    """Delete and insert parts of the frame in the order of each method's maps.

    Args:
        agent: the agent.
        judged: the moments.
        methods: those that are asked about each quantity.
        seed: of the maps' noise.
        rng: returns what draws a quantity's random orders, by its name.

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
    samples: GradientSamples,
    asked: Sequence[Quantity],
    faithful: Faithful,
    rng: np.random.Generator,
) -> Iterator[Picture]:
    """Draw gradients of each quantity by the frames up to its step; crossed out where they are not faithful at the last one."""
    rows = np.sort(rng.permutation(len(samples))[:SHOWN])
    seen, steps = samples.observations[rows], samples.observations.shape[1]
    columns = [f"step {step}" for step in range(steps)]
    captions = [f"episode {samples.rows[i]}\nstep {samples.steps[i]}" for i in rows]
    beyond = np.arange(steps) > (steps if samples.horizon is None else samples.horizon)
    source = "simulated" if samples.simulated else "recorded"
    for index, quantity in enumerate(asked):
        why = faithful.doubt(quantity.name, THROUGH_TIME) or None
        maps, faded = samples.saliency[rows, index].astype(np.float64), np.tile(beyond, (len(rows), 1))
        names = feature_names(agent.observation_space)
        image = strip(seen, maps, captions, columns, "per unit of the frame", faded, why, names)
        caption = (
            f"Gradient of the {quantity.title} at step {steps - 1} by the frames that the agent sees until then ({source}). "
            "One scale for all; what is beyond it has the full colour."
        )
        yield Picture(f"saliency_{quantity.name}", image, caption, why)
