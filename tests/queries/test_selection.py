from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.data.arrays import FloatArray, IntArray
from rlhf_ray.data.errors import SettingError
from rlhf_ray.queries.selection import Candidates, Disagreement, _Deck, choose, random_pairs
from tests.made_up import some_fragments


def test_logits_before_the_first_reward_are_refused_with_a_remedy() -> None:
    of = Candidates(np.array([[0, 1]]), some_fragments(2, 2), None)
    with pytest.raises(SettingError, match="set its needs_reward to True"):
        choose(Disagreement(), of, 1, np.random.default_rng(0))


def most_disagreed(candidates: IntArray, returns: FloatArray, count: int) -> IntArray:
    of = Candidates(candidates, some_fragments(returns.shape[1], 2), returns)
    return choose(Disagreement(), of, count, np.random.default_rng(0))


@given(st.integers(0, 25), st.integers(0, 400), st.integers(0, 99))
def test_random_pairs_are_different_pairs_of_different_fragments(fragments: int, count: int, seed: int) -> None:
    pairs = random_pairs(fragments, count, np.random.default_rng(seed))
    assert pairs.shape == (min(count, fragments * (fragments - 1) // 2), 2)
    assert pairs.dtype == np.int64
    assert ((pairs >= 0) & (pairs < fragments)).all()
    assert len({frozenset(pair) for pair in pairs.tolist()}) == len(pairs)  # the other way round is the same question
    assert all(left != right for left, right in pairs.tolist())


@given(st.integers(2, 30), st.integers(0, 99))
def test_no_fragment_is_used_again_before_all_others_have_been(fragments: int, seed: int) -> None:
    half = fragments // 2
    once = random_pairs(fragments, half, np.random.default_rng(seed))
    assert len(set(once.flatten().tolist())) == 2 * half
    # With an odd number, the one that is left over is in the next pair.
    all_used = random_pairs(fragments, (fragments + 1) // 2, np.random.default_rng(seed))
    assert set(all_used.flatten().tolist()) == set(range(fragments))


def test_labels_are_spread_evenly_over_an_odd_number_of_fragments() -> None:
    # Three passes over 101 fragments, hardly one pair of which comes up twice.
    for seed in range(20):
        uses = Counter(random_pairs(101, 150, np.random.default_rng(seed)).flatten().tolist())
        assert max(uses.values()) <= 4
        assert min(uses[i] for i in range(101)) >= 2


def test_every_pair_is_equally_likely_and_so_is_its_order() -> None:
    rng = np.random.default_rng(0)
    counts = Counter(tuple(random_pairs(5, 1, rng)[0].tolist()) for _ in range(8000))
    assert len(counts) == 20
    chi_square = sum((count - 400) ** 2 / 400 for count in counts.values())
    assert chi_square < 42  # 19 degrees of freedom: exceeded by chance once in 500


def test_the_first_pairs_do_not_depend_on_how_many_are_asked_for() -> None:
    few = random_pairs(9, 3, np.random.default_rng(1))
    many = random_pairs(9, 30, np.random.default_rng(1))
    assert np.array_equal(few, many[:3])


@given(st.integers(1, 5), st.integers(2, 8), st.integers(0, 20), st.integers(0, 25), st.integers(0, 99))
def test_most_disagreed_keeps_the_pairs_of_largest_variance(
    members: int, fragments: int, candidates: int, count: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    returns = rng.normal(scale=3, size=(members, fragments)).astype(np.float32)
    pairs = rng.integers(fragments, size=(candidates, 2))
    kept = most_disagreed(pairs, returns, count)

    def disagreement(left: int, right: int) -> float:
        chances = [1 / (1 + np.exp(-(float(row[left]) - float(row[right])))) for row in returns]
        return float(np.mean([(chance - np.mean(chances)) ** 2 for chance in chances]))

    values = [disagreement(*pair) for pair in pairs.tolist()]
    expected = sorted(values, reverse=True)[:count]
    assert kept.shape == (min(count, candidates), 2)
    assert np.allclose([disagreement(*pair) for pair in kept.tolist()], expected, atol=1e-6)


def test_disagreement_is_over_probabilities_not_over_returns() -> None:
    # The members differ more about the first pair's returns, but agree about which is better.
    returns = np.array([[20.0, 0.0, 1.0, 0.0], [90.0, 0.0, -1.0, 0.0]])
    candidates = np.array([[0, 1], [2, 3]])
    assert most_disagreed(candidates, returns, 1).tolist() == [[2, 3]]


def test_among_equals_earlier_candidates_come_first() -> None:
    candidates = np.array([[0, 1], [2, 3], [1, 0], [4, 5], [3, 2]])
    returns = np.array([[1.0, 0.0, 0.0, 0.0, 5.0, 0.0], [0.0, 1.0, 0.0, 0.0, -5.0, 0.0]])
    assert most_disagreed(candidates, returns, 5).tolist() == [[4, 5], [0, 1], [1, 0], [2, 3], [3, 2]]
    many = np.arange(400).reshape(-1, 2)  # so many, since a sort may be stable for a few only
    spread = np.repeat(np.arange(200) % 3, 2) * np.tile([1.0, 0.0], 200)
    order = [i for level in (2, 1, 0) for i in range(200) if i % 3 == level]
    assert np.array_equal(most_disagreed(many, np.stack([spread, -spread]), 200), many[order])


def test_huge_returns_raise_no_warning_and_give_numbers() -> None:
    returns = np.array([[1e30, -1e30], [-1e30, 1e30]], dtype=np.float32)
    with np.errstate(all="raise", under="ignore"):
        assert most_disagreed(np.array([[0, 1]]), returns, 1).tolist() == [[0, 1]]


@given(st.integers(2, 12), st.integers(0, 80), st.floats(0.05, 0.95), st.data())
def test_favouring_some_fragments_keeps_pairs_different_and_finds_all_there_are(
    fragments: int, count: int, share: float, data: st.DataObject
) -> None:
    favoured = np.array(data.draw(st.lists(st.booleans(), min_size=fragments, max_size=fragments)))
    pairs = random_pairs(fragments, count, np.random.default_rng(0), favoured, share)
    assert len(pairs) == min(count, fragments * (fragments - 1) // 2)
    assert len({frozenset(pair) for pair in pairs.tolist()}) == len(pairs)
    assert all(left != right for left, right in pairs.tolist())


def test_favoured_fragments_make_up_their_share_however_few_they_are() -> None:
    favoured = np.arange(1000) < 100
    pairs = random_pairs(1000, 600, np.random.default_rng(0), favoured, 0.5)
    assert abs(favoured[pairs].mean() - 0.5) < 4 * 0.5 / np.sqrt(1200)
    uses = Counter(pairs.flatten().tolist())
    assert (
        max(uses[i] for i in range(100)) - min(uses[i] for i in range(100)) <= 3
    )  # 6 each, but for pairs that came twice


def test_a_share_of_1_takes_favoured_fragments_only() -> None:
    favoured = np.arange(10) % 2 == 0
    pairs = random_pairs(10, 100, np.random.default_rng(0), favoured, 1.0)
    assert favoured[pairs].all()
    assert len(pairs) == 10


@pytest.mark.parametrize("seed", range(5))
def test_a_new_round_of_fragments_begins_with_another_and_leaves_none_out(seed: int) -> None:
    deck = _Deck(np.arange(3), np.random.default_rng(seed))
    *_, last = (deck.deal() for _ in range(3))
    for _ in range(20):
        dealt = [deck.deal(other_than=last), deck.deal(), deck.deal()]
        assert dealt[0] != last
        assert sorted(dealt) == [0, 1, 2]
        last = dealt[-1]


def test_one_favoured_fragment_alone_makes_no_pair_and_so_none_is_favoured() -> None:
    favoured = np.arange(4) == 2
    assert len(random_pairs(4, 6, np.random.default_rng(0), favoured, 1.0)) == 6
    favoured[0] = True
    assert random_pairs(4, 6, np.random.default_rng(0), favoured, 1.0).tolist() in ([[0, 2]], [[2, 0]])
