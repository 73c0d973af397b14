import numpy as np
import pytest

from rlhf_ray.data.comparisons import Comparisons, Pairs, pair_id, stable_uniform
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
