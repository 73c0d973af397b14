import dataclasses
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import Fragments
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import PRESETS, TEACHERS, Oracle, SimulatedTeacher, Stochastic
from tests.made_up import some_fragments
from tests.teachers.pairs import pairs_of


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_the_oracle_prefers_the_larger_true_return_and_calls_exact_ties_equal() -> None:
    answers = Oracle().answer(pairs_of([2.0, -1e-9, 0.0, 1e-9, -50.0]), _rng())
    assert answers.tolist() == [1.0, 0.0, 0.5, 1.0, 0.0]
    assert answers.dtype == np.float32


@pytest.mark.parametrize("rationality", [0.7, 3.0])
@pytest.mark.parametrize("difference", [-1.0, -0.2, 0.0, 0.5, 2.0])
def test_the_stochastic_teacher_prefers_left_as_often_as_the_sigmoid_says(
    rationality: float, difference: float
) -> None:
    n = 20_000
    answers = Stochastic(rationality).answer(pairs_of([difference] * n), _rng())
    assert set(answers.tolist()) <= {0.0, 1.0}
    assert answers.dtype == np.float32
    chance = 1 / (1 + np.exp(-rationality * difference))
    assert abs(answers.mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / n)


@pytest.mark.parametrize("rationality", [1e9, float("inf")])
def test_large_rationality_is_the_oracle_except_for_ties_which_are_a_coin(rationality: float) -> None:
    with np.errstate(all="raise", under="ignore"):
        answers = Stochastic(rationality).answer(pairs_of([1.0] * 50 + [-1.0] * 50 + [0.0] * 1000), _rng())
    assert (answers[:50] == 1).all()
    assert (answers[50:100] == 0).all()
    assert 400 < answers[100:].sum() < 600


def test_the_presets_are_b_prefs() -> None:
    made = {name: TEACHERS.make(name, settings=PreferenceSettings()) for name in PRESETS}
    found = {
        name: (of.rationality, of.myopia, of.mistake, of.skip, of.equal, of.soft)
        for name, of in made.items()
        if isinstance(of, SimulatedTeacher)
    }
    assert found == {
        "oracle": (None, 1.0, 0.0, 0.0, 0.0, False),
        "stochastic": (1.0, 1.0, 0.0, 0.0, 0.0, False),
        "mistake": (None, 1.0, 0.1, 0.0, 0.0, False),
        "skip": (None, 1.0, 0.0, 0.1, 0.0, False),
        "equal": (None, 1.0, 0.0, 0.0, 0.1, False),
        "myopic": (None, 0.9, 0.0, 0.0, 0.0, False),
        "soft": (1.0, 1.0, 0.0, 0.0, 0.0, True),
    }
    assert all(of.name == name for name, of in made.items())


def test_joined_presets_are_one_teacher() -> None:
    settings = PreferenceSettings(teacher="stochastic+mistake+skip", rationality=2.5, mistake=0.3, skip=0.4)
    joined = TEACHERS.make(settings.teacher, settings=settings)
    assert isinstance(joined, SimulatedTeacher)
    assert (joined.name, joined.rationality, joined.mistake, joined.skip) == (settings.teacher, 2.5, 0.3, 0.4)
    with pytest.raises(SettingError, match=r"teacher is 'stochastic\+psychic'"):
        TEACHERS.make("stochastic+psychic", settings=settings)


@pytest.mark.parametrize(
    ("name", "value"), [("rationality", -1.0), ("mistake", 1.1), ("skip", -0.1), ("equal", -0.1), ("myopia", 0.0)]
)
def test_parameters_out_of_range_are_refused(name: str, value: float) -> None:
    parameter: dict[str, Any] = {name: value}
    for make in (SimulatedTeacher, PreferenceSettings):
        with pytest.raises(SettingError, match=rf"preferences\.{name} is {value}"):
            make(**parameter)


