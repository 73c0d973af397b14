"""Where a concept in an agent's memory comes from: from before the step, or from what the agent sees at the step.

A memory is read after the step has written to it: it holds what the agent sees as well, and to act on that is not to remember.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from rlhf_ray.agents.agent import MEMORY, Agent
from rlhf_ray.agents.moments import draw_steps
from rlhf_ray.agents.replay import site_of
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.interpret.agent.candidates import filled, residual
from rlhf_ray.interpret.agent.chains import ChainMoments, scores_at
from rlhf_ray.interpret.agent.concepts import concepts_at
from rlhf_ray.interpret.agent.erasure import Classes
from rlhf_ray.interpret.agent.splits import recorded
from rlhf_ray.interpret.agent.subject import AgentContext
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.labels import usable
from rlhf_ray.measure.intervals import MeanEstimate, weighted_contrast

MOMENTS, FEWEST_MOMENTS = 600, 200
"""Moments whose memory is exchanged."""
FEWEST = 5
"""Moments of each class that a share needs."""
LEFT = 0.1
"""Share of a concept's variance that others have to leave, for a comparison at equal values of them: as for its direction."""


@dataclass(frozen=True)
class Recall:
    """Tells where what a memory holds comes from, at moments of held-out episodes.

    Attributes:
        agent: the agent.
        moments: its moments, none of them an episode's first step, which has nothing to remember.
        concepts: what each concept is there, ``[n]``.
        seed: seeds which moments are exchanged, and intervals.
    """

    agent: Agent
    moments: ChainMoments
    concepts: dict[str, Array]
    seed: int

    @classmethod
    def of(cls, context: AgentContext) -> Recall:
        """Draw the moments of a study."""
        subject, test = context.subject, recorded(context, "test")
        later = test.real & (np.arange(test.real.shape[1]) > 0)
        chosen = draw_steps(later, subject.count(MOMENTS, FEWEST_MOMENTS), context.rng("recall"))
        moments = ChainMoments.cut_from(test, chosen)
        moments = replace(moments, levels=subject.groups(test.levels)[moments.rows])
        return cls(
            subject.agent, moments, {name: chosen.cut(each) for name, each in concepts_at(test).items()}, subject.seed
        )

    def of_concept(
        self, name: str, classes: Classes, basis: Directions, others: Sequence[str] = ()
    ) -> MeanEstimate | None:
        """Return the share of a concept that is recalled, at equal values of ``others``; see `recalled`."""
        if name not in self.concepts:
            return None
        holds = classes(self.concepts[name])
        known = np.isfinite(holds)
        told = [self.concepts[other][known] for other in others if other in self.concepts]
        beside = [filled(Classes.fit(each)(each)) for each in told if usable(each)]
        moments, components = self.moments[known], range(len(basis))
        return recalled(self.agent, moments, holds[known] == 1, basis, components, self.seed, beside)

    def of_components(self, basis: Directions, components: Sequence[int]) -> MeanEstimate | None:
        """Return the share of components that is recalled; classes: below and above the median of the first one's score."""
        scores = scores_at(self.agent, self.moments, basis, site_of(self.agent))[:, components[0]]
        return recalled(self.agent, self.moments, scores > np.median(scores), basis, components, self.seed)


def recalled(
    agent: Agent,
    moments: ChainMoments,
    holds: BoolArray,
    basis: Directions,
    components: Sequence[int],
    seed: int = 0,
    beside: Sequence[FloatArray] = (),
) -> MeanEstimate | None:
    """Return the share of what a memory holds of a concept that was there before the step; the rest comes from what is seen.

    At each moment, the memory of before the step is that of another moment, once of the same class of the concept and once of the
    other class; what is seen stays. The share is the difference that this makes to the score after the step, in distances between
    the classes: 1 of what is only remembered, 0 of what the step has just written. A direction that holds other concepts still has
    a score that they move as well, the opposite way: both differences are those at equal values of them, by least squares.

    Args:
        agent: the agent.
        moments: its moments.
        holds: where the concept holds, ``[n]``.
        basis: directions in the memory.
        components: the concept's among them.
        seed: seeds which moments are exchanged, and the interval, which is over levels.
        beside: classes of the concepts that the directions hold still, ``[n]`` each.

    Returns:
        None without memory, or with fewer than `FEWEST` moments of a class.
    """
    without, with_it = (np.flatnonzero(holds == each) for each in (False, True))
    if site_of(agent) != MEMORY or min(len(without), len(with_it)) < FEWEST:
        return None

    def scores(memory: FloatArray) -> FloatArray:
        found: FloatArray = scores_at(agent, replace(moments, memory=memory), basis, MEMORY)[:, list(components)]
        return found

    rng = np.random.default_rng([seed, 0x52])
    same, other = np.zeros(len(holds), np.int64), np.zeros(len(holds), np.int64)
    for rows, others in ((without, with_it), (with_it, without)):
        same[rows], other[rows] = rng.permutation(rows), rng.choice(others, len(rows))
    kept, changed = scores(moments.memory[same]), scores(moments.memory[other])
    numbers = holds.astype(np.float64)
    if beside and float(residual(numbers, beside).var()) < LEFT * float(numbers.var()):
        beside = ()
    distance = _slopes(scores(moments.memory), numbers, beside)[0]
    difference = kept - changed
    if beside:
        both = np.concatenate([same, other])
        theirs = [each[both] for each in beside]
        moved = _slopes(np.concatenate([kept, changed]), numbers[both], theirs)[1:]
        difference -= np.stack([each[same] - each[other] for each in beside], 1) @ moved
    towards = difference @ distance
    share = np.where(holds, towards, -towards) / max(float(distance @ distance), 1e-300)
    return weighted_contrast(share, np.ones((len(share), 1)), np.ones(1), moments.levels)


def _slopes(scores: FloatArray, holds: FloatArray, beside: Sequence[FloatArray]) -> FloatArray:
    """Return how scores ``[n, k]`` change with the concept, and with each of the others, by least squares, ``[1 + others, k]``."""
    design = np.column_stack([np.ones(len(holds)), holds, *beside])
    found: FloatArray = np.linalg.lstsq(design, scores, rcond=None)[0][1:]
    return found
