"""Searchers, which choose a trial's settings, and schedulers, which stop trials or let them copy others."""

from __future__ import annotations

import importlib.util
import math
import random
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from ray.tune.experiment import Trial
from ray.tune.schedulers import AsyncHyperBandScheduler, FIFOScheduler, PopulationBasedTraining, TrialScheduler
from ray.tune.schedulers.pb2 import PB2
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater
from ray.tune.search.sample import Categorical, Float, Integer

from rlhf_ray.data.errors import SettingError
from rlhf_ray.settings.start import Schedule as Schedule  # where callers look for it
from rlhf_ray.settings.start import Search as Search
from rlhf_ray.sweeps.space import CHANGEABLE, PLACED, Space, extremes
from rlhf_ray.sweeps.trial import ENV_STEPS, TRIAL

_NEEDS = {"optuna": "optuna", "gp": "optuna", "qmc": "optuna", "pb2": "sklearn"}

_SAMPLERS = {"optuna": "TPESampler", "gp": "GPSampler", "qmc": "QMCSampler"}
"""Optuna's samplers by our names. Of Tune's other searchers, bayesopt calls what bayesian-optimization 2 removed, and nevergrad
pins an older one; bohb, hebo and zoopt rest on libraries that are no longer kept; ax and hyperopt offer the same two methods."""

GRACE = 5
"""ASHA runs every trial for at least this fraction (1/5) of its steps: before, slow learners look like failures."""

REDUCTION = 3
"""ASHA continues the best third at each rung; each rung is three times as long as the previous one."""

POPULATION = 5
"""Population-based training compares trials after each such fraction (1/5) of their steps."""

DRAWS = 20
"""Attempts to draw settings that differ from those of the copied trial: a choice may have only one value."""


def check_strategies(search: Search, schedule: Schedule, space: Space, trials: int, concurrent: int | None) -> None:
    """Check that searcher, scheduler and search space fit together.

    Raises:
        SettingError: they don't, or a library is missing.
    """
    for chosen, library in ((search, _NEEDS.get(search)), (schedule, _NEEDS.get(schedule))):
        if library is not None and importlib.util.find_spec(library) is None:
            raise SettingError(f"{chosen} needs {library}, which is not installed: pip install 'rlhf-ray[sweeps]'.")
    if schedule not in ("pbt", "pb2"):
        return
    if search != "random":
        raise SettingError(
            f"--schedule is {schedule} and --search is {search}: population-based training changes settings itself; remove "
            "--search."
        )
    if concurrent is not None and concurrent < trials:
        raise SettingError(
            f"--concurrent is {concurrent}, but --schedule {schedule} compares all {trials} trials while they run: remove it. "
            "Trials that don't fit take turns."
        )
    if trials < 2:
        raise SettingError(
            f"--trials is {trials}, but --schedule {schedule} needs at least 2, so that one can copy another."
        )
    if placed := [name for name in PLACED if name in space]:
        raise SettingError(
            f"--schedule {schedule} can't vary {placed[0]}, which decides where a trial runs: remove it."
        )
    if not mutations(space, schedule):
        kind = "a range of " if schedule == "pb2" else ""
        raise SettingError(
            f"--schedule {schedule} changes settings while trials run, but the search space ({', '.join(space)}) has none that may "
            f"change: vary {kind}at least one of {', '.join(sorted(CHANGEABLE))}."
        )


def searcher(search: Search, seed: int, concurrent: int, repeat: int = 1, points: Sequence[dict[str, Any]] = ()) -> Any:
    """Build the searcher named ``search``, for ``concurrent`` trials at a time at most; 0 for no limit.

    Each draw of settings has ``repeat`` trials, numbered from 0 in their configs, and a searcher that uses results sees their mean;
    for ``random``, a grid of seeds in the search space repeats them, and ``points`` are the settings of the first draws.
    """
    if search == "random":
        # The same draw for all values of a grid, such as the seeds.
        return BasicVariantGenerator(
            points_to_evaluate=list(points),
            max_concurrent=concurrent,
            random_state=seed,
            constant_grid_search=repeat > 1,
        )
    import optuna
    from ray.tune.search.optuna import OptunaSearch

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        chosen: Any = OptunaSearch(sampler=getattr(optuna.samplers, _SAMPLERS[search])(seed=seed))
    if repeat > 1:
        chosen = Repeater(chosen, repeat=repeat)
    return ConcurrencyLimiter(chosen, max_concurrent=concurrent) if concurrent else chosen


def scheduler(schedule: Schedule, space: Space, total_env_steps: int) -> TrialScheduler:
    """Build the scheduler of trials of so many steps.

    PBT and PB2 change those settings of the search space that may change during a trial; the others are copied.
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
        require_attrs=False,  # not every iteration has the objective
        synch=True,  # copies don't depend on timing, so that a sweep is reproducible
        custom_explore_fn=partial(
            within, {name: (*extremes(of),) for name, of in space.items() if isinstance(of, Float | Integer)}
        ),
        **{name: changed},
    )
    population.space = space
    return population


class _Population:
    """Fixes for Tune's populations: no deadlock, a copy differs from its original, and no trial is cut short.

    All trials pause at each comparison and continue when all have been compared. A mixin to put before Tune's class.
    """

    space: Space
    """The search space; set by `scheduler`."""

    def choose_trial_to_run(self: Any, tune_controller: Any) -> Any:
        """Choose a trial (called by Tune in a loop). If all are paused, move the next comparison past the one that is farthest.

        Tune doesn't move it when it has lost the trial that the others wait for, or when a trial's results are farther apart than
        two comparisons.
        """
        chosen = super().choose_trial_to_run(tune_controller)  # type: ignore[misc]
        live = tune_controller.get_live_trials()
        if chosen is None and live and all(trial.status == Trial.PAUSED for trial in live):
            states = [self._trial_state[trial] for trial in live]
            self._next_perturbation_sync = max(state.last_train_time for state in states) + self._perturbation_interval
            for state in states:
                state.last_perturbation_time = state.last_train_time
            chosen = super().choose_trial_to_run(tune_controller)  # type: ignore[misc]
        return chosen

    def _get_new_config(self: Any, trial: Trial, trial_to_clone: Trial) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the settings of ``trial``, which copies ``trial_to_clone``: changed, and with a seed of its own.

        With equal weights, settings and seeds, both would be the same training from then on. PB2 changes nothing until the copied
        settings have two results, and both trials may be at the same end of a range.
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
        """Let ``trial`` copy ``trial_to_clone``.

        If it is still saving in order to pause, Tune records a decision to stop it after the save, and would apply that at a much
        later save; hence this removes the decision.
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
    """Return the settings that PBT or PB2 may change, in Tune's format. PB2 supports only ranges."""
    changeable = {name: domain for name, domain in space.items() if name in CHANGEABLE}
    if schedule == "pb2":
        return {name: extremes(domain) for name, domain in changeable.items() if isinstance(domain, Float | Integer)}
    return {
        name: list(domain.categories) if isinstance(domain, Categorical) else domain
        for name, domain in changeable.items()
    }


def within(bounds: Mapping[str, Sequence[float]], config: dict[str, Any]) -> dict[str, Any]:
    """Clip every value of ``config`` to its bounds: PBT multiplies by 0.8 or 1.2 without limits."""
    return config | {name: min(max(config[name], low), high) for name, (low, high) in bounds.items()}
