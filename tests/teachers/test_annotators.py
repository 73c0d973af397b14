"""Populations named in the settings, and annotators who tire."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import Experiment, PreferenceSettings, from_json, to_json
from rlhf_ray.teachers import TEACHERS, Annotator, Answers, HumanLike, Oracle, Population, SimulatedTeacher
from tests.made_up import IMAGES, some_fragments
from tests.teachers.pairs import near, pairs_of


def _made(*annotators: Any, **settings: Any) -> Population:
    chosen = PreferenceSettings(teacher="population", annotators=annotators, **settings)
    made = TEACHERS.make("population", settings=chosen)
    assert isinstance(made, Population)
    return made


def _answers(population: Population, n: int = 20_000) -> Answers:
    return population.answer(pairs_of([1.0] * n), np.random.default_rng(0))


def test_annotators_have_equal_shares_and_names_of_their_own() -> None:
    said = _answers(_made("oracle", "oracle", "oracle", "inverted"))
    names = np.array(said.annotators)
    for name in ("oracle", "oracle_2", "oracle_3", "inverted"):
        assert near(float((names == name).mean()), 0.25, len(names))
    assert np.array_equal(said.preferences, names != "inverted")


def test_a_share_is_relative_to_the_others() -> None:
    counts = Counter(_answers(_made("oracle=3", "guessing=0.5", "stochastic+mistake=0.5")).annotators)
    assert near(counts["oracle"] / 20_000, 0.75, 20_000)
    assert near(counts["stochastic+mistake"] / 20_000, 0.125, 20_000)


def test_whoever_is_to_leave_does() -> None:
    counts = Counter(_answers(_made("oracle=2@30", "oracle@10", "human_like")).annotators)
    assert (counts["oracle"], counts["oracle_2"]) == (30, 10)


def test_settings_of_teachers_hold_for_annotators() -> None:
    joined, human = _made("stochastic+mistake", "human_like", rationality=2.5, mistake=0.3).annotators
    assert isinstance(joined, SimulatedTeacher)
    assert (joined.rationality, joined.mistake) == (2.5, 0.3)
    assert isinstance(human, HumanLike)


def test_without_annotators_it_is_the_six() -> None:
    assert [one.name for one in _made().annotators] == [
        "careful", "hasty", "unsure", "left_handed", "tiring", "short_sighted",
    ]  # fmt: skip


class Mine:
    """An annotator of one's own."""

    name = "oracle"

    def answer(self, pairs: Pairs, rng: np.random.Generator) -> Any:
        return np.zeros(len(pairs), np.float32)


def test_an_annotator_of_ones_own_by_name_or_as_an_object() -> None:
    name = f"{__name__}:Mine"
    for given in ("tests.teachers.test_annotators:Mine=2@7", Mine()):
        population = _made("oracle", given)
        assert [one.name for one in population.annotators] == ["oracle", "oracle_2"]
        said = _answers(population, 100)
        assert all(
            preference == (of == "oracle") for preference, of in zip(said.preferences, said.annotators, strict=True)
        )
    assert name.endswith("test_annotators:Mine")
    experiment = Experiment(preferences=PreferenceSettings(teacher="population", annotators=("a.b:C=2@7", "oracle=2")))
    assert experiment.own_names() == ["a.b:C"]  # which a file of somebody else's would import
    assert from_json(Experiment, to_json(experiment)) == experiment


WRONG = [
    (("human",), "'human'", "set preferences.human_share"),
    (("population=2",), "'population=2'", "name these"),
    (("oracle=0",), "'oracle=0'", "above 0"),
    (("oracle=-1",), "'oracle=-1'", "above 0"),
    (("oracle=inf",), "'oracle=inf'", "above 0"),
    (("oracle=nan",), "'oracle=nan'", "above 0"),
    (("oracle=two",), "'oracle=two'", "above 0"),
    (("oracle=",), "'oracle='", "above 0"),
    (("oracle@0",), "'oracle@0'", "1 or more"),
    (("oracle@2.5",), "'oracle@2.5'", "1 or more"),
    (("oracle@30=2",), "'oracle@30=2'", "as in oracle=2@30"),
    (("=2",), "'=2'", "as in oracle=2@30"),
    (("",), "''", "as in oracle=2@30"),
]


@pytest.mark.parametrize(("annotators", "value", "remedy"), WRONG)
def test_what_names_no_annotator_is_one_line(annotators: tuple[str, ...], value: str, remedy: str) -> None:
    with pytest.raises(SettingError) as caught:
        PreferenceSettings(teacher="population", annotators=annotators)
    said = str(caught.value)
    assert said.startswith(f"preferences.annotators is {value}; ")
    assert remedy in said
    assert "\n" not in said


def test_annotators_without_a_population_and_unknown_names_are_one_line() -> None:
    with pytest.raises(SettingError, match=r"annotators is \('oracle',\).*teacher=population, but it is 'skip'"):
        PreferenceSettings(teacher="skip", annotators=("oracle",))
    with pytest.raises(
        SettingError, match=r"preferences.annotators is 'orakle'; did you mean oracle.*human_like.*module:Name"
    ):
        _made("oracle", "orakle=2")
    with pytest.raises(SettingError, match=r"preferences.annotators is 'skip\+human', but 'human' can't be joined"):
        _made("skip+human")


@pytest.mark.parametrize(
    ("version", "side_bias", "side_drift", "left"),
    [(-1, 0.0, 0.02, 0.0), (10, 0.0, 0.02, 0.2), (10, 0.1, 0.02, 0.3), (80, 0.0, 0.02, 1.0), (80, 0.2, -0.02, 0.0)],
)
def test_a_tired_annotator_may_answer_what_is_on_the_left(
    version: int, side_bias: float, side_drift: float, left: float
) -> None:
    n = 10_000
    pairs = pairs_of([-1.0] * n)  # right is better
    pairs.left.policy_versions[:] = version
    pairs.right.policy_versions[:] = -1
    annotator = Annotator(Oracle(), side_bias=side_bias, side_drift=side_drift)
    answers = annotator.answer(pairs, np.random.default_rng(0))
    assert answers.dtype == np.float32
    assert near(float(answers.mean()), left, n)


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
