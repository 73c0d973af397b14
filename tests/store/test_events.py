"""What people say: events of all kinds, which of them hold, and in which order."""

from __future__ import annotations

import itertools
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.comparisons import pair_id
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store import store as store_module
from tests.made_up import some_fragments

CLIPS = some_fragments(4)
IDS = CLIPS.ids()
NUMBERS = itertools.count()


def event(name: str, kind: Any = "label", *, pair: tuple[int, int] = (0, 1), by: str = "anna", **values: Any) -> Event:
    """An event about a pair of `CLIPS`; a label for the left one unless told."""
    if kind in ("label", "supersede"):
        values = {"preference": 1.0, **values}
    return Event(name, kind, by, IDS[pair[0]], IDS[pair[1]], **values)


def held(path: Path) -> list[tuple[str, float]]:
    labels = PreferenceStore(path).snapshot().labels
    return list(zip(labels["event_id"].to_pylist(), labels["preference"].to_pylist(), strict=True))


def test_an_answer_is_stored_with_all_that_was_told_about_it(tmp_path: Path) -> None:
    shown = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    answer = event(
        "e1",
        by="anna",
        preference=0.5,
        presented_swapped=True,
        t_shown=shown,
        t_answered=shown + timedelta(seconds=3),
        view_ms=2800,
        session="s7",
        run_id="run-1",
        policy_version=12,
        reward_version=3,
        extra={"key": "="},
    )
    assert PreferenceStore(tmp_path).record([answer], CLIPS) == 1
    (row,) = PreferenceStore(tmp_path).events().to_pylist()
    assert row == {
        "sequence": 1,
        "event_id": "e1",
        "kind": "label",
        "target": None,
        "pair_id": pair_id(IDS[0], IDS[1]),
        "left_id": IDS[0],
        "right_id": IDS[1],
        "preference": 0.5,
        "annotator": "anna",
        "annotator_type": "human",
        "presented_swapped": True,
        "t_shown": shown,
        "t_answered": shown + timedelta(seconds=3),
        "view_ms": 2800,
        "session": "s7",
        "run_id": "run-1",
        "policy_version": 12,
        "reward_version": 3,
        "extra": json.dumps({"key": "="}),
        "merge": None,
    }
    loaded = PreferenceStore(tmp_path).load()
    assert loaded is not None
    assert np.array_equal(loaded.pairs.left.observations[0], CLIPS.observations[0])
    assert loaded.pairs.reward_version == 3


