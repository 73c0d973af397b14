"""What a sweep says: the table and the best, trials that are lost, and how to go on."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from ray import tune

from rlhf_ray.settings import Experiment, FragmentSettings, PreferenceSettings, SettingError, load_experiment
from rlhf_ray.sweeps import Plan
from rlhf_ray.sweeps.report import conclude
from rlhf_ray.sweeps.results import SweepOutcome, _rank, _trial, configurations
from rlhf_ray.sweeps.running import Announcer


def trial(name: str, objective: float | None, status: str, gamma: float) -> dict[str, Any]:
    return {
        "name": name,
        "status": status,
        "objective": objective,
        "env_steps": 800,
        "held_out_accuracy": None,
        "comparisons": 4,
        "settings": {"ppo.gamma": gamma},
        "curve": [] if objective is None else [[800.0, objective]],
        "error": None,
    }


def test_the_first_of_the_list_is_marked_as_the_best_and_is_the_one_in_the_file(tmp_path: Path) -> None:
    plan = Plan(Experiment(), {"ppo.gamma": tune.uniform(0.9, 0.99)}, trials=4, schedule="asha")
    # One that was stopped early looked better at the time than all others do at the end.
    trials = [
        trial("trial_lost", None, "failed", 0.91),
        trial("trial_early", -100.0, "stopped early", 0.92),
        trial("trial_whole", -300.0, "finished", 0.93) | {"held_out_accuracy": 1.0, "held_out_decided": 2},
        trial("trial_worse", -400.0, "finished", 0.94),
    ]
    outcome = SweepOutcome(plan.to_json(), sorted(trials, key=_rank), complete=True)
    said: list[str] = []
    conclude(outcome, plan.experiment, tmp_path, said.append)
    names = ["trial_whole", "trial_worse", "trial_early", "trial_lost"]
    printed = "\n".join(said)
    assert sorted(names, key=printed.index) == names
    (marked,) = (line for line in printed.splitlines() if "best, in best.json" in line)
    assert marked.startswith("1. -300 ")
    assert "held-out accuracy 1.00 (2 answers)" in marked
    assert "ppo.gamma 0.94" in printed
    assert load_experiment(tmp_path / "best.json").ppo.gamma == 0.93
    assert json.loads((tmp_path / "trials.json").read_text())["best"] == "trial_whole"


@pytest.mark.parametrize(
    ("checkpoint", "start"),
    [
        ("/runs/sweep/trial_a/checkpoint_000003", "its last checkpoint, checkpoint_000003"),
        (None, "the beginning"),
    ],
)
def test_a_trial_that_is_lost_says_that_it_restarts(checkpoint: str | None, start: str) -> None:
    class Lost:
        num_failures, error_file = 2, "error.txt"

        def __init__(self) -> None:
            self.checkpoint = None if checkpoint is None else tune.Checkpoint(checkpoint)

        def __str__(self) -> str:
            return "trial_a"

    said: list[str] = []
    Announcer(said.append).on_trial_recover(0, [], Lost())
    assert said == [f"trial_a: its process failed; restarting from {start} (restart 2 of 10); see error.txt"]


def test_what_people_need_is_said() -> None:
    people = PreferenceSettings(teacher="human", rounds=10)
    with pytest.raises(SettingError, match=r"--schedule is pbt and preferences.teacher is 'human'.*Use asha or none"):
        Plan(Experiment(preferences=people), {"ppo.gamma": tune.uniform(0.9, 0.99)}, schedule="pbt").check()
    fragments = FragmentSettings(length=10, initial_env_steps=500, film_env_steps=300)
    with pytest.raises(
        SettingError, match=r"filming for people in preferences\.rounds=10 \(fragments\.film_env_steps=300\).*lower"
    ):
        Experiment(preferences=people, fragments=fragments, total_env_steps=3_000)


def test_repeated_trials_are_ranked_by_their_mean(tmp_path: Path) -> None:
    """The luckiest trial is of settings that are worse on average; a configuration with a lost trial comes last."""
    plan = Plan(Experiment(), {"ppo.gamma": tune.uniform(0.9, 0.99)}, trials=3, repeat=3)
    each = {0.91: [-100.0, -500.0, -600.0], 0.92: [-300.0, -310.0, -320.0], 0.93: [-50.0, None, -60.0]}
    trials = [
        trial(f"trial_{gamma}_{seed}", objective, "failed" if objective is None else "finished", gamma) | {"seed": seed}
        for gamma, objectives in each.items()
        for seed, objective in enumerate(objectives)
    ]
    found = configurations(trials[::-1], 3)
    assert [of["settings"]["ppo.gamma"] for of in found] == [0.92, 0.91, 0.93]
    best = found[0]
    assert (best["objective"], best["each"], best["seeds"]) == (-310.0, each[0.92], [0, 1, 2])
    low, high = best["interval_95"]
    assert low == pytest.approx(-310 - 4.303 * 10 / 3**0.5, abs=0.01)  # Student's t with 2 degrees of freedom
    assert high == pytest.approx(-310 + 4.303 * 10 / 3**0.5, abs=0.01)
    assert found[2]["status"] == "failed"
    assert configurations(trials[:2], 3)[0]["status"] == "unfinished"
    outcome = SweepOutcome(plan.to_json(), sorted(trials, key=_rank), complete=True, configurations=found)
    said: list[str] = []
    conclude(outcome, plan.experiment, tmp_path, said.append)
    assert load_experiment(tmp_path / "best.json").ppo.gamma == 0.92
    assert "mean of 3 seeds: -300, -310, -320" in said[1]
    page = (tmp_path / "report.html").read_text()
    assert "true return of the best of 3 configurations<b>−310</b>" in page
    assert "of 3 configurations ran their full budget, and come first<b>2</b>" in page


@pytest.mark.parametrize(("accuracies", "known"), [((0.5, 0.75, None), (0.75, 8)), ((None, None, None), (None, None))])
def test_a_trial_that_ends_without_a_fit_tells_of_its_newest_one(accuracies: Any, known: Any, tmp_path: Path) -> None:
    """Metrics of rounds are NaN in iterations without one."""
    of_rounds = [
        (math.nan, math.nan) if each is None else (each, 4.0 * number) for number, each in enumerate(accuracies, 1)
    ]
    table = pd.DataFrame(of_rounds, columns=[f"preferences/round/held_out_{name}" for name in ("accuracy", "decided")])
    last = {"preferences": {"finished": 1.0, "round": {"held_out_accuracy": math.nan, "held_out_decided": math.nan}}}
    result = tune.Result(metrics=last, checkpoint=None, error=None, path=str(tmp_path), metrics_dataframe=table)
    told = _trial(result, {})
    assert (told["held_out_accuracy"], told["held_out_decided"], told["status"]) == (*known, "finished")
