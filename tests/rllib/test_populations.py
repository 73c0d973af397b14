"""Population-based training with trials that are made up, on real actors: all come to their end, whatever there is room for."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray import tune
from ray.tune.experiment import Trial

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
@pytest.mark.parametrize(
    ("schedule", "room", "trials"),
    [("pbt", 1, 2), ("pb2", 2, 3), ("pb2", 4, 4)],
)
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
def test_nobody_waits_for_a_look_that_all_have_come_to(schedule: Schedule) -> None:
    trials = [Trial("made_up", stub=True) for _ in range(2)]
    population, controller = population_of(schedule, *trials)
    look(population, controller, trials)
    assert population.choose_trial_to_run(controller) in trials


@pytest.mark.parametrize("schedule", ["pbt", "pb2"])
@pytest.mark.parametrize("ending", ["fails", "ends"])
def test_a_population_does_not_wait_for_a_trial_that_is_lost(schedule: Schedule, ending: str) -> None:
    *there, lost = trials = [Trial("made_up", stub=True) for _ in range(3)]
    population, controller = population_of(schedule, *trials)
    look(population, controller, there)
    assert population.choose_trial_to_run(controller) is None
    if ending == "fails":
        lost.status = Trial.ERROR
        population.on_trial_error(controller, lost)
    else:
        lost.status = Trial.TERMINATED
        population.on_trial_complete(controller, lost, {})
    assert population.choose_trial_to_run(controller) in there


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
def test_what_a_trial_that_is_taken_over_has_still_to_save_does_not_stop_it_later(
    schedule: Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    population = scheduler(schedule, SPACE, 1000)
    controller, trial = Controller(), Trial("made_up", stub=True)

    def as_tune_does(self: Any, controller: Controller, trial: Trial, donor: Trial) -> None:
        controller._cached_trial_decisions[trial.trial_id] = "STOP"

    monkeypatch.setattr(tune.schedulers.PopulationBasedTraining, "_exploit", as_tune_does)
    population._exploit(controller, trial, trial)
    assert not controller._cached_trial_decisions
