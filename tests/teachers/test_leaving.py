"""Annotators who leave, and where their pairs go."""

import dataclasses
from collections import Counter

import numpy as np
import pytest

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.teachers import NOBODY, Answers, HumanLike, Inverted, Leaving, Oracle, Population, Renamed
from tests.teachers.pairs import near, pairs_of


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


class Counting:
    """Answers left, and counts the pairs that it was asked about. Every third is skipped with ``skips``."""

    def __init__(self, name: str, *, skips: bool = False):
        self.name, self.asked, self.skips = name, 0, skips

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> FloatArray:
        numbers = self.asked + np.arange(len(pairs))
        self.asked += len(pairs)
        return np.where(self.skips & (numbers % 3 == 0), np.nan, 1.0).astype(np.float32)


def test_who_has_left_is_asked_nothing_and_skips_are_no_answers() -> None:
    ada = Counting("ada", skips=True)
    said = Leaving(ada, after=10).answer(pairs_of([1.0] * 100), _rng())
    assert (~np.isnan(said.preferences)).sum() == 10
    assert ada.asked == 15  # ten answers and the skips between
    assert said.annotators == ("ada",) * 15 + (NOBODY,) * 85
    assert np.isnan(said.preferences[15:]).all()


@pytest.mark.parametrize(("before", "more"), [(0, 10), (7, 3), (10, 0), (99, 0)])
def test_answers_of_earlier_batches_count(before: int, more: int) -> None:
    pairs = dataclasses.replace(pairs_of([1.0] * 100), answered={"oracle": before, "bea": 50})
    said = Leaving(Oracle(), after=10).answer(pairs, _rng())
    assert sum(name == "oracle" for name in said.annotators) == more == (~np.isnan(said.preferences)).sum()


def test_who_stays_answers_as_if_they_could_not_leave() -> None:
    pairs = pairs_of([0.1] * 200)
    said = Leaving(HumanLike(), after=201).answer(pairs, _rng())
    assert np.array_equal(said.preferences, HumanLike().answer(pairs, _rng()), equal_nan=True)
    stays = Population([HumanLike("ada"), Inverted(name="bea")]).answer(pairs, _rng())
    could = Population([Leaving(HumanLike("ada"), 201), Inverted(name="bea")]).answer(pairs, _rng())
    assert stays.annotators == could.annotators
    assert np.array_equal(stays.preferences, could.preferences, equal_nan=True)


def test_the_others_get_the_pairs_in_their_shares() -> None:
    n = 20_000
    ada, bea, cleo = Counting("ada"), Counting("bea"), Counting("cleo")
    population = Population([Leaving(ada, 30), bea, cleo], shares=[5.0, 3.0, 1.0])
    said = population.answer(pairs_of([1.0] * n), _rng())
    counts = Counter(said.annotators)
    assert counts["ada"] == ada.asked == 30
    assert counts["bea"] + counts["cleo"] == n - 30 == bea.asked + cleo.asked
    assert near(counts["bea"] / (n - 30), 0.75, n - 30)
    assert not np.isnan(said.preferences).any()


def test_one_after_the_other_leaves_and_then_nobody_is_there() -> None:
    people = [Counting("ada"), Counting("bea"), Counting("cleo")]
    population = Population([Leaving(one, after) for one, after in zip(people, (10, 20, 30), strict=True)])
    said = population.answer(pairs_of([1.0] * 100), _rng())
    assert Counter(said.annotators) == {"ada": 10, "bea": 20, "cleo": 30, NOBODY: 40}
    assert [one.asked for one in people] == [10, 20, 30]
    assert np.array_equal(np.isnan(said.preferences), [name == NOBODY for name in said.annotators])
    later = dataclasses.replace(pairs_of([1.0] * 5), answered={"ada": 10, "bea": 20, "cleo": 29})
    assert Counter(population.answer(later, _rng()).annotators) == {"cleo": 1, NOBODY: 4}


def test_batches_that_hand_on_their_counts_are_one_count() -> None:
    population = Population([Leaving(Oracle(), 30), Renamed(Oracle(), "oracle_2")])
    given: Counter[str] = Counter()
    for number in range(20):
        pairs = dataclasses.replace(pairs_of([1.0] * 7), answered=dict(given))
        given.update(population.answer(pairs, _rng(number)).annotators)
    assert given == {"oracle": 30, "oracle_2": 110}


def test_an_annotator_of_ones_own_may_leave_as_well() -> None:
    class UntilTired:
        """Answers until the agent has learned something."""

        name = "own"

        def answer(self, pairs: Pairs, rng: np.random.Generator) -> Answers:
            late = pairs.left.policy_versions > 3
            names = tuple(NOBODY if gone else self.name for gone in late)
            return Answers(np.where(late, np.nan, 1.0).astype(np.float32), names)

    pairs = pairs_of([-1.0] * 100)
    pairs.left.policy_versions[:] = np.arange(100) % 8
    said = Population([UntilTired(), Oracle()]).answer(pairs, _rng())
    late = pairs.left.policy_versions > 3
    names = np.array(said.annotators)
    assert (names[late] == "oracle").all()
    assert set(names[~late]) == {"own", "oracle"}


def test_another_name_has_its_own_count() -> None:
    pairs = dataclasses.replace(pairs_of([1.0] * 10), answered={"oracle": 8, "second": 3})
    inside = Renamed(Leaving(Oracle(), after=8), "second").answer(pairs, _rng())
    outside = Leaving(Renamed(Oracle(), "second"), after=8).answer(pairs, _rng())
    assert isinstance(inside, Answers)
    assert inside.annotators == outside.annotators == ("second",) * 5 + (NOBODY,) * 5


def test_a_number_that_is_none_is_refused() -> None:
    with pytest.raises(SettingError, match="after of the annotator oracle is 0; it must be 1 or more"):
        Leaving(Oracle(), after=0)
