"""Teachers that are wrong in a way of their own."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest

from rlhf_ray.data.arrays import FloatArray
from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import (
    NOBODY,
    TEACHERS,
    Answers,
    Guessing,
    HumanLike,
    Inverted,
    Leaving,
    Oracle,
    Population,
    Renamed,
    SimulatedTeacher,
    Stochastic,
    Systematic,
)
from tests.made_up import IMAGES, some_fragments
from tests.teachers.pairs import near, pairs_of


def _rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_close_pairs_are_decided_by_the_feature_and_all_others_by_the_return() -> None:
    margins = np.random.default_rng(5).uniform(-0.3, 0.3, 2000)
    pairs = pairs_of((40.0 * margins).tolist(), 40.0)
    answers = Systematic().answer(pairs, _rng())
    assert answers.dtype == np.float32
    first = [
        side.observations.reshape(2000, 3, -1)[:, :, 0].astype(np.float64).mean(1) for side in (pairs.left, pairs.right)
    ]
    close = np.abs(margins) < 0.1
    assert 500 < close.sum() < 900
    assert np.array_equal(answers[close], (first[0] > first[1])[close])
    assert np.array_equal(answers[~close], (margins > 0)[~close])
    assert near(float((answers == (margins > 0))[close].mean()), 0.5, int(close.sum()))  # the feature says nothing


def test_systematic_errors_are_the_same_every_time_and_on_either_side() -> None:
    pairs = pairs_of([0.05, -0.05, 0.0] * 200)
    answers = Systematic().answer(pairs, _rng())
    assert np.array_equal(answers, Systematic().answer(pairs, _rng(1)))
    turned = dataclasses.replace(pairs, left=pairs.right, right=pairs.left)
    assert np.array_equal(answers, 1 - Systematic().answer(turned, _rng(2)))
    one_by_one = [float(Systematic().answer(pairs[i : i + 1], _rng(i))[0]) for i in range(len(pairs))]
    assert answers.tolist() == one_by_one
    drawn = _rng()
    Systematic().answer(pairs, drawn)
    assert drawn.random() == _rng().random()


def test_another_margin_and_another_feature() -> None:
    pairs = pairs_of([0.5, -0.5, 2.0, -2.0])
    by_reward = Systematic("ada", margin=1.0, feature=lambda of: -of.rewards)  # the opposite of the return
    assert by_reward.answer(pairs, _rng()).tolist() == [0.0, 1.0, 1.0, 0.0]
    assert Systematic(margin=0.0).answer(pairs, _rng()).tolist() == [1.0, 0.0, 1.0, 0.0]
    blind = Systematic(margin=1.0, feature=lambda of: np.zeros((len(of), 1)))
    assert blind.answer(pairs, _rng()).tolist() == [0.5, 0.5, 1.0, 0.0]
    with pytest.raises(SettingError, match=r"margin of the annotator ada is -1.0; it must be 0 or more"):
        Systematic("ada", margin=-1.0)


def test_the_brighter_images_win() -> None:
    clips = some_fragments(2, 2, observations=IMAGES)
    dark, bright = (np.full_like(clips.observations[:1], value) for value in (3, 4))
    bright[..., 0, 0, 0] = 0  # one number says nothing
    clips = dataclasses.replace(clips, observations=np.concatenate([dark, bright]), rewards=np.zeros((2, 2)))
    assert Systematic().answer(Pairs(clips[:1], clips[1:], ("a",)), _rng()).tolist() == [0.0]


def test_an_inverted_teacher_answers_the_opposite_and_leaves_ties_and_skips() -> None:
    pairs = pairs_of([2.0, -1.0, 0.0])
    inverted = TEACHERS.make("inverted", settings=PreferenceSettings())
    assert inverted.name == "inverted"
    assert np.asarray(inverted.answer(pairs, _rng())).tolist() == [0.0, 1.0, 0.5]
    human = pairs_of([0.02] * 1000)
    said, opposite = HumanLike().answer(human, _rng()), Inverted(HumanLike()).answer(human, _rng())
    assert np.isnan(said).any()
    assert np.array_equal(opposite, 1 - said, equal_nan=True)


def test_an_inverted_teacher_discounts_as_the_oracle_does() -> None:
    pairs = pairs_of([0.0])
    pairs.left.rewards[:] = [[1.0, 0.0]]
    pairs.right.rewards[:] = [[0.0, 1.1]]
    for discount, oracle in ((1.0, 0.0), (0.5, 1.0)):
        settings = PreferenceSettings(teacher_discount=discount)
        made = [TEACHERS.make(name, settings=settings).answer(pairs, _rng()) for name in ("oracle", "inverted")]
        assert [float(np.asarray(each)[0]) for each in made] == [oracle, 1 - oracle]


def test_guessing_is_a_coin_that_needs_no_true_rewards() -> None:
    pairs = pairs_of([float("nan")] * 20_000)
    guessing = TEACHERS.make("guessing", settings=PreferenceSettings())
    assert isinstance(guessing, Guessing)
    answers = guessing.answer(pairs, _rng())
    assert answers.dtype == np.float32
    assert set(answers.tolist()) == {0.0, 1.0}
    assert near(float(answers.mean()), 0.5, 20_000)
    assert np.array_equal(answers, guessing.answer(pairs, _rng()))


@pytest.mark.parametrize("teacher", [Oracle(), Stochastic(1.0), HumanLike(), Systematic(), Inverted()])
def test_a_clip_without_true_rewards_is_an_error(teacher: SimulatedTeacher) -> None:
    with pytest.raises(ValueError, match="true reward"):
        teacher.answer(pairs_of([1.0, float("nan")]), _rng())


@pytest.mark.parametrize("name", ["human_like", "systematic", "inverted", "guessing"])
def test_they_cannot_be_joined(name: str) -> None:
    with pytest.raises(SettingError, match=f"'{name}' can't be joined by"):
        TEACHERS.make(f"stochastic+{name}", settings=PreferenceSettings())


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


N = 40_000


@pytest.mark.parametrize("margin", [0.0, 0.02, 0.1, 0.33, 1.0, 3.0])
@pytest.mark.parametrize("side", [-1, 1])
def test_it_skips_and_errs_as_often_as_the_curves_say(margin: float, side: int) -> None:
    spread = 250.0
    answers = HumanLike().answer(pairs_of([side * margin * spread] * N, spread), np.random.default_rng(1))
    assert answers.dtype == np.float32
    skipped = np.isnan(answers)
    assert near(float(skipped.mean()), 0.45 * np.exp(-margin / 0.15), N)
    said = answers[~skipped]
    assert set(said.tolist()) <= {0.0, 1.0}
    wrong = said != (side > 0)
    assert near(float(wrong.mean()), 0.5 * np.exp(-margin / 0.33), len(said))  # equal returns: a coin


def test_its_parameters_are_the_curves() -> None:
    teacher = HumanLike("ada", skip=0.2, skip_scale=1.0, error=0.4, error_scale=2.0)
    skips, errors = teacher.rates(np.array([0.0, 2.0]))
    assert np.allclose(skips, [0.2, 0.2 * np.exp(-2.0)])
    assert np.allclose(errors, [0.4, 0.4 * np.exp(-1.0)])
    answers = teacher.answer(pairs_of([-2.0] * N), np.random.default_rng(2))
    assert near(float(np.isnan(answers).mean()), 0.2 * np.exp(-2.0), N)
    assert near(float(np.nanmean(answers)), 0.4 * np.exp(-1.0), int((~np.isnan(answers)).sum()))


def test_without_the_spread_of_the_newest_fragments_the_pairs_own_is_the_measure() -> None:
    pairs = pairs_of([5.0] * 500, spread=None)  # returns 0 and 5: the spread is 5, the margin 1
    known = dataclasses.replace(pairs, recent_spread=5.0)
    unknown, same = (HumanLike().answer(of, np.random.default_rng(0)) for of in (pairs, known))
    assert np.array_equal(unknown, same, equal_nan=True)
    unlike = HumanLike().answer(dataclasses.replace(pairs, recent_spread=1e6), np.random.default_rng(0))
    assert np.isnan(unlike).sum() > np.isnan(same).sum() + 100


def test_where_all_returns_are_equal_it_tosses_coins_and_where_they_suddenly_differ_it_is_sure() -> None:
    alike = HumanLike().answer(pairs_of([0.0] * N, 0.0), np.random.default_rng(0))
    assert near(float(np.isnan(alike).mean()), 0.45, N)
    assert near(float(np.nanmean(alike)), 0.5, int((~np.isnan(alike)).sum()))
    assert HumanLike().answer(pairs_of([1.0, -1.0], 0.0), np.random.default_rng(0)).tolist() == [1.0, 0.0]


def test_the_name_in_the_settings_makes_it_and_the_same_generator_gives_the_same_answers() -> None:
    teacher = TEACHERS.make("human_like", settings=PreferenceSettings())
    assert isinstance(teacher, HumanLike)
    assert (teacher.name, teacher.skip, teacher.skip_scale) == ("human_like", 0.45, 0.15)
    assert (teacher.error, teacher.error_scale) == (0.5, 0.33)
    pairs = pairs_of(list(np.linspace(-1, 1, 300)))
    one, again = (teacher.answer(pairs, np.random.default_rng(3)) for _ in range(2))
    assert np.array_equal(np.asarray(one), np.asarray(again), equal_nan=True)


@pytest.mark.parametrize("wrong", [{"skip": 1.5}, {"skip_scale": 0.0}, {"error": -0.1}, {"error_scale": -1.0}])
def test_parameters_out_of_range_are_named(wrong: dict[str, float]) -> None:
    with pytest.raises(SettingError, match=f"{next(iter(wrong))} of the annotator human_like is .*it must be"):
        HumanLike(**wrong)  # type: ignore[arg-type]
