"""Population-based training with made-up trials; and what a sweep says at its end and of trials that are lost."""

import json
import math
import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ray import tune
from ray.tune.experiment import Trial

from rlhf_ray.settings import Experiment, FragmentSettings, PreferenceSettings, SettingError, load_experiment
from rlhf_ray.sweeps import Plan
from rlhf_ray.sweeps.report import conclude
from rlhf_ray.sweeps.results import SweepOutcome, _rank, _trial, configurations
from rlhf_ray.sweeps.running import Announcer
from rlhf_ray.sweeps.strategies import Schedule, scheduler, searcher
from rlhf_ray.sweeps.trial import TRIAL

SPACE = {"ppo.gamma": tune.uniform(0.9, 0.99)}
COMMON = {TRIAL: {"experiment": {"seed": 3}}}
BUDGET, STEPS = 750, 350
"""A trial comes to two results; there is more between these than between two looks (a fifth of the budget)."""


class Steps(tune.Trainable):  # type: ignore[misc]
    """Counts its steps. The larger its gamma, the better it does."""

    def setup(self, config: dict[str, Any]) -> None:
        self.steps = 0

    def step(self) -> dict[str, Any]:
        self.steps += STEPS
        return {
            "env_steps": self.steps,
            "objective": self.config["ppo.gamma"],
            "done": self.steps + STEPS > BUDGET,
            "gamma": self.config["ppo.gamma"],
            "seed": self.config.get("seed"),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        time.sleep(0.1)  # so that it is seen saving
        (Path(checkpoint_dir) / "steps").write_text(str(self.steps))

    def load_checkpoint(self, checkpoint: Any) -> None:
        self.steps = int((Path(checkpoint) / "steps").read_text())


@pytest.fixture
def seeded() -> None:
    random.seed(3)
    np.random.seed(3)


@pytest.mark.soak
@pytest.mark.usefixtures("ray_session", "seeded")
@pytest.mark.parametrize(("schedule", "room", "trials"), [("pbt", 1, 2), ("pb2", 2, 3), ("pb2", 4, 4)])
def test_trials_take_turns_and_whoever_takes_over_another_differs_from_it(
    schedule: Schedule, room: int, trials: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", str(room))
    results = tune.Tuner(
        tune.with_resources(Steps, {"CPU": 4 / room}),  # of the four there are
        param_space={**SPACE, **COMMON},
        tune_config=tune.TuneConfig(
            metric="objective",
            mode="max",
            num_samples=trials,
            search_alg=searcher("random", 3, 0),
            scheduler=scheduler(schedule, SPACE, BUDGET),
            reuse_actors=False,
            time_budget_s=550,  # one that waits for ever fails
        ),
        run_config=tune.RunConfig(
            name="turns",
            storage_path=str(tmp_path),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=True, checkpoint_frequency=1, num_to_keep=4),
            verbose=0,
        ),
    ).fit()
    assert [result.metrics["env_steps"] for result in results] == [2 * STEPS] * trials
    gammas = [result.metrics["gamma"] for result in results]
    assert len(set(gammas)) == trials
    assert all(0.9 <= gamma <= 0.99 for gamma in gammas)
    (taken,) = tmp_path.glob("*/pbt_global.txt")
    assert len(taken.read_text().splitlines()) == 1
    (seed,) = {result.metrics["seed"] for result in results} - {None}  # the others have the common one
    assert seed != 3


class Controller:
    """Tune's, as far as a scheduler needs it."""

    search_alg = None

    def __init__(self, *trials: Trial) -> None:
        self.trials, self._cached_trial_decisions = trials, dict[str, str]()

    def get_trials(self) -> tuple[Trial, ...]:
        return self.trials

    def get_live_trials(self) -> set[Trial]:
        return {trial for trial in self.trials if not trial.is_finished()}

    def _schedule_trial_save(self, trial: Trial, result: Any) -> None: ...


def population_of(schedule: Schedule, *trials: Trial) -> tuple[Any, Any]:
    """A scheduler with these trials, all of them running, and its controller."""
    population, controller = scheduler(schedule, SPACE, BUDGET), Controller(*trials)
    population.set_search_properties("objective", "max")
    for number, trial in enumerate(trials):
        trial.config = {"ppo.gamma": 0.9 + number / 100, **COMMON}
        trial.status = Trial.RUNNING
        population.on_trial_add(controller, trial)
    return population, controller


def look(population: Any, controller: Any, trials: list[Trial]) -> None:
    """The trials come to where they are compared, and pause."""
    for number, trial in enumerate(trials):
        result = {"env_steps": STEPS, "objective": number, "training_iteration": 1}
        assert population.on_trial_result(controller, trial, result) == "PAUSE"
        trial.status = Trial.PAUSED


@pytest.mark.parametrize("schedule", ["pbt", "pb2"])
@pytest.mark.parametrize("ending", ["fails", "ends", "comes"])
def test_a_population_waits_for_a_trial_until_it_comes_to_the_look_or_is_lost(schedule: Schedule, ending: str) -> None:
    *there, lost = trials = [Trial("made_up", stub=True) for _ in range(3)]
    population, controller = population_of(schedule, *trials)
    look(population, controller, there)
    assert population.choose_trial_to_run(controller) is None
    if ending == "comes":
        look(population, controller, [lost])
    elif ending == "fails":
        lost.status = Trial.ERROR
        population.on_trial_error(controller, lost)
    else:
        lost.status = Trial.TERMINATED
        population.on_trial_complete(controller, lost, {})
    assert population.choose_trial_to_run(controller) in trials


@pytest.mark.usefixtures("seeded")
@pytest.mark.parametrize("schedule", ["pbt", "pb2"])
def test_a_taker_draws_where_changes_come_to_nothing_and_keeps_a_seed_of_its_own(schedule: Schedule) -> None:
    # At the end of its range; the other setting has one value.
    space = {**SPACE, "ppo.epochs": tune.randint(4, 5), "seed": tune.choice([3, 8, 9])}
    population = scheduler(schedule, space, 1000)
    population.set_search_properties("objective", "max")
    taker, donor = (Trial("made_up", stub=True) for _ in range(2))
    taker.config = {"ppo.gamma": 0.9, "ppo.epochs": 4, "seed": 8, **COMMON}
    for seed, expected in ((9, {8}), (8, set(range(10**6)) - {3, 8})):  # no two with the same
        donor.config = {"ppo.gamma": 0.99, "ppo.epochs": 4, "seed": seed, **COMMON}
        for _ in range(5):
            if schedule == "pb2":
                population._save_trial_state(
                    population._trial_state.setdefault(donor, _State()),
                    100,
                    {"env_steps": 100, "objective": 1.0},
                    donor,
                )
            config, _ = population._get_new_config(taker, donor)
            assert 0.9 <= config["ppo.gamma"] < 0.99
            assert config["ppo.epochs"] == 4
            assert config["seed"] in expected


class _State:
    """What the scheduler keeps of a trial."""

    last_score = last_result = None
    last_train_time = 0


@pytest.mark.parametrize("schedule", ["pbt", "pb2"])
def test_what_a_trial_that_is_taken_over_has_still_to_save_does_not_stop_it_later(schedule, monkeypatch):
    population = scheduler(schedule, SPACE, 1000)
    controller, trial = Controller(), Trial("made_up", stub=True)

    def as_tune_does(self: Any, controller: Controller, trial: Trial, donor: Trial) -> None:
        controller._cached_trial_decisions[trial.trial_id] = "STOP"

    monkeypatch.setattr(tune.schedulers.PopulationBasedTraining, "_exploit", as_tune_does)
    population._exploit(controller, trial, trial)
    assert not controller._cached_trial_decisions


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
    [("/runs/sweep/trial_a/checkpoint_000003", "its last checkpoint, checkpoint_000003"), (None, "the beginning")],
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
