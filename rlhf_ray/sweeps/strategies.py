"""Who chooses a trial's settings (searchers), and which trials are stopped or continue as copies of others (schedulers)."""

from __future__ import annotations

import importlib.util
import math
import random
from functools import partial
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pb2 import PB2
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter
from ray.tune.search.sample import Categorical, Float, Integer

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings.sweep import Schedule as Schedule  # where callers look for it
from rlhf_ray.settings.sweep import Search as Search
from rlhf_ray.sweeps.space import CHANGEABLE, PLACED, Space
from rlhf_ray.sweeps.trial import ENV_STEPS, TRIAL

_NEEDS = {"optuna": "optuna", "pb2": "sklearn"}

GRACE = 5
"""ASHA lets every trial run for this part (1/5) of its steps: before that, all that learn later look alike."""

REDUCTION = 3
"""ASHA lets the best third go on at each rung, and a rung is three times as high as the one before."""

POPULATION = 5
"""Population-based training: this part (1/5) of a trial's steps lies between two looks at how it stands among the others."""

DRAWS = 20
"""Times that other settings are drawn for a trial that would get those of the one it takes over: a choice may have one value."""


def check_strategies(search: Search, schedule: Schedule, space: Space, trials: int, concurrent: int | None) -> None:
    """Check that searcher, scheduler and search space go together.

    Raises:
        SettingError: they do not.
    """
    for chosen, library in ((search, _NEEDS.get(search)), (schedule, _NEEDS.get(schedule))):
        if library is not None and importlib.util.find_spec(library) is None:
            raise SettingError(f"{chosen} needs {library}, which is not installed: pip install 'rlhf-ray[sweeps]'.")
    if schedule not in ("pbt", "pb2"):
        return
    if search == "optuna":
        raise SettingError(
            f"--schedule is {schedule} and --search is optuna: population-based training changes settings by itself; leave out "
            "--search."
        )
    if concurrent is not None and concurrent < trials:
        raise SettingError(
            f"--concurrent is {concurrent}, and --schedule {schedule} compares all {trials} trials with each other while they run: "
            "leave it out. Trials for which there is no room take turns."
        )
    if trials < 2:
        raise SettingError(
            f"--trials is {trials}, and --schedule {schedule} needs at least 2, to take one over from the other."
        )
    if placed := [name for name in PLACED if name in space]:
        raise SettingError(
            f"--schedule {schedule} cannot vary {placed[0]}, which decides where a trial runs: leave it out."
        )
    if not mutations(space, schedule):
        kind = "a range of " if schedule == "pb2" else ""
        raise SettingError(
            f"--schedule {schedule} changes settings while trials run, and the search space ({', '.join(space)}) has none that may "
            f"change: vary {kind}at least one of {', '.join(sorted(CHANGEABLE))}."
        )


def searcher(search: Search, seed: int, concurrent: int) -> Any:
    """What draws the settings.

    Args:
        search: which.
        seed: of the draws.
        concurrent: at most so many trials at a time; 0 for no limit.
    """
    if search == "random":
        return BasicVariantGenerator(max_concurrent=concurrent, random_state=seed)
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    chosen = OptunaSearch(sampler=optuna.samplers.TPESampler(seed=seed))
    return ConcurrencyLimiter(chosen, max_concurrent=concurrent) if concurrent else chosen