def _rewards(left: list[list[float]], right: list[list[float]], recent: float | None = None) -> Pairs:
    """Pairs with these true rewards per step."""
    n = len(left)
    clips = some_fragments(2 * n, len(left[0]))
    clips = dataclasses.replace(clips, rewards=np.array([*left, *right]))
    return Pairs(clips[:n], clips[n:], tuple(str(i) for i in range(n)), recent_return=recent)


def test_mistakes_reverse_their_share_of_the_answers_but_no_ties() -> None:
    n = 20_000
    answers = SimulatedTeacher(mistake=0.2).answer(pairs_of([1.0] * n + [0.0] * 100), _rng())
    assert set(answers[:n].tolist()) == {0.0, 1.0}
    assert abs((answers[:n] == 0).mean() - 0.2) < 4 * np.sqrt(0.2 * 0.8 / n)
    assert (answers[n:] == 0.5).all()


def test_the_mistakes_of_a_stochastic_teacher_come_on_top() -> None:
    n, p = 20_000, 1 / (1 + np.exp(-0.5))
    answers = SimulatedTeacher(rationality=0.5, mistake=0.3).answer(pairs_of([1.0] * n), _rng())
    chance = 0.7 * p + 0.3 * (1 - p)
    assert abs(answers.mean() - chance) < 4 * np.sqrt(chance * (1 - chance) / n)
    soft = SimulatedTeacher(rationality=0.5, mistake=0.3, soft=True).answer(pairs_of([1.0, -1.0, 0.0]), _rng())
    assert np.allclose(soft, [chance, 1 - chance, 0.5])


def test_a_myopic_teacher_weighs_the_last_step_most() -> None:
    teacher = SimulatedTeacher(myopia=0.5)
    # 1 two steps before the end is worth 0.25, so 0.3 at the end beats it and 0.2 does not.
    pairs = _rewards([[1.0, 0.0, 0.0], [1.0, 0.0, 0.0]], [[0.0, 0.0, 0.3], [0.0, 0.0, 0.2]])
    assert teacher.answer(pairs, _rng()).tolist() == [0.0, 1.0]
    stochastic = SimulatedTeacher(myopia=0.5, rationality=2.0, soft=True)
    assert np.allclose(stochastic.answer(pairs, _rng()), 1 / (1 + np.exp(-2.0 * np.array([-0.05, 0.05]))))


@pytest.mark.parametrize(("recent", "skip", "threshold"), [(10.0, 0.3, 3.0), (-10.0, 0.3, -17.0), (-10.0, 1.0, -10.0)])
def test_pairs_without_a_fragment_above_the_threshold_are_skipped(recent: float, skip: float, threshold: float) -> None:
    above, below = threshold + 0.01, threshold - 0.01
    pairs = _rewards([[above], [below], [below], [threshold]], [[below], [above], [below], [below]], recent)
    answers = SimulatedTeacher(skip=skip).answer(pairs, _rng())
    assert np.isnan(answers).tolist() == [False, False, True, True]
    assert answers[:2].tolist() == [1.0, 0.0]


def test_close_returns_are_equal_whatever_the_teacher_drew() -> None:
    teacher = SimulatedTeacher(equal=0.1, rationality=0.0, mistake=0.5)
    for recent in (20.0, -20.0):
        pairs = _rewards([[1.9]] * 50 + [[2.1]] * 50, [[0.0]] * 100, recent)
        answers = teacher.answer(pairs, _rng())
        assert (answers[:50] == 0.5).all()
        assert set(answers[50:].tolist()) == {0.0, 1.0}


def test_the_shares_are_applied_once() -> None:
    # B-Pref's PEBBLE multiplies the mean return by its share twice: the thresholds would be 1 instead of 10.
    pairs = _rewards([[109.0], [9.0]], [[100.0], [5.0]], 100.0)
    assert SimulatedTeacher(equal=0.1).answer(pairs, _rng())[0] == 0.5
    assert np.isnan(SimulatedTeacher(skip=0.1).answer(pairs, _rng())[1])


