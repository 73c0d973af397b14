import dataclasses
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import TEACHERS, Oracle, Stochastic
from tests.made_up import some_fragments


def _pairs(differences: list[float]) -> Pairs:
    """Pairs whose true returns differ by ``differences``, left minus right."""
    n = len(differences)
    clips = some_fragments(2 * n, 2)
    rewards = np.zeros((2 * n, 2))
    rewards[:n, 1] = differences
    clips = dataclasses.replace(clips, rewards=rewards)
    return Pairs(clips[:n], clips[n:], tuple(str(i) for i in range(n)))


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_oracle_prefers_the_larger_true_return_and_calls_exact_ties_equal() -> None:
    answers = Oracle().answer(_pairs([2.0, -1e-9, 0.0, 1e-9, -50.0]), _rng())
    assert answers.tolist() == [1.0, 0.0, 0.5, 1.0, 0.0]
    assert answers.dtype == np.float32


@pytest.mark.parametrize("rationality", [0.7, 3.0])
@pytest.mark.parametrize("difference", [-1.0, -0.2, 0.0, 0.5, 2.0])
def test_the_stochastic_teacher_prefers_left_as_often_as_the_sigmoid_says(
    rationality: float, difference: float
) -> None:
    n = 20_000
    answers = Stochastic(rationality).answer(_pairs([difference] * n), _rng())
    assert set(answers.tolist()) <= {0.0, 1.0}
    assert answers.dtype == np.float32
    chance = 1 / (1 + np.exp(-rationality * difference))
    assert abs(answers.mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / n)


def test_rationality_0_answers_at_random_however_clear_the_question() -> None:
    answers = Stochastic(0.0).answer(_pairs([1e6] * 20_000), _rng())
    assert abs(answers.mean() - 0.5) < 4 * 0.5 / np.sqrt(20_000)


@pytest.mark.parametrize("rationality", [1e9, float("inf")])
def test_large_rationality_is_the_oracle_except_for_ties_which_are_a_coin(rationality: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        answers = Stochastic(rationality).answer(_pairs([1.0] * 50 + [-1.0] * 50 + [0.0] * 1000), _rng())
    assert (answers[:50] == 1).all()
    assert (answers[50:100] == 0).all()
    assert 400 < answers[100:].sum() < 600


def test_the_stochastic_teacher_answers_the_same_with_the_same_generator() -> None:
    pairs = _pairs([0.0] * 64)
    teacher = Stochastic(1.0)
    assert np.array_equal(teacher.answer(pairs, _rng()), teacher.answer(pairs, _rng()))
    assert not np.array_equal(teacher.answer(pairs, _rng()), teacher.answer(pairs, np.random.default_rng(1)))


@pytest.mark.parametrize("teacher", [Oracle(), Stochastic(1.0)])
def test_a_clip_without_true_rewards_is_an_error(teacher: Any) -> None:
    with pytest.raises(ValueError, match="true reward"):
        teacher.answer(_pairs([1.0, float("nan")]), _rng())


def test_teachers_are_made_by_name() -> None:
    assert isinstance(TEACHERS.make("oracle", settings=PreferenceSettings()), Oracle)
    stochastic = TEACHERS.make("stochastic", settings=PreferenceSettings(rationality=2.5))
    assert isinstance(stochastic, Stochastic)
    assert stochastic.rationality == 2.5


def test_an_unknown_teacher_is_named_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"preferences\.teacher is 'psychic'.*oracle.*stochastic.*module:Name"):
        TEACHERS.make("psychic", settings=PreferenceSettings())


def test_negative_rationality_is_refused() -> None:
    with pytest.raises(ValueError, match=r"preferences\.rationality is -1"):
        Stochastic(-1.0)
