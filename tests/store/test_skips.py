"""Skips of scripted teachers in the store."""

from pathlib import Path

from rlhf_ray.store import Event, PreferenceStore, Tally
from tests.made_up import some_comparisons

COMPARISONS = some_comparisons(6)


def test_skips_are_counted_kept_apart_from_labels_and_stored_once(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "store")
    store.commit(COMPARISONS[:2], annotator="ada")
    assert store.skip(COMPARISONS.pairs[2:5], annotator="ada") == 3
    assert store.skip(COMPARISONS.pairs[2:5], annotator="ada") == 0
    assert store.skip(COMPARISONS.pairs[2:3], annotator="ben") == 1
    assert store.tally() == Tally(last=6, held=2, ties=0, by_annotator={"ada": 2}, skipped=4)
    assert store.tally(until=3).skipped == 1
    assert store.last_answer(COMPARISONS.pairs.ids[2:4], "ada") == 4
    labels = store.load()
    assert labels is not None
    assert labels.pairs.ids == COMPARISONS.pairs.ids[:2]
    changes = store.since(2)
    assert changes.held is None
    assert changes.last == 6


def test_skips_travel_with_copies_and_merges(tmp_path: Path) -> None:
    store, other = PreferenceStore(tmp_path / "store"), PreferenceStore(tmp_path / "other")
    store.commit(COMPARISONS[:1], annotator="ada")
    store.skip(COMPARISONS.pairs[1:3], annotator="ada")
    store.copy_to(tmp_path / "copy")
    assert PreferenceStore(tmp_path / "copy").tally() == store.tally()
    other.import_from(tmp_path / "store")
    assert other.tally().skipped == 2
    other.undo()
    assert other.tally().skipped == 0


def test_a_pair_that_somebody_postponed_or_took_back_is_not_skipped(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "store")
    left, right = COMPARISONS.pairs.left.ids()[0], COMPARISONS.pairs.right.ids()[0]

    def skip(event: str, answer: str) -> Event:
        return Event(event, "skip", "ada", left, right, extra={"answer": answer})

    clips = COMPARISONS.pairs.left[:1].concatenate([COMPARISONS.pairs.left[:1], COMPARISONS.pairs.right[:1]])
    store.record([skip("1", "skip"), skip("2", "incomparable")], clips)
    assert store.tally().skipped == 1
    store.record([Event("3", "retract", "ada", target="2")])
    assert store.tally().skipped == 0
