"""A store that takes another's place: what `replace_with` promises."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_ray.store import PreferenceStore
from tests.made_up import same_comparisons, some_comparisons


def test_it_holds_what_the_other_holds_and_its_own_content_is_kept_beside_it(tmp_path: Path) -> None:
    own, donor = some_comparisons(3, seed=1), some_comparisons(5, seed=2)
    store, other = PreferenceStore(tmp_path / "own"), PreferenceStore(tmp_path / "donor")
    store.commit(own, annotator="oracle")
    other.commit(donor, annotator="oracle")
    other.weigh("oracle", 0.5)
    store.replace_with(tmp_path / "donor")
    for now in (store, PreferenceStore(tmp_path / "own", create=False)):
        assert same_comparisons(now.load(), donor)
        assert now.weights() == {"oracle": 0.5}
        assert now.verify().problems == ()
        assert now.tally() == other.tally()
    store.replace_with(tmp_path / "donor")
    for number, comparisons in ((1, own), (2, donor)):
        kept = PreferenceStore(tmp_path / f"own.replaced-{number}", create=False).load()
        assert same_comparisons(kept, comparisons)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["donor", "own", "own.replaced-1", "own.replaced-2"]
    store.commit(own, annotator="oracle")
    assert (len(store), len(other)) == (8, 5)


def test_without_another_store_nothing_happens(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path / "own")
    store.commit(some_comparisons(3), annotator="oracle")
    with pytest.raises(ValueError, match="not a preference store"):
        store.replace_with(tmp_path / "nothing")
    assert len(store) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["own"]


def test_a_call_that_was_cut_off_between_its_two_steps_can_be_repeated(tmp_path: Path) -> None:
    donor = some_comparisons(5, seed=2)
    PreferenceStore(tmp_path / "donor").commit(donor, annotator="oracle")
    PreferenceStore(tmp_path / "own").commit(some_comparisons(3, seed=1), annotator="oracle")
    (tmp_path / "own").rename(tmp_path / "own.replaced-1")
    restarted = PreferenceStore(tmp_path / "own")
    restarted.replace_with(tmp_path / "donor")
    assert same_comparisons(restarted.load(), donor)
    assert len(PreferenceStore(tmp_path / "own.replaced-1", create=False)) == 3


def test_a_store_at_a_url_is_refused(tmp_path: Path) -> None:
    PreferenceStore(tmp_path / "donor")
    with pytest.raises(ValueError, match="memory://replaced"):
        PreferenceStore("memory://replaced").replace_with(tmp_path / "donor")
