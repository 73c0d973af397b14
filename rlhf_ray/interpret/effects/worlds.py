"""Edits of grids that the world itself can make: an object somewhere else, gone, or there twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from rlhf_ray.data.transitions import Transitions
from rlhf_ray.interpret.effects.edits import FREE, Add, AnyEdit, Move, Remove, edited
from rlhf_ray.interpret.effects.exchange import Change

OBJECTS = 6
"""Most kinds of objects."""
ACTOR = "agent"
"""The object that acts: there is exactly one, before and after each step."""


def object_codes(data: Transitions) -> list[float]:
    """Return the codes of a grid's objects, the rarest first: all but free cells and what is always at the same ones."""
    shown = np.concatenate([each.reshape(len(data), -1) for each in (data.observations, data.next_observations)])
    codes, counts = np.unique(shown, return_counts=True)
    ordered = codes[np.argsort(counts, kind="stable")]
    moving = [code for code in ordered if code != FREE and ((shown == code) != (shown[0] == code)).any()]
    return [float(code) for code in moving][:OBJECTS]


def world_edits(data: Transitions, names: Mapping[str, int], rng: np.random.Generator) -> Iterator[tuple[str, Change]]:
    """Yield the edits of each object by name.

    Args:
        data: steps of a grid.
        names: codes of the objects, by name.
        rng: seeds the places.
    """
    known = {float(code): name for name, code in names.items()}
    for code in object_codes(data):
        name = f"the {known[code]}" if code in known else f"object {code:g}"
        yield f"{name} is somewhere else", _edit(Move(code), rng)
        if known.get(code) == ACTOR:
            continue
        yield f"{name} is not there", _edit(Remove(code), rng)
        yield f"{name} disappears in the step", _edit(Remove(code, when="next_state"), rng)
        yield f"{name} is there once more", _edit(Add(code), rng)


def _edit(edit: AnyEdit, rng: np.random.Generator) -> Change:
    seed = int(rng.integers(2**31))

    def change(own: Transitions, donor: Transitions) -> Transitions:
        return edited(own, [edit], np.random.default_rng(seed))[0]

    return change
