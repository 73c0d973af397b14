"""Alarms about wrong answers: each raised by answers that are wrong by construction, and silent where they are not."""

from typing import Any

import numpy as np
import pytest

from rlhf_ray.data.comparisons import Comparisons, side_of
from rlhf_ray.measure.error_rates import Drift, ErrorRate
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.runs.answer_alarms import drifting_answers, inverted_answers, no_information, two_camps, wrong_answers
from rlhf_ray.settings import RewardModelSettings
from rlhf_ray.store.answers import Presses
from tests.made_up import FORCES, VECTORS, some_comparisons
from tests.runs.test_health import chosen, watch

CHECKS = (no_information, inverted_answers, two_camps, drifting_answers, wrong_answers)
GOOD, INVERTED = ErrorRate(0.06, 0.02, 0.1, 150), ErrorRate(0.9, 0.8, 0.97, 50, 0.999)
GUESSES, MANY = ErrorRate(0.49, 0.37, 0.61, 60, 0.45), ErrorRate(0.27, 0.2, 0.34, 150)


def fitted(rates: dict[str, list[float]], seed: int = 0) -> dict[str, Any]:
    """The metrics of the second fit to comparisons of annotators in turn, with the share of each one's answers that are wrong."""
    n = max(len(of) for of in rates.values()) * len(rates)
    right = some_comparisons(n, 8, seed=seed)
    who = tuple(list(rates)[i % len(rates)] for i in range(n))
    wrong = np.stack([np.diff(np.floor(np.cumsum([0.0, *of]) + 1e-9)) > 0 for of in rates.values()], 1).ravel()
    given = np.where(wrong, 1 - right.preferences, right.preferences).astype(np.float32)
    sides = tuple(map(side_of, given, np.random.default_rng(seed + 1).random(n) < 0.5))
    trainer = RewardTrainer(RewardModelSettings(weight_decay=0.01), VECTORS, FORCES, held_out_share=0.1, seed=seed)
    trainer.comparisons.add(Comparisons(right.pairs, given, who, sides))
    trainer.fit(300)
    return trainer.fit(30).metrics()


def raised(row: dict[str, Any]) -> dict[str, str]:
    """The messages of the alarms about answers, by name."""
    found = {alarm.name: alarm.message for check in CHECKS if (alarm := check([row])) is not None}
    assert {alarm.name for _, alarm in watch([row])} >= found.keys()
    return found


@pytest.mark.slow
def test_annotators_who_err_now_and_then_raise_nothing() -> None:
    for seed in range(3):
        assert raised(fitted({"ada": [0.05] * 80, "ben": [0.1] * 80, "cora": [0.0] * 80}, seed)) == {}


@pytest.mark.slow
def test_who_presses_the_keys_the_wrong_way_round_or_guesses_is_named() -> None:
    found = raised(fitted({"ada": [0.05] * 160, "ben": [0.95] * 160, "cora": [0.0] * 160, "dora": [0.5] * 160}))
    assert found.keys() == {"inverted_answers", "no_information"}
    assert "of ben's answers look wrong" in found["inverted_answers"]
    assert "as if inverted" in found["inverted_answers"]
    assert "of dora's answers look wrong" in found["no_information"]
    assert not any(name in message for name in ("ada", "cora") for message in found.values())


def test_whose_newest_answers_are_worse_is_named() -> None:
    found = raised(fitted({"ada": [0.03] * 150, "ben": [0.03] * 90 + [0.7] * 60, "cora": [0.0] * 150}))
    assert found.keys() == {"drifting_answers"}
    assert "of ben's newest answers look wrong" in found["drifting_answers"]
    assert "ada" not in found["drifting_answers"]


@pytest.mark.slow
def test_many_wrong_answers_of_everyone_are_told_with_what_helps() -> None:
    assert (
        raised(fitted({"ada": [0.3] * 300, "ben": [0.3] * 300})) == {}
    )  # it may be the reward model: 3 to 37 % are said
    found = raised(fitted({"ada": [0.3] * 600, "ben": [0.3] * 600}))
    assert found.keys() == {"wrong_answers"}
    assert found["wrong_answers"].startswith("About ")
    alarm = wrong_answers([MANY.metrics()])
    assert alarm.message == "About 27 % of the answers look wrong (20–34 %)."
    assert "preferences.comparisons" in alarm.remedy


def test_an_alarm_names_the_annotator_the_figure_and_the_remedy() -> None:
    row = GOOD.metrics() | GOOD.metrics("ada") | INVERTED.metrics("ben") | GUESSES.metrics("cora")
    inverted, guessed = inverted_answers([row]), no_information([row])
    assert inverted.message == "About 90 % of ben's answers look wrong (80–97 %), as if inverted."
    assert "`rlhf-ray store weigh RUN ben 0`" in inverted.remedy
    assert guessed.message == "About 49 % of cora's answers look wrong (37–61 %), as if guessed."
    assert "`rlhf-ray store weigh RUN cora 0`" in guessed.remedy


@pytest.mark.parametrize("wrong", [GUESSES, INVERTED])
def test_whose_wrong_answers_have_a_name_raise_no_alarm_about_all(wrong: ErrorRate) -> None:
    assert len(raised(MANY.metrics() | wrong.metrics("ben") | GOOD.metrics("ada"))) == 1
    assert (
        raised(MANY.metrics() | GUESSES.metrics("ben") | chosen(ben=Presses(50, 0))) == {}
    )  # `one_sided_answers` says it


def test_two_camps_are_told_and_neither_is_accused() -> None:
    found = raised(fitted({"ada": [0.05] * 160, "ben": [0.95] * 160}))
    assert found.keys() == {"two_camps"}
    assert ", with 50 % of the answers, and the others prefer opposite things." in found["two_camps"]


def test_too_few_answers_raise_nothing() -> None:
    few = ErrorRate(0.45, 0.1, 0.85, 12, 0.4)
    assert raised(few.metrics() | few.metrics("ada")) == {}
    assert raised({"error_rate/ada": 0.5}) == {}  # of an earlier version


def test_a_small_or_uncertain_rise_is_no_drift() -> None:
    def row(newest: ErrorRate, rose: float) -> dict[str, Any]:
        return GOOD.metrics() | Drift(GOOD, newest, rose).metrics("ada")

    alarm = drifting_answers([row(MANY, 0.999)])
    assert alarm.message == (
        "About 27 % of ada's newest answers look wrong (20–34 %), and of the first ones about 6 % (2–10 %)."
    )
    assert drifting_answers([row(MANY, 0.9)]) is None
    assert drifting_answers([row(MANY, 0.999), GOOD.metrics()]) is None  # the newest fit says nothing of it
    assert drifting_answers([row(MANY, 0.999), {"loss": 1.0}]) is not None
