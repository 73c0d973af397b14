"""The store against a model of its rules: a dict of events, and a loop that says which of them hold."""

import itertools
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from rlhf_ray.data.comparisons import Changes, Comparisons, Pairs, pair_id
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.schema import scripted_event_id
from tests.made_up import some_fragments

CLIPS = some_fragments(4)
IDS = CLIPS.ids()
PAIRS = [(0, 1), (2, 3), (1, 0), (0, 0)]
"""Two, one of them turned round, and a clip beside itself, which is no pair."""
NAMES = ["ada", "ben"]
Key = tuple[str, str]


def event(name: str, kind: Any = "label", *, pair: tuple[int, int] = (0, 1), by: str = "ada", **values: Any) -> Event:
    """An event about a pair of `CLIPS`; a label for the left one unless told."""
    if kind in ("label", "supersede", "check"):
        values = {"preference": 1.0, **values}
    return Event(name, kind, by, IDS[pair[0]], IDS[pair[1]], **values)


def held(changes: Changes) -> dict[Key, float]:
    """What holds of the changes, by pair and annotator."""
    if changes.comparisons is None:
        return {}
    return dict(zip(changes.comparisons.keys, changes.comparisons.preferences.tolist(), strict=True))


@dataclass
class Model:
    """What a store holds.

    Attributes:
        events: each event with the number of the merge that brought it (0: none), by its id, in order.
        merges: the number of each merge that was not undone, and the weights that it added.
        weights: those that were set, by annotator.
    """

    events: dict[str, tuple[Event, int]] = field(default_factory=dict)
    merges: dict[int, dict[str, float]] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    def record(self, events: list[Event], merge: int = 0) -> int:
        before = len(self.events)
        for one in events:
            self.events.setdefault(one.event_id, (one, merge))
        return len(self.events) - before

    def standing(self) -> list[Event]:
        """The events that no other takes back."""
        cancelled = {one.target for one, _ in self.events.values()}
        return [one for one, _ in self.events.values() if one.event_id not in cancelled]

    def holding(self) -> dict[Key, Event]:
        """Each annotator's latest answer to each pair, in order."""
        latest: dict[Key, Event] = {}
        for one in self.standing():
            if one.kind in ("label", "supersede") and one.left_id and one.right_id and one.left_id != one.right_id:
                key = pair_id(one.left_id, one.right_id), one.annotator
                latest.pop(key, None)
                latest[key] = one
        return latest


EVENTS = st.lists(
    st.tuples(
        st.integers(0, 20),
        st.sampled_from(["label", "label", "supersede", "retract", "skip", "flag", "check"]),
        st.sampled_from(PAIRS),
        st.sampled_from(NAMES),
        st.sampled_from([0.0, 0.5, 1.0]),
        st.integers(0, 20),
    ),
    min_size=1,
    max_size=4,
)


