"""Annotators who err differently: each parameter against its formula."""

import dataclasses

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import PreferenceSettings
from rlhf_ray.teachers import TEACHERS, Annotator, Answers, Oracle, Population, SimulatedTeacher
from tests.made_up import IMAGES, some_fragments
from tests.teachers.pairs import near

N = 10_000


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _left_better(n: int = N, version: int = 0) -> Pairs:
    """Copies of a pair whose left fragment has the larger true return."""
    clips = some_fragments(2, 3)
    versions = np.array([version, -1])
    clips = dataclasses.replace(clips, rewards=np.array([[1.0] * 3, [0.0] * 3]), policy_versions=versions)
    index = np.zeros(n, np.int64)
    return Pairs(clips[index], clips[index + 1], tuple(str(i) for i in range(n)))


@pytest.mark.parametrize(("version", "rate"), [(-1, 0.0), (0, 0.0), (5, 0.1), (24, 0.48), (26, 0.5), (200, 0.5)])
def test_drift_adds_errors_with_the_newer_policy_version(version: int, rate: float) -> None:
    annotator = Annotator(SimulatedTeacher("ada"), drift=0.02)
    pairs = _left_better(version=version)
    assert np.allclose(annotator.error_rates(pairs), rate)
    assert near(float((annotator.answer(pairs, _rng()) == 0).mean()), rate, N)


def test_a_tired_annotator_guesses_whatever_else_they_err_in() -> None:
    pairs = _left_better(version=1000)
    for teacher, alike in ((SimulatedTeacher("ada", mistake=0.2), 0.0), (SimulatedTeacher("ada"), 0.4)):
        annotator = Annotator(teacher, drift=0.02, alike=alike)
        assert near(float((annotator.answer(pairs, _rng()) == 0).mean()), 0.5, N)
    # Drift takes nothing away from errors that are beyond guessing already.
    perverse = Annotator(SimulatedTeacher("ada"), drift=0.02, alike=0.8, feature=lambda of: np.zeros((len(of), 1)))
    assert np.allclose(perverse.error_rates(pairs), 0.8)


def test_errors_grow_the_more_alike_the_fragments_look() -> None:
    pairs = _left_better()
    apart = float(np.sqrt(np.mean((pairs.left.observations[0] - pairs.right.observations[0]) ** 2)))
    annotator = Annotator(SimulatedTeacher("ada"), alike=0.5, scale=2.0)
    assert near(float((annotator.answer(pairs, _rng()) == 0).mean()), 0.5 * np.exp(-apart / 2.0), N)
    same = dataclasses.replace(pairs, right=dataclasses.replace(pairs.left, rewards=pairs.right.rewards))
    assert near(float((annotator.answer(same, _rng()) == 0).mean()), 0.5, N)
    # A feature of one's own: what it does not see looks alike.
    lengthwise = Annotator(SimulatedTeacher("ada"), alike=0.5, feature=lambda of: np.zeros((len(of), 1)))
    assert np.allclose(lengthwise.error_rates(pairs), 0.5)


def test_images_differ_by_at_most_1() -> None:
    clips = some_fragments(2, 2, observations=IMAGES)
    black, white = (np.full_like(clips.observations[:1], value) for value in (0, 255))
    pairs = Pairs(
        dataclasses.replace(clips[:1], observations=black), dataclasses.replace(clips[1:], observations=white), ("a",)
    )
    assert np.allclose(Annotator(SimulatedTeacher("ada"), alike=0.5).error_rates(pairs), 0.5 * np.exp(-1.0))


@pytest.mark.parametrize("bias", [-0.4, 0.4])
def test_side_bias_comes_on_top_of_everything_but_ties_and_skips(bias: float) -> None:
    annotator = Annotator(SimulatedTeacher("ada", mistake=0.2), side_bias=bias)
    chance = 0.6 * 0.8 + 0.4 * (bias > 0)
    assert near(float(annotator.answer(_left_better(), _rng()).mean()), chance, N)
    tie = dataclasses.replace(_left_better(50), right=_left_better(50).left)
    assert (annotator.answer(tie, _rng()) == 0.5).all()
    skips = Annotator(SimulatedTeacher("ada", skip=1.0), side_bias=bias)
    low = dataclasses.replace(_left_better(50), recent_return=50.0)
    assert np.isnan(skips.answer(low, _rng())).all()


def test_each_pair_goes_to_one_annotator_in_their_shares_who_answers_in_their_own_way() -> None:
    always, never = SimulatedTeacher("right", mistake=1.0), SimulatedTeacher("left")
    answers = Population([always, never], shares=[3.0, 1.0]).answer(_left_better(), _rng())
    names = np.array(answers.annotators)
    assert near(float((names == "right").mean()), 0.75, N)
    assert np.array_equal(answers.preferences, (names == "left").astype(np.float32))


def test_the_same_pairs_and_generator_give_the_same_answers() -> None:
    population = TEACHERS.make("population", settings=PreferenceSettings(rationality=0.1))
    one, again = (population.answer(_left_better(500), _rng()) for _ in range(2))
    assert isinstance(one, Answers)
    assert isinstance(again, Answers)
    assert one.annotators == again.annotators
    assert np.array_equal(one.preferences, again.preferences)
    assert len(set(one.annotators)) == 6


def test_what_cannot_be_a_population_is_refused() -> None:
    with pytest.raises(SettingError, match="different names"):
        Population([Oracle(), Oracle()])
    with pytest.raises(SettingError, match="different names"):
        Population([])
    with pytest.raises(SettingError, match="2 annotators needs as many shares above 0"):
        Population([Oracle(), SimulatedTeacher()], shares=[1.0])
    for wrong in ({"side_bias": 1.5}, {"drift": -1.0}, {"alike": 2.0}, {"scale": 0.0}):
        with pytest.raises(SettingError, match=f"{next(iter(wrong))} of the annotator oracle is"):
            Annotator(Oracle(), **wrong)