def scheduler(schedule: Schedule, space: Space, total_env_steps: int) -> TrialScheduler:
    """What decides which trials go on.

    Args:
        schedule: which.
        space: what is varied. Of it, PBT and PB2 change what may change while a trial runs; the rest comes with what is copied.
        total_env_steps: of a trial.
    """
    if schedule == "none":
        return FIFOScheduler()
    if schedule == "asha":
        return AsyncHyperBandScheduler(
            time_attr=ENV_STEPS,
            max_t=total_env_steps,
            grace_period=max(1, total_env_steps // GRACE),
            reduction_factor=REDUCTION,
        )
    kind: Any
    kind, name = (_PB2, "hyperparam_bounds") if schedule == "pb2" else (_PBT, "hyperparam_mutations")
    changed = mutations(space, schedule)
    population = kind(
        time_attr=ENV_STEPS,
        perturbation_interval=max(1, total_env_steps // POPULATION),
        require_attrs=False,  # not every iteration is measured
        synch=True,  # who takes over whom depends on no timing, so that a sweep can be repeated
        custom_explore_fn=partial(
            within, {name: _ends(of) for name, of in space.items() if isinstance(of, Float | Integer)}
        ),
        **{name: changed},
    )
    population.space = space
    return population


class _Population:
    """What Tune's populations lack: nobody waits for ever, whoever takes over another differs from it, and nobody is cut short.

    All trials stop at each look, and go on when all have been looked at. A base that comes before Tune's class.
    """

    space: Space
    """What varies; set by `scheduler`."""

    def choose_trial_to_run(self: Any, tune_controller: Any) -> Any:
        """Called by Tune, all the time. Where all wait and nobody is left to wait for, the next look is a later one."""
        chosen = super().choose_trial_to_run(tune_controller)  # type: ignore[misc]
        live = tune_controller.get_live_trials()
        if chosen is None and live and all(trial.status == Trial.PAUSED for trial in live):
            self._look_later([self._trial_state[trial] for trial in live])
            chosen = super().choose_trial_to_run(tune_controller)  # type: ignore[misc]
        return chosen

    def _look_later(self: Any, states: list[Any]) -> None:
        """Move the look that everybody has come to, or is beyond, behind the one who is farthest.

        Tune leaves it where it is when it has lost the trial that was waited for, and puts it on the very step where all stand when
        what lies between two results of a trial is more than what lies between two looks.
        """
        self._next_perturbation_sync = max(state.last_train_time for state in states) + self._perturbation_interval
        for state in states:
            state.last_perturbation_time = state.last_train_time

    def _get_new_config(self: Any, trial: Trial, trial_to_clone: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
        """The settings of ``trial``, which takes over ``trial_to_clone``: changed, and with a seed of its own.

        With the same weights, settings and seed both would be one training from then on. PB2 changes nothing as long as the
        settings that are taken over have not come to two results, and both may be held back by the end of a range.
        """
        config, operations = super()._get_new_config(trial, trial_to_clone)  # type: ignore[misc]
        theirs = trial_to_clone.config
        changed = [name for name in self.space if name in CHANGEABLE and name in self._hyperparam_mutations]
        for _ in range(DRAWS):
            if any(_differ(config[name], theirs[name]) for name in changed):
                break
            config |= {name: self.space[name].sample() for name in changed}
        config["seed"] = trial.config.get("seed")
        while config["seed"] in (None, theirs.get("seed"), theirs[TRIAL]["experiment"]["seed"]):
            config["seed"] = random.randrange(10**6)
        return config, operations

    def _exploit(self, tune_controller: Any, trial: Trial, trial_to_clone: Trial) -> None:
        """Have ``trial`` take over ``trial_to_clone``.

        Where it is still saving to pause, Tune notes that it is to stop when it has saved, and would do so at a much later save.
        """
        super()._exploit(tune_controller, trial, trial_to_clone)  # type: ignore[misc]
        tune_controller._cached_trial_decisions.pop(trial.trial_id, None)


class _PBT(_Population, PopulationBasedTraining):  # type: ignore[misc]
    pass


class _PB2(_Population, PB2):  # type: ignore[misc]
    pass


def _differ(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return not math.isclose(one, other, rel_tol=1e-6)  # PB2 computes in 32 bits
    return bool(one != other)


def mutations(space: Space, schedule: Schedule) -> dict[str, Any]:
    """What PBT or PB2 may change, as it takes it: PB2 ranges alone."""
    changeable = {name: domain for name, domain in space.items() if name in CHANGEABLE}
    if schedule == "pb2":
        return {name: list(_ends(domain)) for name, domain in changeable.items() if isinstance(domain, Float | Integer)}
    return {
        name: list(domain.categories) if isinstance(domain, Categorical) else domain
        for name, domain in changeable.items()
    }


def within(bounds: dict[str, tuple[float, float]], config: dict[str, Any]) -> dict[str, Any]:
    """``config`` with every value within its bounds: PBT multiplies by 0.8 or 1.2, wherever that leads."""
    return config | {name: min(max(config[name], low), high) for name, (low, high) in bounds.items()}


def _ends(domain: Float | Integer) -> tuple[float, float]:
    return domain.lower, domain.upper - (1 if isinstance(domain, Integer) else 0)
