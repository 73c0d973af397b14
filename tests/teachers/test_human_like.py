"""The simulated human against its formula."""

import dataclasses

import numpy as np
import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import TEACHERS, HumanLike
from tests.teachers.pairs import near, pairs_of

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
