"""Controls: an intervention on a component beside the same one on random directions along which the values vary as much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.effects import CausalEffect, effect
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import COUNT, random_bases, removed_variance
from rlhf_ray.interpret.directions.interventions import Intervention
from rlhf_ray.study.figures import fields_of
from rlhf_ray.study.step import Mapper

COPIES = 64
"""Episodes played at a time."""

Make = Callable[[Directions, Sequence[int]], Intervention]
"""Makes the intervention on some components of a basis, for example ``lambda b, c: Intervention(b, c, "reflect")``."""


MATCHED = 0.5
"""Share of the variance taken away that a random removal has to take to be a control: a small one says little of a large one."""


@dataclass(frozen=True)
class Controlled:
    """An effect beside those of random directions.

    Attributes:
        effect: of the intervention.
        random: of the same intervention on random directions instead.
        variance: share of the variance that removing the directions takes.
        random_variance: the same of each of the random ones.
    """

    effect: CausalEffect
    random: list[CausalEffect]
    variance: float = 0.0
    random_variance: list[float] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        """Whether the return changes, by more than with any random direction: the whole interval lies beyond."""
        random = max((abs(each.returns.difference.mean) for each in self.random), default=0.0)
        return self.effect.returns.difference.beyond(random)

    @property
    def matched(self) -> bool:
        """Whether a random removal takes a comparable share of the variance (`MATCHED`), so that there is a control."""
        return max(self.random_variance, default=0.0) >= MATCHED * self.variance

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain numbers; of the random directions only returns and outcomes."""
        random = [
            {
                "returns": each.returns.difference.mean,
                "outcomes": {name: change.after for name, change in each.outcomes.items()},
            }
            for each in self.random
        ]
        variances = {"variance": self.variance, "random_variance": self.random_variance}
        return {**fields_of(self.effect), "random": random, "changes": self.changes, **variances}


def controlled(
    agent: Agent,
    make_batch: Callable[[int], EnvBatch],
    levels: Sequence[int] | IntArray,
    make: Make,
    basis: Directions,
    components: Sequence[int],
    values: FloatArray,
    *,
    labels: Array | None = None,
    plain: Episodes | None = None,
    groups: IntArray | None = None,
    hold: FloatArray | None = None,
    draw: Callable[..., list[Directions]] = random_bases,
    count: int = COUNT,
    copies: int = COPIES,
    seed: int = 0,
    mapper: Mapper = map,
) -> Controlled:
    """Play levels with an intervention, and with the same one on random directions; compare each with the same levels without.

    Args:
        agent: acts, greedily.
        make_batch: makes copies of its environment.
        levels: seeds of the levels.
        make: makes the intervention.
        basis: the basis.
        components: its components.
        values: what the site holds, ``[n, size]``, for the random directions.
        labels: two classes of ``values``, ``[n]``, for their midpoints.
        plain: the same levels without an intervention, if they were played before.
        groups: which of the levels are the same, ``[n]``; see `effect`.
        hold: filters of other concepts, which random directions leave as they are; see `random_bases`.
        draw: draws random directions: `random_bases`, whose removal takes as much variance, or `orthogonal_bases`.
        count: number of random directions.
        copies: episodes played at a time.
        seed: seeds directions and bootstrap.
        mapper: runs the conditions, here or elsewhere.
    """
    bases = draw(basis, components, values, labels, count, seed, *([] if hold is None else [hold]))
    conditions: list[list[Intervention]] = [
        [make(basis, components)],
        *([make(each, range(len(each)))] for each in bases),
    ]
    played = list(
        mapper(
            partial(_play, agent, make_batch, np.asarray(levels), copies),
            conditions if plain is not None else [[], *conditions],
        )
    )
    if plain is None:
        plain, played = played[0], played[1:]
    batch = make_batch(1)
    names = batch.action_names
    batch.close()
    effects = [effect(plain, each, agent.action_space, names, groups) for each in played]
    variances = [removed_variance(each, range(len(each)), values) for each in bases]
    return Controlled(effects[0], effects[1:], removed_variance(basis, components, values), variances)


def _play(
    agent: Agent,
    make_batch: Callable[[int], EnvBatch],
    levels: IntArray,
    copies: int,
    interventions: Sequence[Intervention],
) -> Episodes:
    batch = make_batch(min(copies, len(levels)))
    try:
        return play(agent, batch, levels, hooks=interventions, frames=False)
    finally:
        batch.close()
