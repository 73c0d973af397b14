"""What has become of comparisons since some moment, and what each annotator's answers count."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.comparisons import Changes, pair_id
from rlhf_ray.store import Event, PreferenceStore
from tests.made_up import some_comparisons, some_fragments
from tests.store.test_events import CLIPS, IDS, event

FIRST, SECOND = pair_id(IDS[0], IDS[1]), pair_id(IDS[2], IDS[3])


def held(changes: Changes) -> dict[tuple[str, str], float]:
    if changes.held is None:
        return {}
    return dict(zip(changes.held.keys, changes.held.preferences.tolist(), strict=True))


def test_two_peoples_answers_to_one_pair_are_two_comparisons_with_their_names(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([event("a"), event("b", by="bert", preference=0.0)], CLIPS)
    loaded = store.load()
    assert loaded is not None
    assert loaded.annotators == ("anna", "bert")
    assert loaded.keys == [(FIRST, "anna"), (FIRST, "bert")]
    assert loaded.preferences.tolist() == [1.0, 0.0]


def test_changes_are_what_holds_now_of_what_was_touched(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    assert store.since(0) == Changes(0, None)
    store.record([event("a"), event("b", by="bert"), event("c", pair=(2, 3))], CLIPS)
    all_of_it = store.since(0)
    assert held(all_of_it) == {(FIRST, "anna"): 1.0, (FIRST, "bert"): 1.0, (SECOND, "anna"): 1.0}
    assert (all_of_it.last, all_of_it.withdrawn) == (3, ())
    assert store.since(3) == Changes(3, None)
    store.record([event("d", preference=0.0), Event("e", "retract", "bert", target="b")])
    changes = store.since(3)
    assert held(changes) == {(FIRST, "anna"): 0.0}
    assert changes.withdrawn == ((FIRST, "bert"),)
    store.record([Event("f", "retract", "anna", target="d")])
    assert held(store.since(changes.last)) == {(FIRST, "anna"): 1.0}  # the older answer holds again
    store.record([event("g", "supersede", pair=(2, 3), target="a")])  # takes back the answer to another pair
    changes = store.since(6)
    assert (held(changes), changes.withdrawn) == ({(SECOND, "anna"): 1.0}, ((FIRST, "anna"),))
    assert store.since(99) == Changes(99, None)


def test_checks_skips_and_flags_are_no_changes(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([event("a"), event("b", "check", preference=0.0, pair=(2, 3)), event("c", "skip", by="bert")], CLIPS)
    store.record([event("d", "flag"), Event("e", "retract", "anna", target="b")])
    assert len(store) == 1
    assert held(store.since(0)) == {(FIRST, "anna"): 1.0}
    assert store.since(0).withdrawn == ()
    assert (store.since(1).held, store.since(1).last) == (None, 5)


def test_an_answer_taken_back_before_it_came_is_withdrawn(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([Event("r", "retract", "anna", target="late")])
    assert store.since(0).withdrawn == ()
    store.record([event("late")], CLIPS)
    assert store.since(1).withdrawn == ((FIRST, "anna"),)


def test_a_pair_whose_clip_is_lost_is_left_out_and_not_withdrawn(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    other = some_fragments(2, seed=7)
    store.record([event("a")], CLIPS)
    store.record([Event("b", "label", "anna", *other.ids(), 0.0)], other)
    newest = max((tmp_path / "clips").iterdir())
    content = bytearray(newest.read_bytes())
    at = content.find(other.observations[0].tobytes())
    content[at] ^= 1
    newest.write_bytes(bytes(content))
    changes = PreferenceStore(tmp_path).since(0)
    assert (held(changes), changes.withdrawn) == ({(FIRST, "anna"): 1.0}, ())


@pytest.mark.slow
@given(st.data())
def test_whoever_follows_the_changes_holds_what_the_store_holds(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    store = PreferenceStore(tmp_path_factory.mktemp("store"))
    store.record([], CLIPS)
    followed: dict[tuple[str, str], float] = {}
    last = 0
    for number in range(data.draw(st.integers(1, 12))):
        kind = data.draw(st.sampled_from(["label", "label", "supersede", "retract", "check", "skip"]))
        values: dict[str, Any] = {"pair": data.draw(st.sampled_from([(0, 1), (2, 3)]))}
        if kind in ("retract", "supersede"):
            values["target"] = f"e{data.draw(st.integers(0, 12).filter(lambda n, own=number: n != own))}"
        if kind in ("label", "supersede", "check"):
            values["preference"] = data.draw(st.sampled_from([0.0, 0.5, 1.0]))
        store.record([event(f"e{number}", kind, by=data.draw(st.sampled_from(["anna", "bert"])), **values)])
        if data.draw(st.booleans()):
            store.compact()
        if data.draw(st.booleans()):
            changes = store.since(last)
            followed = {key: value for key, value in followed.items() if key not in changes.withdrawn} | held(changes)
            last = changes.last
            assert followed == held(store.since(0))
            loaded = store.load()
            assert list(followed) == [] if loaded is None else set(followed) == set(loaded.keys)


def test_weights_are_kept_and_come_with_every_change(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([event("a"), event("b", by="bert")], CLIPS)
    assert store.weights() == {}
    store.weigh("anna", 0.5)
    store.weigh("bert", 0)
    store.weigh("anna", 2)
    assert PreferenceStore(tmp_path).weights() == {"anna": 2.0, "bert": 0.0}
    assert store.since(2) == Changes(2, None, (), {"anna": 2.0, "bert": 0.0})
    assert len(store) == 2  # nothing is deleted
    assert store.describe()["weights"] == {"anna": 2.0, "bert": 0.0}


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_weight_that_cannot_be_is_refused(tmp_path: Path, weight: float) -> None:
    store = PreferenceStore(tmp_path)
    store.weigh("anna", 0.5)
    with pytest.raises(ValueError, match=r"weight of 'anna' is .*; it must be a finite number, 0 "):
        store.weigh("anna", weight)
    with pytest.raises(ValueError, match="name is empty"):
        store.weigh("", 1.0)
    assert store.weights() == {"anna": 0.5}


@pytest.mark.parametrize("content", ["{", "[]", "{}", '{"weights": {"anna": -1}}', '{"weights": {"anna": "x"}}'])
def test_damaged_weights_are_named_and_not_guessed(tmp_path: Path, content: str) -> None:
    store = PreferenceStore(tmp_path)
    (tmp_path / "annotators.json").write_text(content)
    for reading in (store.weights, lambda: store.since(0), lambda: store.weigh("anna", 1.0)):
        with pytest.raises(ValueError, match=r"annotators\.json is damaged .* repair it, or delete it"):
            reading()
    assert "annotators.json is damaged" in store.verify().problems[0]


def test_a_copy_has_the_weights_and_goes_its_own_way(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "one")
    store.weigh("anna", 0.5)
    store.copy_to(tmp_path / "two")
    two = PreferenceStore(tmp_path / "two")
    assert two.weights() == {"anna": 0.5}
    two.weigh("anna", 0)
    store.weigh("bert", 3)
    assert (store.weights(), two.weights()) == ({"anna": 0.5, "bert": 3.0}, {"anna": 0.0})
    store.copy_to(tmp_path / "two")
    assert two.weights() == store.weights()


def test_merging_takes_over_the_weights_of_those_who_have_none_here(tmp_path: Path) -> None:
    mine, theirs = PreferenceStore(tmp_path / "mine"), PreferenceStore(tmp_path / "theirs")
    mine.weigh("anna", 0.5)
    theirs.weigh("anna", 0)
    theirs.weigh("bert", 2)
    mine.import_from(tmp_path / "theirs")
    assert mine.weights() == {"anna": 0.5, "bert": 2.0}
    assert theirs.weights() == {"anna": 0.0, "bert": 2.0}


def test_the_weights_file_is_plain(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.commit(some_comparisons(1), annotator="oracle")
    store.weigh("anna", 0.5)
    content = json.loads((tmp_path / "annotators.json").read_text())
    assert content.pop("sha256") == hashlib.sha256(b'{"anna": 0.5}').hexdigest()
    assert content == {"weights": {"anna": 0.5}}
    assert store.verify().problems == ()


def test_checks_are_kept_when_stores_are_joined(tmp_path: Path) -> None:
    mine, theirs = PreferenceStore(tmp_path / "mine"), PreferenceStore(tmp_path / "theirs")
    theirs.record([event("a", "check", preference=0.5, extra={"catch": "same"})], CLIPS)
    assert mine.import_from(tmp_path / "theirs") == 0
    (row,) = mine.events().to_pylist()
    assert (row["kind"], row["preference"], json.loads(row["extra"])) == ("check", 0.5, {"catch": "same"})
    assert np.array_equal(mine.fragments([IDS[0]])[0], [0])
