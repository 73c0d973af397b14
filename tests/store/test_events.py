"""What people say: events of all kinds, and what each annotator's count. Which of them hold is in `tests.store.test_model`."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import pair_id
from rlhf_ray.store import Event, PreferenceStore, Tally
from tests.made_up import some_comparisons, some_fragments
from tests.store.test_damage import flip_in
from tests.store.test_model import CLIPS, IDS, event, held

FIRST = pair_id(IDS[0], IDS[1])


def test_an_answer_is_stored_with_all_that_was_told_about_it(tmp_path):
    shown = datetime(2026, 1, 2, 3, 4, 5, 678901, tzinfo=UTC)
    told: dict[str, Any] = {
        "preference": 0.5,
        "presented_swapped": True,
        "t_shown": shown,
        "t_answered": shown + timedelta(seconds=3),
        "view_ms": 2800,
        "session": "s7",
        "run_id": "run-1",
        "policy_version": 12,
        "reward_version": 3,
    }
    assert PreferenceStore(tmp_path).record([event("e1", extra={"key": "="}, **told)], CLIPS) == 1
    (row,) = PreferenceStore(tmp_path).events().to_pylist()
    about = {"sequence": 1, "event_id": "e1", "kind": "label", "target": None, "pair_id": FIRST, "merge": None}
    who = {"left_id": IDS[0], "right_id": IDS[1], "annotator": "ada", "annotator_type": "human"}
    assert row == about | who | told | {"extra": json.dumps({"key": "="})}
    loaded = PreferenceStore(tmp_path).load()
    assert np.array_equal(loaded.pairs.left.observations[0], CLIPS.observations[0])
    assert (loaded.pairs.reward_version, loaded.annotators, loaded.keys) == (3, ("ada",), [(FIRST, "ada")])


def test_clips_must_be_stored_or_come_along(tmp_path):
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
def test_an_event_that_cannot_be_is_refused(values, rule):
    right = {"event_id": "a", "kind": "label", "annotator": "ada", "left_id": "l", "right_id": "r", "preference": 1.0}
    with pytest.raises(ValueError, match=rule):
        Event(**{**right, **values})


def test_a_pair_whose_clip_is_lost_is_left_out_and_not_withdrawn(tmp_path):
    store, other = PreferenceStore(tmp_path), some_fragments(2, seed=7)
    store.record([event("a")], CLIPS)
    store.record([Event("b", "label", "ada", *other.ids(), 0.0)], other)
    flip_in(max((tmp_path / "clips").iterdir()), other.observations[0].tobytes())
    changes = PreferenceStore(tmp_path).since(0)
    assert (held(changes), changes.withdrawn) == ({(FIRST, "ada"): 1.0}, ())


def test_skips_are_counted_apart_from_labels_and_stored_once(tmp_path):
    store, some = PreferenceStore(tmp_path / "store"), some_comparisons(6)
    store.commit(some[:2], annotator="ada")
    assert [store.skip(some.pairs[2:5], annotator="ada") for _ in range(2)] == [3, 0]
    assert store.skip(some.pairs[2:3], annotator="ben") == 1
    assert store.tally() == Tally(last=6, comparisons=2, ties=0, by_annotator={"ada": 2}, skipped=4)
    assert store.tally(until=3).skipped == 1
    assert store.last_answer(some.pairs.ids[2:4], "ada") == 4
    assert (store.since(2).comparisons, store.since(2).last) == (None, 6)


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_cannot_be_is_refused(tmp_path, weight):
    store = PreferenceStore(tmp_path)
    store.weigh("ada", 0.5)
    with pytest.raises(ValueError, match=r"weight of 'ada' is .*; it must be a finite number, 0 "):
        store.weigh("ada", weight)
    with pytest.raises(ValueError, match="name is empty"):
        store.weigh("", 1.0)
    assert store.weights() == store.describe()["weights"] == {"ada": 0.5}


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weights": {"ada": -1}}', '{"weights": {"ada": "x"}}'])
def test_damaged_weights_are_named_and_not_guessed(tmp_path, content):
    store = PreferenceStore(tmp_path)
    (tmp_path / "annotators.json").write_text(content)
    for reading in (store.weights, lambda: store.since(0), lambda: store.weigh("ada", 1.0)):
        with pytest.raises(ValueError, match=r"annotators\.json is damaged .* repair it, or delete it"):
            reading()
    assert "annotators.json is damaged" in store.verify().problems[0]
