"""Grids: values that a sweep tries one by one, in all combinations, instead of drawing them at random."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from ray.tune.search.sample import Categorical

DRAWS = 4
"""Number of trials, if some settings are drawn and no number is given."""


class Listed(Categorical):  # type: ignore[misc]
    """Values that are each tried. `tune.choice` draws them at random. Searchers and schedulers choose from both freely."""


def listed(domain: Any) -> Any:
    """Return Tune's ``grid_search`` as `Listed`; any other sampler unchanged."""
    return Listed(domain["grid_search"]) if isinstance(domain, dict) and "grid_search" in domain else domain


def size(space: Mapping[str, Any]) -> int:
    """Return the number of combinations of the listed values in ``space``; 1 without any."""
    return math.prod(len(domain.categories) for domain in space.values() if isinstance(domain, Listed))


def count(space: Mapping[str, Any], trials: int | None) -> int:
    """Return how many trials to run.

    Args:
        space: the search space.
        trials: the number that was asked for; None for as many as there are combinations, and at least `DRAWS` if some settings
            are drawn.
    """
    if any(not isinstance(domain, Listed) for domain in space.values()):
        return max(DRAWS, size(space)) if trials is None else trials
    return size(space) if trials is None else min(trials, size(space))


def points(space: Mapping[str, Any], trials: int, seed: int) -> list[dict[str, Any]]:
    """Return the listed values of each trial: all combinations in turn, or a random part of them if there are more than trials."""
    names = [name for name, domain in space.items() if isinstance(domain, Listed)]
    if not names:
        return []
    all_of_them = list(itertools.product(*(space[name].categories for name in names)))
    if trials < len(all_of_them):
        chosen: Sequence[Any] = random.Random(seed).sample(all_of_them, trials)
    else:
        chosen = [all_of_them[trial % len(all_of_them)] for trial in range(trials)]
    return [dict(zip(names, values, strict=True)) for values in chosen]


def told(space: Mapping[str, Any], trials: int, asked: int | None, repeat: int, search: str) -> str:
    """Say in one line what a sweep runs."""
    names = [name for name, domain in space.items() if isinstance(domain, Listed)]
    drawn = [name for name in space if name not in names]
    said = f"{trials} trial{'' if trials == 1 else 's'}"
    if search != "random":
        said += f", whose settings {search} chooses"
    elif not names:
        said += f": {', '.join(drawn)} drawn at random"
    else:
        each, combinations = (
            f"{'each combination' if len(names) > 1 else 'each value'} of {' and '.join(names)}",
            size(space),
        )
        if trials < combinations:
            said += f": {trials} of the {combinations} combinations of {' and '.join(names)} (--trials {combinations} for all)"
        elif drawn:
            said += f": {each} in turn, {', '.join(drawn)} drawn at random"
        else:
            said += f": {each}"
            if trials < (asked or 0):
                said += f", not {asked}, which would repeat them; --repeat trains each with several seeds"
            elif trials > combinations:
                said += " in turn"
    return said + (f"; each with {repeat} seeds" if repeat > 1 else "")
