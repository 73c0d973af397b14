"""The sweep report, on made-up trials."""

from __future__ import annotations

import re
from typing import Any

import pytest

from rlhf_ray.settings import Experiment, to_json
from rlhf_ray.study.section import Section
from rlhf_ray.sweeps import report
from rlhf_ray.sweeps.results import SweepOutcome
from tests.study.parts import check_of


def trial(name: str, objective: float | None, status: str = "finished", **settings: Any) -> dict[str, Any]:
    steps = 4000 if status == "finished" else 800
    return {
        "name": name,
        "status": status,
        "objective": objective,
        "env_steps": steps,
        "held_out_accuracy": 0.875,
        "comparisons": 40,
        "settings": {"ppo.gamma": 0.95, "fragments.length": 10, **settings},
        "curve": [] if objective is None else [[steps / 2, objective - 100], [steps, objective]],
        "error": "RuntimeError: <b>boom</b>" if status == "failed" else None,
    }


TRIALS = [
    trial("a", -120.5, **{"ppo.gamma": 0.98}),
    trial("b", -500.0, "stopped early", **{"fragments.length": 25}),
    trial("c", None, "failed"),
]
PLAN: dict[str, Any] = {
    "name": "pendulum",
    "experiment": to_json(Experiment()),
    "space": {"ppo.gamma": {"low": 0.9, "high": 0.99, "log": False}, "fragments.length": {"values": [10, 25]}},
    "trials": 3,
    "search": "random",
    "schedule": "asha",
    "metric": "return",
    "evaluation_episodes": 20,
}


def section_of(**changes: Any) -> Section:
    return report.section_of(SweepOutcome(**{"plan": PLAN, "trials": TRIALS, "complete": True} | changes))


def test_it_shows_the_best_and_all_trials() -> None:
    section = section_of()
    best = check_of(section, "true return of the best of 3 trials")
    assert (best.passed, best.value) == (None, -120.5)
    assert "--seeds 5" in best.remedy
    assert any("best.json" in note for note in section.notes)
    (table,) = section.tables
    assert table.columns[-2:] == ["ppo.gamma", "fragments.length"]
    assert [row[:3] for row in table.rows] == [["1, the best", "−120", 4000], ["2", "−500", 800], ["3", None, 800]]
    assert table.rows[2][4] == "failed: RuntimeError: <b>boom</b>"
    assert [row[-2:] for row in table.rows] == [["0.98", "10"], ["0.95", "25"], ["0.95", "10"]]


@pytest.mark.parametrize(
    ("states", "best", "whole"),
    [
        (("finished", "finished"), "a", 2),
        (("stopped early", "stopped early"), "b", 0),
        (("finished", "stopped early"), "a", 1),
    ],
)
def test_it_says_what_the_best_is_the_best_of(states: tuple[str, str], best: str, whole: int) -> None:
    """A trial that was stopped early may have been ahead."""
    trials = [trial("a", -1313.0, states[0]), trial("b", -1167.0, states[1])]
    section = section_of(trials=sorted(trials, key=lambda each: each["name"] != best))
    check = check_of(section, "of 2 trials ran their full budget")
    assert (check.value, check.passed) == (whole, True if whole else None)
    assert ("was ahead, at −1167" in check.remedy) == (whole == 1)


def test_there_is_a_picture_of_each_setting_and_of_the_curves() -> None:
    captions = {picture.name: picture.caption for picture in section_of().pictures}
    assert list(captions) == ["curves_of_trials", "setting_ppo.gamma", "setting_fragments.length"]
    assert "0.9 to 0.99" in captions["setting_ppo.gamma"]
    assert "one of 10, 25" in captions["setting_fragments.length"]


def test_text_from_the_folder_is_escaped_and_nothing_is_loaded() -> None:
    page = report.page_of(SweepOutcome(PLAN, TRIALS, complete=True), "s", "rlhf-ray tune pendulum --run-dir '<x>'")
    assert "<b>boom" not in page
    assert "&lt;b&gt;boom" in page
    assert "&lt;x&gt;" in page
    assert "default-src 'none'" in page
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", page)


def test_other_seeds_are_shown_with_their_interval() -> None:
    seeds = [trial(f"s{i}", -150.0 - i, seed=i) for i in range(3)]
    section = section_of(seeds=seeds)
    check = check_of(section, "true return of its settings with 3 other seeds")
    assert (check.passed, check.value) == (True, -151.0)
    assert (check.low, check.high) == pytest.approx((-153.48, -148.52), abs=0.01)  # Student's t
    assert check_of(section, "true return of the best").passed is True
    assert section.pictures[1].name == "curves_of_seeds"


def test_repeated_trials_are_compared_by_configuration() -> None:
    means = [trial("a", -110.0) | {"each": [-100.0, -120.0], "interval_95": [-140.0, -80.0]}, trial("b", None)]
    section = section_of(configurations=means, plan=PLAN | {"repeat": 2})
    check = check_of(section, "true return of the best of 2 configurations")
    assert (check.passed, check.value, check.low, check.high) == (True, -110.0, -140.0, -80.0)
    assert "over 2 seeds" in section.notes[0]
    assert section.tables[0].rows[0][1] == "−110 [−140, −80.0]"


@pytest.mark.parametrize("trials", [[], [trial("c", None, "failed")]])
def test_a_sweep_without_a_measurement_says_so(trials: list[Any]) -> None:
    section = section_of(trials=trials)
    (check,) = section.checks
    assert check.passed is False
    assert "No trial ran long enough" in check.remedy
    assert not section.pictures


def test_a_sweep_that_was_stopped_says_how_to_continue() -> None:
    assert "rlhf-ray tune --resume" in check_of(section_of(complete=False), "all trials ended").remedy
    assert not [check for check in section_of().checks if check.name == "all trials ended"]