class Store(RuleBasedStateMachine):
    """Commits, merges and undoing, weights, compactions, copies and restarts in any order; and somebody who follows the changes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr(os, "fsync", lambda descriptor: None)  # nobody cuts the power here
        self.folder, self.numbers = Path(tempfile.mkdtemp()), itertools.count(1)
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.model = Model()
        self.store = PreferenceStore(self.folder / "store")
        self.store.record([], CLIPS)
        self.followed: dict[Key, float] = {}
        self.last = 0

    def teardown(self) -> None:
        self.patch.undo()
        shutil.rmtree(self.folder)

    def made(self, drawn: list[tuple[Any, ...]]) -> list[Event]:
        """Events as drawn, each of an hour before the last: clocks decide nothing."""
        events = []
        for number, kind, pair, by, preference, target in drawn:
            values: dict[str, Any] = {"preference": preference} if kind in ("label", "supersede", "check") else {}
            if kind in ("supersede", "retract"):
                values["target"] = (
                    f"e{target if target != number else target + 1}"  # maybe one that comes later, or never
                )
            if kind == "skip":
                values["extra"] = {"answer": "incomparable" if preference else "skip"}
            self.now -= timedelta(hours=1)
            events.append(event(f"e{number}", kind, pair=pair, by=by, t_answered=self.now, **values))
        return events

    @rule(drawn=EVENTS)
    def record(self, drawn: list[tuple[Any, ...]]) -> None:
        events = self.made(drawn)
        assert self.store.record(events) == self.model.record(events)

    @rule(pair=st.sampled_from(PAIRS[:3]), preference=st.sampled_from([None, 0.0, 1.0]))
    def commit(self, pair: tuple[int, int], preference: float | None) -> None:
        """A scripted teacher answers a pair, or can't decide it."""
        pairs = Pairs.of(CLIPS, np.array([pair]))
        one = Event(
            scripted_event_id(pairs.ids[0], "oracle"),
            "skip" if preference is None else "label",
            "oracle",
            IDS[pair[0]],
            IDS[pair[1]],
            preference,
            extra={"answer": "incomparable"},
        )
        if preference is None:
            stored = self.store.skip(pairs, annotator="oracle")
        else:
            stored = self.store.commit(Comparisons(pairs, np.float32([preference])), annotator="oracle")
        assert stored == self.model.record([one])

    @rule(who=st.sampled_from(NAMES), weight=st.sampled_from([0.0, 0.5, 2.0]))
    def weigh(self, who: str, weight: float) -> None:
        self.store.weigh(who, weight)
        self.model.weights[who] = weight

    @rule(drawn=EVENTS, weights=st.dictionaries(st.sampled_from(NAMES), st.sampled_from([0.0, 0.5]), max_size=2))
    def merge(self, drawn: list[tuple[Any, ...]], weights: dict[str, float]) -> None:
        number, events = next(self.numbers), self.made(drawn)
        other, there = PreferenceStore(self.folder / f"other-{number}"), Model()
        other.record(events, CLIPS)
        there.record(events)
        for who, weight in weights.items():
            other.weigh(who, weight)
        before = len(self.model.holding())
        added = {who: weight for who, weight in weights.items() if who not in self.model.weights}
        if self.model.record([one for one, _ in there.events.values()], number):
            self.model.merges[number] = added
        self.model.weights |= added
        assert self.store.import_from(other.path) == len(self.model.holding()) - before

    @rule()
    def undo(self) -> None:
        if not self.model.merges:
            with pytest.raises(ValueError, match="no merge to undo"):
                self.store.undo()
            return
        number, added = self.model.merges.popitem()
        self.store.undo()
        self.model.events = {name: one for name, one in self.model.events.items() if one[1] != number}
        self.model.weights = {who: weight for who, weight in self.model.weights.items() if added.get(who) != weight}

    @rule()
    def compact(self) -> None:
        self.store.compact()

    @rule(copied=st.booleans())
    def restart(self, copied: bool) -> None:
        if copied:
            path = self.folder / f"copy-{next(self.numbers)}"
            self.store.copy_to(path)
            assert [one.source for one in PreferenceStore(path).merges()] == [one.source for one in self.store.merges()]
            self.store = PreferenceStore(path)
        else:
            self.store = PreferenceStore(self.store.path)

    @rule()
    def follow(self) -> None:
        changes = self.store.since(self.last)
        left = {key: value for key, value in self.followed.items() if key not in changes.withdrawn}
        self.followed, self.last = left | held(changes), changes.last
        assert self.followed == {key: one.preference for key, one in self.model.holding().items()}
        assert changes.weights == self.model.weights

    @rule()
    def verify(self) -> None:
        assert self.store.verify().problems == ()

    @invariant()
    def the_store_holds_what_the_model_holds(self) -> None:
        labels, holding = self.store.snapshot().labels, self.model.holding().values()
        assert labels["event_id"].to_pylist() == [one.event_id for one in holding]
        assert labels["preference"].to_pylist() == [one.preference for one in holding]
        assert self.store.weights() == self.model.weights
        assert len(self.store.events()) == len(self.model.events)
        undecided = [one.kind == "skip" and one.extra["answer"] == "incomparable" for one in self.model.standing()]
        assert self.store.tally().skipped == sum(undecided)


TestStore = pytest.mark.slow(Store.TestCase)
TestStore.settings = settings(stateful_step_count=20)
