"""Populations named in the settings, and annotators who tire."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings import Experiment, PreferenceSettings, from_json, to_json
from rlhf_ray.teachers import TEACHERS, Annotator, Answers, HumanLike, Oracle, Population, SimulatedTeacher
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
