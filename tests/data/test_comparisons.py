import hashlib
from fractions import Fraction

import numpy as np
import pytest

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import (
    Comparisons,
    Pairs,
    differences,
    pair_id,
    rounding,
    settled,
    spread_of,
    stable_uniform,
)
from tests.made_up import same_fragments, some_comparisons, some_fragments


def test_hashes_do_not_change_between_releases():
    # What is held out hangs on them: another number here moves comparisons of existing stores between train and held-out.
    for ids, numbers in ((["a", "b"], [0.46069269593730366, 0.12877751566986245]), (["b"], [0.12877751566986245])):
        assert stable_uniform(ids, "held out") == pytest.approx(numbers, abs=1e-12)
    assert stable_uniform(["a"], "other") != stable_uniform(["a"], "held out")
    assert pair_id("a", "b") == hashlib.sha256(b"a|b").hexdigest()[:32]


def test_pairs_are_picked_by_position_and_named_by_content():
    clips = some_fragments(4)
    names = clips.ids()
    pairs = Pairs.of(clips, np.array([[0, 3], [2, 1]]), reward_version=7)
    assert same_fragments(pairs.left, clips[np.array([0, 2])])
    assert same_fragments(pairs.right, clips[np.array([3, 1])])
    assert pairs.ids == (pair_id(names[0], names[3]), pair_id(names[2], names[1]))
    assert pairs.reward_version == 7
    assert len(pairs) == 2
    # The same question from a pool in another order has the same id.
    assert Pairs.of(clips[::-1], np.array([[3, 0], [1, 2]])).ids == pairs.ids


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_preferences_are_probabilities_one_for_each_pair(wrong):
    pairs = some_comparisons(2).pairs
    with pytest.raises(ValueError, match="between 0 and 1"):
        Comparisons(pairs, np.array([0.5, wrong], dtype=np.float32))
    with pytest.raises(ValueError, match="2 pairs need 2 preferences"):
        Comparisons(pairs, np.ones(1, dtype=np.float32))


def test_indexing_keeps_fragments_ids_and_answers_together():
    whole = some_comparisons(6, reward_version=2)
    for index in (np.array([4, 0]), np.array([True, False, False, True, False, False]), slice(1, 6, 2)):
        part, kept = whole[index], np.arange(6)[index]
        sides = zip(part.pairs.left.ids(), part.pairs.right.ids(), strict=True)
        assert part.pairs.ids == tuple(whole.pairs.ids[i] for i in kept) == tuple(pair_id(*side) for side in sides)
        assert np.array_equal(part.preferences, whole.preferences[kept])
        assert part.pairs.reward_version == 2


def test_annotators_and_their_sides_go_with_their_comparisons_and_ties_are_counted():
    pairs, said = some_comparisons(3).pairs, np.array([0.5, 1, 0.5], dtype=np.float32)
    named = Comparisons(pairs, said, ("anna", "bert", "anna"), ("equal", "equal", "right"))
    part = named[np.array([2, 1])]
    assert (part.annotators, part.ties, part.chosen) == (("anna", "bert"), 1, ["right", "equal"])
    assert named.keys == list(zip(pairs.ids, named.annotators, strict=True))
    assert Comparisons(pairs, said).ties == 2
    assert Comparisons(pairs, said).keys == [(name, "") for name in pairs.ids]
    with pytest.raises(ValueError, match="3 pairs need 3 annotators, or none; got 2"):
        Comparisons(pairs, said, ("anna", "bert"))


def exact(rewards: FloatArray) -> list[Fraction]:
    """The returns without rounding, of rewards that are meant to be decimal numbers."""
    return [sum((Fraction(str(value)) for value in row), Fraction()) for row in rewards.tolist()]


def shuffled(values: list[float], rows: int, seed: int = 0) -> FloatArray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(values) for _ in range(rows)])


@pytest.mark.parametrize(
    "values",
    [
        [-0.1] * 10 + [1.0],
        [0.1, 0.2, -0.3, 0.7] * 12,
        [1e6, 0.1, -1e6, 0.3],
        [1 / 3, 2 / 3, 1e-9, -5.7] * 250,
        [-0.01] * 100 + [1.0],
    ],
)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_same_rewards_in_another_order_are_a_tie(values, dtype):
    left, right = (shuffled(values, 40, seed).astype(dtype) for seed in (1, 2))
    assert not differences(left, right).any()
    assert len(set(settled(np.concatenate([left, right])).tolist())) == 1


def test_other_rewards_of_the_same_sum_are_a_tie():
    left, right = np.array([[0.3, 0.0, 0.0], [0.0, 0.0, 1.0]]), np.array([[0.1, 0.1, 0.1], [0.7, 0.2, 0.1]])
    for dtype in (np.float64, np.float32):  # float32 numbers that a store returns as float64 too
        given = [np.asarray(side, dtype) for side in (left, right)]
        assert not differences(*given).any()
        assert not differences(*(side.astype(np.float64) for side in given)).any()


def test_discounts_that_make_two_returns_equal_are_a_tie():
    weights = 0.9 ** np.arange(3)
    left, right = np.array([[0.9, 0.0, 0.0]]), np.array([[0.0, 1.0, 0.0]])
    assert not differences(left, right, weights).any()
    assert differences(left, right).round(9).tolist() == [-0.1]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_different_returns_is_that_of_exact_arithmetic(seed):
    rng = np.random.default_rng(seed)
    left, right = (rng.choice([-0.1, 0.25, 0.7, -3.3, 1e-6, 12.0], (500, 30)) for _ in range(2))
    right[:50] = rng.permuted(left[:50], axis=1)
    expected = [int(np.sign(a - b)) for a, b in zip(exact(left), exact(right), strict=True)]
    assert np.sign(differences(left, right)).astype(int).tolist() == expected
    errors = [abs(float(Fraction(float(got)) - want)) for got, want in zip(left.sum(1), exact(left), strict=True)]
    assert (np.array(errors) <= rounding(left)).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_whole_numbers_are_exact_however_large(dtype):
    left = np.full((1, 100), 65_536, dtype)
    right = left.copy()
    right[0, 3] += 1
    assert differences(left, right).tolist() == [-1.0]


def test_small_differences_of_large_returns_count():
    left = np.full((1, 50), 0.1)
    right = left + np.eye(1, 50) * 1e-9
    assert differences(left, right)[0] == pytest.approx(-1e-9)
    assert np.isnan(differences(left * np.nan, right)).all()
    assert settled(np.zeros((2, 3))).tolist() == [0.0, 0.0]
    assert settled(np.empty((0, 3))).shape == (0,)


def test_the_spread_is_a_quantile_of_the_distances_of_random_pairs():
    rng = np.random.default_rng(0)
    for count in (2, 3, 100, 256):
        returns = rng.normal(5.0, 3.0, count)
        apart = [abs(one - other) for i, one in enumerate(returns) for other in returns[:i]]
        assert spread_of(returns) == pytest.approx(np.quantile(apart, 0.95))
    assert spread_of(np.array([])) == spread_of(np.array([3.0])) == spread_of(np.full(1000, 3.0)) == 0.0
    assert np.isnan(spread_of(np.array([1.0, np.nan])))
    # Many: a normal distribution's distances are normal with twice the variance; 1.96 of it has 95 % within.
    many = rng.normal(5.0, 3.0, 50_000)
    assert spread_of(many) == pytest.approx(1.96 * 3.0 * np.sqrt(2), rel=0.02)
    assert spread_of(many) == spread_of(many[::-1])
