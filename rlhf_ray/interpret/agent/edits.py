"""What edits of levels are about, and which concepts they show that an agent does not act on."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.agents.episodes import Episodes
from rlhf_ray.data.arrays import IntArray
from rlhf_ray.interpret.agent.concepts import ELAPSED, concepts_at
from rlhf_ray.interpret.agent.counterfactual import Counterfact
from rlhf_ray.interpret.agent.effects import acts_otherwise
from rlhf_ray.interpret.agent.erasure import Classes
from rlhf_ray.interpret.directions.labels import usable
from rlhf_ray.measure.intervals import estimate_mean

MOST = 0.5
"""Share of moments at which an edit has to change a concept to be evidence of it."""
SMALL = 0.01
"""Share of actions from which on an agent reacts to an edit, or acts on what it sees: one in a hundred is what ties and rounding
may change."""


def changed_by(edit: str, plain: Episodes, changed: Episodes) -> list[str]:
    """Return the concepts that an edit is about: of those that it changes at most moments, those that it is named after, or all.

    Where it changes none that is described, those that it is named after: some concepts are described a step later.
    """
    before, after = concepts_at(plain), concepts_at(changed)
    names = [name for name in before if name in after and name != ELAPSED]
    named = [name for name in names if set(_words(name)) <= set(_words(edit))]
    pairs = {name: (before[name][:, 0], after[name][:, 0]) for name in names}
    differ = [name for name, (one, two) in pairs.items() if 1.0 - np.isclose(one, two, 0.0, 0.0, True).mean() >= MOST]
    return [name for name in differ if name in named] or differ or named


def _words(name: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", name.lower())


def unheard(
    pairs: Sequence[tuple[str, bool, Counterfact]],
    space: gym.Space[Any],
    groups: Callable[[IntArray], IntArray],
) -> set[str]:
    """Return the concepts of which an edit at the start changes the class in most levels, and nothing that the agent does.

    Without those of which another edit, that changes nothing else, does.
    """
    silent, heard = set[str](), set[str]()
    for edit, at_start, pair in pairs:
        acts = acts_otherwise(pair.plain, pair.changed, space)
        share = estimate_mean(acts, groups(pair.plain.levels))
        if share.beyond(SMALL):
            changed = changed_by(edit, pair.plain, pair.changed)
            heard |= set(changed) if len(changed) == 1 else set()
        elif at_start and share.high is not None and share.high <= SMALL:
            silent |= {name for name in concepts_at(pair.plain) if name != ELAPSED and _flips(name, pair)}
    return silent - heard


def _flips(name: str, pair: Counterfact) -> bool:
    """Return whether an edit changes a concept's class at some step of at least `MOST` of the episodes."""
    sides = pair.plain, pair.changed
    steps = min(side.actions.shape[1] for side in sides)
    both = np.logical_and(*(side.real[:, :steps] for side in sides))
    before, after = (concepts_at(side)[name][:, :steps] for side in sides)
    if not usable(before[both]):
        return False
    classes = Classes.fit(before[both])
    differ = np.nan_to_num(classes(after) - classes(before)) != 0
    return bool((differ & both).any(1).mean() >= MOST)
