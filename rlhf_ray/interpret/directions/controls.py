"""Controls: random directions along which values vary as much as along a component, for the same intervention."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rlhf_ray.data.arrays import Array, FloatArray
from rlhf_ray.interpret.directions.directions import Directions
from rlhf_ray.interpret.directions.interventions import midpoints

COUNT = 10
"""Random directions."""


def random_bases(
    basis: Directions,
    components: Sequence[int],
    values: FloatArray,
    labels: Array | None = None,
    count: int = COUNT,
    seed: int = 0,
) -> list[Directions]:
    """Return bases of random directions that stand in for some components, and are orthogonal to them.

    Values vary along each random direction as much as along the component's pattern, and patterns have the same length, so that a
    step of the score moves the values as far. A component that carries more variance than any other direction (the cue that a
    memory is there for) has no equal: then the directions are uniform, and vary less. Were they not orthogonal, they would be the
    component itself. Midpoints are found in the same way as the component's.

    Args:
        basis: the directions.
        components: the components to stand in for, one direction each.
        values: ``[n, size]`` that have the variance.
        labels: two classes ``[n]`` for the midpoints; see `midpoints`.
        count: number of bases. There are fewer if there are no other directions: one in a space of two dimensions, none in one.
        seed: seeds the directions.
    """
    rng = np.random.default_rng([seed, 0xC0, *components])
    rows = np.asarray(values, np.float64)
    center = rows.mean(0)
    replaced = np.asarray(basis.patterns, np.float64)[list(components)]
    every = np.linalg.qr(replaced.T, mode="complete").Q
    rest = every[:, len(replaced) :]  # axes of the space orthogonal to the components
    count = min(count, rest.shape[1]) if rest.shape[1] < 2 else count
    if not count:
        return []
    left, drawn = rows @ rest, []
    for pattern in replaced:
        length = float(np.linalg.norm(pattern))
        wanted = float(((rows - center) @ pattern / max(length, 1e-300)).var())
        reached = wanted <= float(np.linalg.eigvalsh(np.cov(left.T, bias=True).reshape(rest.shape[1], -1))[-1])
        ways = random_directions(left, wanted, rng, count, 12.0 if reached else 0.0)
        drawn.append(np.stack(ways) @ rest.T * length)
    controls = []
    for number in range(count):
        patterns = np.stack([drawn_ways[number] for drawn_ways in drawn])
        filters = np.linalg.pinv(patterns).T
        names = [f"random {number}"] * len(patterns)
        random = Directions(
            "random", names, center, patterns, filters, np.zeros((0, len(patterns))), np.zeros(len(patterns))
        )
        controls.append(replace(random, midpoints=midpoints(random, rows, labels)))
    return controls


def moved_as_far(
    controls: Sequence[Directions], basis: Directions, component: int, values: FloatArray, seed: int = 0
) -> list[Directions]:
    """Return random directions whose midpoints are as far from their values as those of a component are from its own.

    Ablating or reflecting them then moves the values as far as the component's does. That is the control for the size of the
    disturbance. It is harsher than the intervention itself: values that hardly vary along a direction are moved out of all that the
    agent has ever had in mind, while a reflected component goes from one of its classes to the other. `random_bases` as they are
    control for the content: they take away what some other direction of the same kind says.

    Args:
        controls: of `random_bases`, one component each.
        basis: the directions.
        component: the component that they stand in for.
        values: ``[n, size]`` that the distance is measured on.
        seed: draws the sides.
    """
    scores = basis.encode(np.asarray(values, np.float64))[:, component]
    distance = float(np.sqrt(((scores - basis.midpoints[component]) ** 2).mean()))
    sides = np.random.default_rng([seed, 0xFA]).choice([-1.0, 1.0], len(controls))
    return [
        replace(control, midpoints=np.array([side * distance])) for control, side in zip(controls, sides, strict=True)
    ]


def random_directions(
    rows: FloatArray, wanted: float, rng: np.random.Generator, count: int, steepest: float = 12.0
) -> list[FloatArray]:
    """Draw unit vectors ``[size]`` along which ``rows`` ``[n, size]`` have the variance ``wanted``, or as near as possible.

    They are random weights of the principal axes, tilted until the variance fits. ``steepest`` bounds the tilt: at 0,
    they are uniform where a larger variance is wanted; at the default, a variance out of reach makes all of them the first axis.
    """
    centred = (rows - rows.mean(0)).astype(np.float64)
    variances, axes = np.linalg.eigh(centred.T @ centred / len(centred))
    relative = np.maximum(variances, 0.0) / max(float(variances[-1]), 1e-12) + 1e-9
    ways = []
    for _ in range(count):
        drawn = rng.standard_normal(len(variances))
        low, high = -4.0, steepest
        for _ in range(40):
            middle = (low + high) / 2
            weights = drawn * relative**middle
            weights /= max(float(np.linalg.norm(weights)), 1e-300)
            low, high = (middle, high) if (weights**2 * variances).sum() < wanted else (low, middle)
        ways.append(axes @ weights)
    return ways
