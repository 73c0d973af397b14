"""What a memory writes again of a concept while its directions are taken away at every step.

A removal is fitted to the memory of episodes without one. In a loop, the memory is another: one that holds what it saw now and a
step before has nothing of the step before left, and the removal, which takes what usually goes along, writes the opposite instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np

from rlhf_ray.agents.agent import MEMORY
from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.agents.play import NotANumberError
from rlhf_ray.agents.replay import site_of
from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.interpret.agent.concepts import concepts_at
from rlhf_ray.interpret.agent.erasure import MOST, Classes, Erasure, Held, Target, Whitened
from rlhf_ray.interpret.agent.subject import AgentSubject
from rlhf_ray.interpret.directions import Directions
from rlhf_ray.interpret.directions.controls import removed_variance
from rlhf_ray.interpret.directions.interventions import Intervention

LONGEST = 1000
"""Steps after which an episode is cut."""


def taken_in_the_loop(
    subject: AgentSubject,
    erasure: Erasure,
    name: str,
    classes: Mapping[str, Classes],
    values: FloatArray,
    levels: IntArray,
    read: Callable[[Episodes], Mapping[str, FloatArray]] = concepts_at,
) -> Erasure:
    """Add directions to an erasure until the memory that is played without them tells the concept no more.

    Half of the levels find the direction, the other half tell whether it reads the concept; a trace that is small beside the
    distance between the classes does not count (`Erasure.taken`). A layer is computed anew at each step: nothing is written to it.

    Args:
        subject: the agent and its environment.
        erasure: of the concept.
        name: of the concept.
        classes: of all concepts.
        values: what the site holds without an intervention, ``[n, size]``.
        levels: those to play, not those that effects are measured on.
        read: returns the concepts of episodes, ``[n, T]`` by name.
    """
    if site_of(subject.agent) != MEMORY:
        return erasure
    plain = Whitened(values)
    while True:
        hook = Intervention(erasure.basis, range(len(erasure.basis)), "ablate_midpoint")
        try:
            played = subject.play(levels, max_steps=LONGEST, frames=False, hooks=[hook])
        except NotANumberError:  # whoever takes it away for a figure finds the same
            return erasure
        fit, test = (_held(played.select(np.arange(start, len(levels), 2)), classes, read) for start in (0, 1))
        if not fit.classes.keys() & test.classes.keys() >= {name, *erasure.others}:
            return erasure
        target, again = Target.of(0, fit, test, name, erasure.others), Target.of(0, test, fit, name, erasure.others)
        if target is None or again is None or float(fit.values.var(0).sum()) <= 1e-12:
            return erasure
        metric = Whitened(fit.values)
        area, way = target.signed(metric(fit.values), metric(test.values))
        share = plain.along(target.pattern(fit.values), again.pattern(test.values)) / plain.length(
            erasure.basis.patterns[0]
        )
        erasure = replace(erasure, rewritten=share if area > target.bound else 0.0)
        if erasure.taken or len(erasure.basis) >= min(MOST, values.shape[1]):
            return erasure
        basis = extended(erasure.basis, metric, way, fit.values, fit.first(name), values)
        erasure = replace(erasure, basis=basis, variance=removed_variance(basis, range(len(basis)), values))


def _held(
    played: Episodes, classes: Mapping[str, Classes], read: Callable[[Episodes], Mapping[str, FloatArray]]
) -> Held:
    known = {name: values[played.real] for name, values in read(played).items() if name in classes}
    inside = played.memory[:, 1:][played.real].astype(np.float64)
    return Held(inside, {name: classes[name].every(values) for name, values in known.items()})


def extended(
    basis: Directions, metric: Whitened, way: FloatArray, values: FloatArray, classes: FloatArray, fitted: FloatArray
) -> Directions:
    """Return directions and one more: to take them all away is to take the first away, and then the new one from what is left.

    Args:
        basis: the first ones.
        metric: of the values without them.
        way: the new direction in the metric.
        values: what is left, ``[n, size]``.
        classes: of the concept there, ``[n]``.
        fitted: what the site holds without a removal, ``[m, size]``.
    """
    pattern, reader = (way * metric.spread) @ metric.axes, (way / metric.spread) @ metric.axes
    scores = (values - basis.center) @ reader
    middle = 0.5 * (float(scores[classes == 0].mean()) + float(scores[classes == 1].mean()))
    along = basis.patterns @ reader  # the first removal moves the new score by so much
    filters = np.concatenate([basis.filters, (reader - along @ basis.filters)[None]])
    names = [*basis.names, f"{basis.names[0]}, direction {len(basis) + 1}"]
    midpoints = np.append(basis.midpoints, middle - along @ basis.midpoints)
    patterns, sources = np.concatenate([basis.patterns, pattern[None]]), (fitted - basis.center) @ filters.T
    return Directions(basis.kind, names, basis.center, patterns, filters, sources, midpoints)
