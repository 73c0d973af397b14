"""Controls: an intervention on a component beside the same one on random directions along which the values vary as much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from rlhf_ray.agents.agent import Agent
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import play
from rlhf_ray.data.arrays import Array, FloatArray, IntArray
from rlhf_ray.envs.batch import EnvBatch
from rlhf_ray.interpret.agent.bases import Basis
from rlhf_ray.interpret.agent.bases.linear import Linear
from rlhf_ray.interpret.agent.effects import CausalEffect, effect
from rlhf_ray.interpret.agent.interventions import Intervention, midpoints
from rlhf_ray.interpret.editing import random_directions
from rlhf_ray.study.figures import fields_of
from rlhf_ray.study.step import Mapper

COUNT = 10
"""Random directions."""
COPIES = 64
"""Episodes played at a time."""

Make = Callable[[Basis, Sequence[int]], Intervention]
"""Makes the intervention on some components of a basis, for example ``lambda b, c: Intervention(b, c, "reflect")``."""


def random_bases(
    basis: Basis,
    components: Sequence[int],
    values: FloatArray,
    labels: Array | None = None,
    count: int = COUNT,
    seed: int = 0,
) -> list[Linear]:
    """Return bases of random directions that stand in for some components, and are orthogonal to them.

    Values vary along each random direction as much as along the component's pattern, and patterns have the same length, so that a
    step of the score moves the values as far. A component that carries more variance than any other direction (the cue that a
    memory is there for) has no equal: then the directions are uniform, and vary less. Were they not orthogonal, they would be the
    component itself. Midpoints are found in the same way as the component's.

    Args:
        basis: the basis.
        components: the components to stand in for, one direction each.
        values: ``[n, size]`` that have the variance.
        labels: two classes ``[n]`` for the midpoints; see `midpoints`.
        count: number of bases. There are fewer if there are no other directions: one in a space of two dimensions, none in one.
        seed: seeds the directions.
    """
    rng = np.random.default_rng([seed, 0xC0, *components])
    rows = np.asarray(values, np.float64)
    center = rows.mean(0)
    own = np.asarray(basis.patterns, np.float64)[list(components)]
    every = np.linalg.qr(own.T, mode="complete").Q
    rest = every[:, len(own) :]  # axes of the space orthogonal to the components
    count = min(count, rest.shape[1]) if rest.shape[1] < 2 else count
    if not count:
        return []
    left, drawn = rows @ rest, []
    for pattern in own:
        length = float(np.linalg.norm(pattern))
        wanted = float(((rows - center) @ pattern / max(length, 1e-300)).var())
        reached = wanted <= float(np.linalg.eigvalsh(np.cov(left.T, bias=True).reshape(rest.shape[1], -1))[-1])
        ways = random_directions(left, wanted, rng, count, 12.0 if reached else 0.0)
        drawn.append(np.stack(ways) @ rest.T * length)
    found = []
    for at in range(count):
        patterns = np.stack([each[at] for each in drawn])
        filters = np.linalg.pinv(patterns).T
        names = [f"random {at}"] * len(patterns)
        made = Linear("random", names, center, patterns, filters, np.zeros((0, len(patterns))), np.zeros(len(patterns)))
        found.append(replace(made, midpoints=midpoints(made, rows, labels)))
    return found


def moved_as_far(
    given: Sequence[Linear], basis: Basis, component: int, values: FloatArray, seed: int = 0
) -> list[Linear]:
    """Return random directions whose midpoints are as far from their values as those of a component are from its own.

    Ablating or reflecting them then moves the values as far as the component's does. That is the control for the size of the
    disturbance. It is harsher than the intervention itself: values that hardly vary along a direction are moved out of all that the
    agent has ever had in mind, while a reflected component goes from one of its classes to the other. `random_bases` as they are
    control for the content: they take away what some other direction of the same kind says.

    Args:
        given: of `random_bases`, one component each.
        basis: the basis.
        component: the component that they stand in for.
        values: ``[n, size]`` that the distance is measured on.
        seed: draws the sides.
    """
    scores = basis.transform(np.asarray(values, np.float64))[:, component]
    distance = float(np.sqrt(((scores - basis.midpoints[component]) ** 2).mean()))
    sides = np.random.default_rng([seed, 0xFA]).choice([-1.0, 1.0], len(given))
    return [replace(each, midpoints=np.array([side * distance])) for each, side in zip(given, sides, strict=True)]


@dataclass(frozen=True)
class Controlled:
    """An effect beside those of random directions.

    Attributes:
        effect: of the intervention.
        random: of the same intervention on each random direction.
    """

    effect: CausalEffect
    random: Sequence[CausalEffect]

    @property
    def changes(self) -> bool:
        """Whether the return changes, by more than with any random direction."""
        return self.beyond(lambda of: of.returns.difference.mean) and not self.effect.returns.difference.holds_zero

    def beyond(self, figure: Callable[[CausalEffect], float]) -> bool:
        """Return whether a figure of the effect is larger than that of every random direction, in either sense."""
        return abs(figure(self.effect)) > max((abs(figure(each)) for each in self.random), default=0.0)

    def to_json(self) -> dict[str, Any]:
        """Return all figures as plain numbers; of the random directions only returns and outcomes."""
        random = [
            {
                "returns": each.returns.difference.mean,
                "outcomes": {name: change.after for name, change in each.outcomes.items()},
            }
            for each in self.random
        ]
        return {**fields_of(self.effect), "random": random, "changes": self.changes}


def controlled(
    agent: Agent,
    make_batch: Callable[[int], EnvBatch],
    levels: Sequence[int] | IntArray,
    make: Make,
    basis: Basis,
    components: Sequence[int],
    values: FloatArray,
    *,
    labels: Array | None = None,
    plain: Episodes | None = None,
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
        count: number of random directions.
        copies: episodes played at a time.
        seed: seeds directions and bootstrap.
        mapper: runs the conditions, here or elsewhere.
    """
    bases = random_bases(basis, components, values, labels, count, seed)
    conditions: list[list[Intervention]] = [
        [make(basis, components)],
        *([make(each, range(len(components)))] for each in bases),
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
    effects = [effect(plain, each, agent.action_space, names, seed) for each in played]
    return Controlled(effects[0], effects[1:])


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
