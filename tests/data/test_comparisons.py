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

IDS = [f"{i:x}" for i in range(20_000)]


def test_stable_uniform_is_uniform() -> None:
    values = np.sort(stable_uniform(IDS, "salt"))
    assert values[0] >= 0
    assert values[-1] < 1
    steps = np.arange(len(values)) / len(values)
    assert np.abs(values - steps).max() < 1.63 / np.sqrt(len(values))  # Kolmogorov-Smirnov at 1 %


def test_stable_uniform_gives_an_id_its_number_in_any_order_and_company() -> None:
    values = stable_uniform(IDS, "salt")
    assert np.array_equal(stable_uniform(IDS[::-1], "salt"), values[::-1])
    assert stable_uniform(IDS[77:78], "salt")[0] == values[77]


def test_stable_uniform_draws_anew_for_each_salt() -> None:
    one, other = stable_uniform(IDS, "one"), stable_uniform(IDS, "other")
    assert abs(np.corrcoef(one, other)[0, 1]) < 0.03


def test_stable_uniform_does_not_change_between_releases() -> None:
    # What is held out hangs on it: another number here moves comparisons of existing stores between train and held-out.
    assert stable_uniform(["a", "b"], "held out") == pytest.approx(
        [0.46069269593730366, 0.12877751566986245], abs=1e-12
    )


def test_a_pair_id_names_the_two_fragments_in_their_order() -> None:
    assert pair_id("a", "b") == pair_id("a", "b")
    assert len({pair_id("a", "b"), pair_id("b", "a"), pair_id("a", "c"), pair_id("a", "a")}) == 4
    assert len(pair_id("a", "b")) == 32


def test_pairs_are_picked_by_position_and_named_by_content() -> None:
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


def test_no_pairs_are_pairs_too() -> None:
    assert len(Pairs.of(some_fragments(2), np.empty((0, 2), dtype=np.int64))) == 0


def test_preferences_have_to_be_as_many_as_pairs() -> None:
    pairs = some_comparisons(3).pairs
    with pytest.raises(ValueError, match="3 pairs need 3 preferences"):
        Comparisons(pairs, np.ones(2, dtype=np.float32))


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_preferences_are_probabilities(wrong: float) -> None:
    pairs = some_comparisons(2).pairs
    with pytest.raises(ValueError, match="between 0 and 1"):
        Comparisons(pairs, np.array([0.5, wrong], dtype=np.float32))


def test_indexing_keeps_fragments_ids_and_answers_together() -> None:
    whole = some_comparisons(6, reward_version=2)
    for index in (np.array([4, 0]), np.array([True, False, False, True, False, False]), slice(1, 6, 2)):
        part = whole[index]
        kept = np.arange(6)[index]
        assert part.pairs.ids == tuple(whole.pairs.ids[i] for i in kept)
        assert part.pairs.left.ids() == [whole.pairs.left.ids()[i] for i in kept]
        assert part.pairs.right.ids() == [whole.pairs.right.ids()[i] for i in kept]
        assert np.array_equal(part.preferences, whole.preferences[kept])
        assert part.pairs.reward_version == 2


def test_ties_are_counted() -> None:
    pairs = some_comparisons(4).pairs
    said = np.array([0.5, 1, 0, 0.5], dtype=np.float32)
    assert Comparisons(pairs, said).ties == 2
    chosen = Comparisons(pairs, said, sides=("equal", "equal", "right", "equal"))[np.arange(3)]
    assert (chosen.ties, chosen.chosen) == (2, ["equal", "equal", "right"])


def test_annotators_go_with_their_comparisons() -> None:
    some = some_comparisons(3)
    named = Comparisons(some.pairs, some.preferences, ("anna", "bert", "anna"))
    assert named[np.array([2, 1])].annotators == ("anna", "bert")
    assert named.keys == list(zip(some.pairs.ids, named.annotators, strict=True))
    assert some.keys == [(name, "") for name in some.pairs.ids]
    with pytest.raises(ValueError, match="3 pairs need 3 annotators, or none; got 2"):
        Comparisons(some.pairs, some.preferences, ("anna", "bert"))


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
def test_the_same_rewards_in_another_order_are_a_tie(values: list[float], dtype: type) -> None:
    left, right = (shuffled(values, 40, seed).astype(dtype) for seed in (1, 2))
    assert not differences(left, right).any()
    assert len(set(settled(np.concatenate([left, right])).tolist())) == 1


def test_other_rewards_of_the_same_sum_are_a_tie() -> None:
    left, right = np.array([[0.3, 0.0, 0.0], [0.0, 0.0, 1.0]]), np.array([[0.1, 0.1, 0.1], [0.7, 0.2, 0.1]])
    for dtype in (np.float64, np.float32):  # float32 numbers that a store returns as float64 too
        given = [np.asarray(side, dtype) for side in (left, right)]
        assert not differences(*given).any()
        assert not differences(*(side.astype(np.float64) for side in given)).any()


def test_discounts_that_make_two_returns_equal_are_a_tie() -> None:
    weights = 0.9 ** np.arange(3)
    left, right = np.array([[0.9, 0.0, 0.0]]), np.array([[0.0, 1.0, 0.0]])
    assert not differences(left, right, weights).any()
    assert differences(left, right).round(9).tolist() == [-0.1]


@pytest.mark.parametrize("seed", range(3))
def test_the_order_of_different_returns_is_that_of_exact_arithmetic(seed: int) -> None:
    rng = np.random.default_rng(seed)
    left, right = (rng.choice([-0.1, 0.25, 0.7, -3.3, 1e-6, 12.0], (500, 30)) for _ in range(2))
    right[:50] = rng.permuted(left[:50], axis=1)
    expected = [int(np.sign(a - b)) for a, b in zip(exact(left), exact(right), strict=True)]
    assert np.sign(differences(left, right)).astype(int).tolist() == expected
    errors = [abs(float(Fraction(float(got)) - want)) for got, want in zip(left.sum(1), exact(left), strict=True)]
    assert (np.array(errors) <= rounding(left)).all()


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_whole_numbers_are_exact_however_large(dtype: type) -> None:
    left = np.full((1, 100), 65_536, dtype)
    right = left.copy()
    right[0, 3] += 1
    assert differences(left, right).tolist() == [-1.0]


def test_small_differences_of_large_returns_count() -> None:
    left = np.full((1, 50), 0.1)
    right = left + np.eye(1, 50) * 1e-9
    assert differences(left, right)[0] == pytest.approx(-1e-9)
    assert np.isnan(differences(left * np.nan, right)).all()
    assert settled(np.zeros((2, 3))).tolist() == [0.0, 0.0]
    assert settled(np.empty((0, 3))).shape == (0,)


def test_the_spread_is_a_quantile_of_the_distances_of_random_pairs() -> None:
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