def test_a_retraction_cancels_what_it_names_and_an_older_answer_holds_again(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([event("a"), event("b", preference=0.0)], CLIPS)
    assert held(tmp_path) == [("b", 0.0)]
    store.record([Event("c", "retract", "anna", target="b")])
    assert held(tmp_path) == [("a", 1.0)]
    store.record([Event("d", "retract", "anna", target="a")])
    assert held(tmp_path) == []
    assert store.load() is None
    assert len(store) == 0
    assert len(store.events()) == 4


def test_a_correction_replaces_what_it_names(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([event("a"), event("other", pair=(2, 3))], CLIPS)
    store.record([event("b", "supersede", target="a", preference=0.0)])
    assert held(tmp_path) == [("other", 1.0), ("b", 0.0)]
    store.record([Event("c", "retract", "anna", target="b")])
    assert held(tmp_path) == [("other", 1.0)]  # what was replaced stays replaced


def test_each_annotators_latest_answer_to_a_pair_holds(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([event("a"), event("b", by="bert"), event("c", preference=0.0), event("d", pair=(1, 0))], CLIPS)
    assert held(tmp_path) == [("b", 1.0), ("c", 0.0), ("d", 1.0)]


def test_skips_and_flags_are_kept_but_are_no_comparisons(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    assert store.record([event("a", "skip"), event("b", "flag", extra={"why": "black"})], CLIPS) == 2
    assert len(store) == 0
    assert store.events()["kind"].to_pylist() == ["skip", "flag"]


def test_an_answer_that_comes_twice_or_late_does_no_harm(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    assert store.record([event("a"), event("a", preference=0.0)], CLIPS) == 1  # its first content holds
    assert store.record([event("a", preference=0.0), event("b", pair=(2, 3))]) == 1
    assert store.record([Event("r", "retract", "anna", target="late")]) == 1
    assert store.record([event("late", pair=(1, 2))]) == 1  # was taken back before it came
    assert held(tmp_path) == [("a", 1.0), ("b", 1.0)]


def test_the_clock_decides_nothing(tmp_path: Path) -> None:
    now = datetime(2026, 1, 1, tzinfo=UTC)
    store = PreferenceStore(tmp_path)
    for hour in range(5):
        # Each answer an hour before the last; the fourth corrects the first.
        when, pair = now - timedelta(hours=hour), [(0, 1), (1, 2), (2, 3), (0, 1), (3, 0)][hour]
        store.record([event(f"e{hour}", pair=pair, t_answered=when, preference=0.0 if hour == 3 else 1.0)], CLIPS)
    expected = [("e1", 1.0), ("e2", 1.0), ("e3", 0.0), ("e4", 1.0)]
    assert held(tmp_path) == expected
    store.compact()
    assert held(tmp_path) == expected


def test_clips_must_be_stored_or_come_along(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    with pytest.raises(ValueError, match=rf"'a': fragment {IDS[0]} is not stored; pass it"):
        store.record([event("a")])
    store.record([], CLIPS)  # before anyone is asked about them
    assert store.record([event("a")]) == 1


@pytest.mark.parametrize(
    ("values", "rule"),
    [
        ({"kind": "like"}, "kind must be one of label, supersede, retract, skip, flag, check"),
        ({"event_id": ""}, "event_id and annotator must not be empty"),
        ({"annotator": ""}, "event_id and annotator must not be empty"),
        ({"preference": None}, "label, supersede and check need a preference"),
        ({"kind": "skip"}, "label, supersede and check need a preference; other kinds have none"),
        ({"preference": 1.5}, "probability"),
        ({"kind": "supersede"}, "needs a target"),
        ({"target": "b"}, "needs a target"),
        ({"kind": "supersede", "target": "a"}, "target must be another event"),
        ({"left_id": None}, "left_id or right_id is missing"),
        ({"t_shown": datetime(2026, 1, 1)}, "t_shown and t_answered need a time zone"),
    ],
)
def test_an_event_that_cannot_be_is_refused(values: dict[str, Any], rule: str) -> None:
    right = {"event_id": "a", "kind": "label", "annotator": "anna", "left_id": "l", "right_id": "r", "preference": 1.0}
    with pytest.raises(ValueError, match=rule):
        Event(**{**right, **values})


@pytest.mark.slow
@given(st.data())
def test_what_holds_does_not_depend_on_commits_compactions_and_repetitions(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Against the rules, written down once more as a loop over events."""
    count = data.draw(st.integers(1, 12))
    events = []
    for number in range(count):
        kind = data.draw(st.sampled_from(["label", "supersede", "retract", "skip", "flag"]))
        options: dict[str, Any] = {"pair": data.draw(st.sampled_from([(0, 1), (2, 3)]))}
        if kind in ("retract", "supersede"):
            options["target"] = f"e{data.draw(st.integers(0, 12).filter(lambda n, own=number: n != own))}"
        if kind in ("label", "supersede"):
            options["preference"] = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
        events.append(event(f"e{number}", kind, by=data.draw(st.sampled_from(["anna", "bert"])), **options))
    cancelled, expected = {one.target for one in events}, dict[tuple[Any, ...], Event]()
    for one in events:
        if one.kind in ("label", "supersede") and one.event_id not in cancelled:
            key = (one.left_id, one.right_id, one.annotator)
            expected.pop(key, None)
            expected[key] = one
    path = tmp_path_factory.mktemp("store")
    store = PreferenceStore(path)
    store.record([], CLIPS)
    at = 0
    while at < count:
        step = data.draw(st.integers(1, 4))
        store.record(events[max(0, at - data.draw(st.integers(0, 3))) : at + step])
        at += step
        if data.draw(st.booleans()):
            store.compact()
    assert held(path) == [(one.event_id, one.preference) for one in expected.values()]


def test_many_small_commits_are_joined_by_the_writer_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "COMPACT_AT", 4)
    store = PreferenceStore(tmp_path)
    for number in range(10):
        clips = some_fragments(2, seed=number)
        left, right = clips.ids()
        store.record([Event(f"e{number}", "label", "anna", left, right, 1.0)], clips)
        for folder in ("labels", "clips"):
            assert len(list((tmp_path / folder).iterdir())) < 4
    assert [name for name, _ in held(tmp_path)] == [f"e{number}" for number in range(10)]
    assert store.verify().problems == ()
