"""Second looks: answers of people that are more likely wrong than right, for the owner to keep or change."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rlhf_ray.data.comparisons import Side, side_of
from rlhf_ray.data.images import is_image
from rlhf_ray.labelling.answers import Store
from rlhf_ray.labelling.films import FilmInfo, Films
from rlhf_ray.labelling.questions import Shown
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.answers import BEFORE, REVIEWED_BY, Suspicions, doubtful, own_preference
from rlhf_ray.store.schema import holding

MOST = 20
"""Maximum number of answers listed at once."""

_Row = dict[str, Any]


@dataclass(frozen=True)
class Doubt:
    """An answer that is more likely wrong than right, with its clips as they were shown.

    Attributes:
        event_id: the answer's event.
        annotator: who gave it.
        answer: the answer, by screen side.
        chance: how likely it is wrong.
        left, right: the films, by screen side.
        fps: frames per second at speed 1.
    """

    event_id: str
    annotator: str
    answer: Side
    chance: float
    left: FilmInfo
    right: FilmInfo
    fps: float


class SecondLooks:
    """Which answers to look at again.

    Args:
        store: the answers, and the fragments.
        films: the films that can be shown; those of image clips are made again from the store.
        screen: returns what a pair looks like: the films by screen side, and their frames per second.
    """

    def __init__(
        self,
        store: Store,
        films: Films,
        screen: Callable[[Shown], tuple[FilmInfo, FilmInfo, float]],
    ):
        self._store, self._films, self._screen = store, films, screen
        self._suspicions: Suspicions = {}
        self._fits = 0
        self._made: tuple[tuple[int, int], list[Doubt]] = ((-1, 0), [])
        """The list, and the number of fits and of changes to the store that it is of."""
        self._making = asyncio.Lock()

    def suspect(self, suspicions: Suspicions) -> None:
        """Take the newest fit's suspicions in place of all earlier ones."""
        self._suspicions, self._fits = suspicions, self._fits + 1

    async def listed(self, changes: int) -> list[Doubt]:
        """The answers to look at again, the likeliest wrong first; at most `MOST`; made anew as the store's ``changes`` grow."""
        async with self._making:
            state = self._fits, changes
            if self._made[0] != state:
                rows: list[tuple[float, _Row]] = []
                if self._suspicions:
                    rows = await asyncio.to_thread(
                        doubtful, await self._store.call(PreferenceStore.events), self._suspicions
                    )
                    rows = [one for one in rows if one[1]["annotator_type"] == "human"]
                    sides = ("left_id", "right_id")
                    await self.film({row[side] for _, row in rows[:MOST] for side in sides})  # for the likeliest
                    rows = [one for one in rows if all(one[1][side] in self._films for side in sides)][:MOST]
                doubts = []
                for chance, row in rows:
                    shown = _shown(row)
                    answer = side_of(row["preference"], shown.swapped)
                    doubts.append(Doubt(row["event_id"], row["annotator"], answer, chance, *self._screen(shown)))
                self._made = state, doubts
            return self._made[1]

    async def find(self, event_id: str) -> _Row | None:
        """The active answer with this event id, if it is suspicious or was looked at before."""
        events = await self._store.call(PreferenceStore.events)

        def find() -> _Row | None:
            ids = events["event_id"].to_pylist()
            rows = [(key, row) for key, row in holding(events).items() if ids[row] == event_id]
            for key, row in rows:
                values: _Row = events.slice(row, 1).to_pylist()[0]
                if key in self._suspicions or REVIEWED_BY in json.loads(values["extra"] or "{}"):
                    return values
            return None

        return await asyncio.to_thread(find)

    async def film(self, clips: Iterable[str]) -> None:
        """Make the lost films of these image clips again, from the store."""
        names = sorted(name for name in clips if name not in self._films)
        if not names:
            return
        there, fragments = await self._store.call(PreferenceStore.fragments, names)
        if fragments is not None and is_image(fragments.observations[0, 0]):
            for i, position in enumerate(there):
                self._films.put_images(names[position], fragments.observations[i])


def replacing(row: _Row, owner: str, answer: str) -> dict[str, Any]:
    """The values of an event with which ``owner`` replaces the answer ``row``, with a note of who did, and what it was."""
    shown = _shown(row)
    same = ("left_id", "right_id", "presented_swapped", "policy_version", "reward_version")
    own = own_preference(row["preference"], shown.swapped, row["extra"])
    extra = {"answer": answer, BEFORE: side_of(own, shown.swapped), REVIEWED_BY: owner}
    preference = {"preference": shown.preference(answer)}
    return {name: row[name] for name in same} | {"target": row["event_id"], "extra": extra} | preference


def _shown(row: _Row) -> Shown:
    return Shown(row["left_id"], row["right_id"], bool(row["presented_swapped"]))