def test_thresholds_follow_the_agents_return_and_without_it_that_of_the_pairs() -> None:
    teacher = SimulatedTeacher(equal=0.1)
    pair = [[12.0]], [[8.0]]
    assert [float(teacher.answer(_rewards(*pair, recent), _rng())[0]) for recent in (39.0, 41.0, None)] == [
        1.0,
        0.5,
        1.0,
    ]
    near = _rewards([[10.5]], [[10.0]])
    assert teacher.answer(near, _rng())[0] == 0.5
    # Where nothing is ever reached, nothing is skipped: the threshold would have no meaning.
    assert not np.isnan(SimulatedTeacher(skip=0.5).answer(_rewards([[0.0]], [[0.0]], 0.0), _rng())).any()


def rounded_ties(length: int, step: float, goal: float) -> tuple[Pairs, int]:
    """All pairs of clips that reach the goal once each, at another step: their returns are equal."""
    rewards = np.full((length, length), step)
    rewards[np.arange(length), np.arange(length)] = goal
    n = length
    fragments = Fragments(
        np.zeros((n, length + 1, 1), np.float32), np.arange(n * length).reshape(n, length), rewards,
        np.zeros(n, bool), np.zeros(n, np.int64), np.zeros(n, np.int64),
    )  # fmt: skip
    index = np.array([(i, j) for i in range(n) for j in range(n) if i != j])
    return Pairs.of(fragments, index), len(index)


@pytest.mark.parametrize(
    ("length", "step", "goal"), [(12, -0.1, 1.0), (25, -0.01, 0.7), (11, -0.1, 1.0), (40, 0.3, -1.1)]
)
def test_returns_that_differ_by_rounding_only_are_ties_for_every_teacher(length: int, step: float, goal: float) -> None:
    pairs, n = rounded_ties(length, step, goal)
    returns = pairs.left.returns()
    rng = np.random.default_rng(0)
    assert (Oracle().answer(pairs, rng) == 0.5).all()
    assert (SimulatedTeacher(mistake=0.3).answer(pairs, rng) == 0.5).all()
    assert (SimulatedTeacher(rationality=1e20, soft=True).answer(pairs, rng) == 0.5).all()
    drawn = SimulatedTeacher(rationality=1e20).answer(pairs, rng)
    assert abs(drawn.mean() - 0.5) < 4 * 0.5 / n**0.5  # B-Pref's stochastic teacher draws a side
    # The thresholds: every return is the mean itself, so it is not above it, and differs by no less than 0.
    every = SimulatedTeacher(skip=1.0).answer(pairs, rng)
    assert np.isnan(every).tolist() == [abs(returns.mean()) > 1e-9] * n  # a mean of 0 skips nothing
    assert (SimulatedTeacher(equal=0.5).answer(pairs, rng) == 0.5).all()


def test_a_return_at_a_threshold_is_on_one_side_of_it_whatever_the_rounding() -> None:
    # Returns 0.3 and 0.6; half of the mean 0.6 apart: not less than the threshold.
    rewards = np.array([[0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.3, 0.0, 0.0], [0.6, 0.0, 0.0], [0.1, 0.5, 0.0]])
    n = len(rewards)
    fragments = Fragments(
        np.zeros((n, 4, 1), np.float32), np.arange(3 * n).reshape(n, 3), rewards,
        np.zeros(n, bool), np.zeros(n, np.int64), np.zeros(n, np.int64),
    )  # fmt: skip
    pairs = Pairs.of(fragments, np.array([(1, 0), (1, 2), (3, 0), (3, 2), (4, 0), (4, 2)]))
    pairs = dataclasses.replace(pairs, recent_return=0.6)
    rng = np.random.default_rng(0)
    assert SimulatedTeacher(equal=0.5).answer(pairs, rng).tolist() == [1.0] * 6
    assert np.isnan(SimulatedTeacher(skip=1.0).answer(pairs, rng)).all()
