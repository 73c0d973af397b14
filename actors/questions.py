"""Questions that the asynchronous ring has open."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import ray

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.fragments import Fragments

LOST = (ray.exceptions.ObjectLostError, ray.exceptions.OwnerDiedError)
"""What reading an object raises when the node that held it is gone."""


@dataclass
class Questions:
    """Pairs that were asked about together.

    Attributes:
        number: of the asking.
        pairs: where they are.
        count: how many.
        answered, stored: how many of them, from the first, have been; of people's questions, how many in whatever order.
        people: whether people are asked.
        posted: whether the labelling page has them.
        asked_at: when they were asked, by `time.monotonic`.
    """

    number: int
    pairs: ray.ObjectRef[Pairs]
    count: int
    answered: int = 0
    stored: int = 0
    people: bool = False
    posted: bool = False
    asked_at: float = field(default_factory=time.monotonic)

    def state(self) -> dict[str, Any]:
        """What is left to ask and to store, in plain arrays and numbers.

        Raises:
            LOST: the pairs went with the node they were on.
        """
        pairs: Pairs = ray.get(self.pairs)
        plain = vars(pairs) | {"left": vars(pairs.left), "right": vars(pairs.right)}
        return {
            "number": self.number,
            "pairs": plain,
            "count": self.count,
            "stored": self.stored,
            "people": self.people,
        }

    @staticmethod
    def of_state(state: dict[str, Any]) -> Questions:
        """The inverse of `state`. What was not stored is asked again."""
        plain = state["pairs"]
        pairs = Pairs(**(plain | {"left": Fragments(**plain["left"]), "right": Fragments(**plain["right"])}))
        stored = state["stored"]
        return Questions(state["number"], ray.put(pairs), state["count"], stored, stored, state["people"])
