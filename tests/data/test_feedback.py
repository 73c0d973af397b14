"""Ratings, ranked lists and demonstrations as comparisons."""

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.feedback import from_demonstrations, from_ranking, from_ratings
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.store import Event, PreferenceStore
from tests.made_up import some_comparisons

RNG = np.random.default_rng


def _fragments(n: int, seed: int = 0) -> Fragments:
    return some_comparisons(n, 5, seed=seed).pairs.left


def _order(fragments: Fragments, comparisons: Comparisons) -> list[tuple[int, int, float]]:
    """Positions of left and right, and the preference, of each comparison."""
    names = fragments.ids()
    return [
        (names.index(left), names.index(right), float(preference))
        for left, right, preference in zip(
            comparisons.pairs.left.ids(), comparisons.pairs.right.ids(), comparisons.preferences, strict=True
        )
    ]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_ratings_and_ranks_that_differ_by_rounding_only_are_ties(dtype):
    ratings = np.array([0.1 + 0.2, 0.3, 0.3 * (1 + 2e-16), 0.7], dtype)
    fragments = _fragments(4)
    for found, best in ((from_ratings(fragments, ratings, RNG(0)), 1.0), (from_ranking(fragments, ratings), 0.0)):
        order = _order(fragments, found)
        assert len(order) == 6
        assert all(preference == 0.5 for left, right, preference in order if 3 not in (left, right))
        assert all(
            preference == (best if left == 3 else 1 - best) for left, right, preference in order if 3 in (left, right)
        )


@pytest.mark.parametrize("n", [5, 100])
def test_the_higher_rating_is_better_and_equal_ones_are_ties(n):
    fragments, ratings = _fragments(n), RNG(0).integers(1, 6, size=n).astype(float)
    comparisons = from_ratings(fragments, ratings, RNG(0))
    found = _order(fragments, comparisons)
    assert 0.9 * min(2 * n, n * (n - 1) // 2) <= len(found) == len({frozenset(pair[:2]) for pair in found}) <= 2 * n
    for left, right, preference in found:
        assert preference == (1.0 if ratings[left] > ratings[right] else 0.0 if ratings[left] < ratings[right] else 0.5)
    assert 0.5 in comparisons.preferences


def test_a_ranked_list_is_all_its_pairs():
    fragments = _fragments(4)
    found = _order(fragments, from_ranking(fragments, np.array([2, 0, 1, 1])))
    assert len(found) == 6
    assert {pair for pair in found if pair[2] == 0.5} == {(2, 3, 0.5)}
    assert all(preference == 1.0 for left, right, preference in found if left == 1)
    assert all(preference == 0.0 for left, right, preference in found if left == 0)


def _answers(found: Comparisons) -> dict[frozenset[str], set[str]]:
    """The better fragments of each pair."""
    answers: dict[frozenset[str], set[str]] = {}
    for left, right, preference in zip(found.pairs.left.ids(), found.pairs.right.ids(), found.preferences, strict=True):
        better = {1.0: left, 0.0: right}.get(float(preference), "equal")
        answers.setdefault(frozenset((left, right)), set()).add(better)
    return answers


def test_a_fragment_is_never_compared_with_itself_nor_answers_contradict_each_other():
    """Fragments 3 to 5 are 0 to 2 again, with other ratings."""
    three = _fragments(3)
    twice, ids = Fragments.concatenate([three, three]), three.ids()
    ratings = np.array([1.0, 2.0, 3.0, 6.0, 2.0, 4.0])  # means 3.5, 2, 3.5
    for found in (from_ratings(twice, ratings, RNG(0)), from_ranking(twice, -ratings)):
        assert _answers(found) == {
            frozenset(ids[:2]): {ids[0]},
            frozenset(ids[1:]): {ids[2]},
            frozenset((ids[0], ids[2])): {"equal"},
        }
    shared = from_demonstrations(three, Fragments.concatenate([three, _fragments(2, seed=1)]), 100, RNG(0))
    assert len(shared) == 6
    assert all(len(pair) == 2 and better < set(ids) for pair, better in _answers(shared).items())
    with pytest.raises(SettingError, match="are demonstrations, too"):
        from_demonstrations(three, twice, 5, RNG(0))


def test_a_store_counts_no_fragment_compared_with_itself(tmp_path, caplog):
    clips, store = _fragments(3), PreferenceStore(tmp_path / "store")
    pairs = Comparisons(Pairs.of(clips, np.array([[0, 0], [0, 1], [2, 2]])), np.array([1, 1, 0], np.float32))
    assert store.commit(pairs, annotator="ada") == 1
    assert "Left out 2 comparisons of a fragment with itself." in caplog.text
    ids = clips.ids()
    store.record([Event("one", "label", "bob", ids[2], ids[2], 1.0)], clips)
    assert len(store) == 1
    assert store.describe()["annotators"] == {"ada": 1}
    merged = PreferenceStore(tmp_path / "merged")
    assert merged.import_from(tmp_path / "store") == 1
    assert merged.load().keys == store.load().keys  # type: ignore[union-attr]


def test_demonstrations_are_better_on_either_side():
    shown, others = _fragments(3), _fragments(4, seed=1)
    comparisons = from_demonstrations(shown, others, 100, RNG(0))
    assert len(comparisons) == len(set(comparisons.pairs.ids)) == 12
    of_shown = set(shown.ids())
    assert [left in of_shown for left in comparisons.pairs.left.ids()] == (comparisons.preferences == 1.0).tolist()
    assert 0 < comparisons.preferences.sum() < 12


@pytest.mark.parametrize(
    ("ratings", "said"),
    [
        (np.zeros(2), "3 fragments need one number each as ratings, .* got an array of shape"),
        (np.array([1.0, np.nan, np.nan]), "as ratings, .* got NaN or infinity for 2 of them"),
        (np.array(["a", "b", "c"]), "as ratings, .* got something else"),
    ],
)
def test_what_is_no_rating_is_refused(ratings, said):
    with pytest.raises(SettingError, match=said):
        from_ratings(_fragments(3), ratings, RNG(0))
    with pytest.raises(SettingError, match="all 3 fragments are the same"):
        from_ratings(_fragments(1)[np.zeros(3, int)], np.arange(3.0), RNG(0))
