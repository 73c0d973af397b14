"""Runs a sweep with Ray Tune, or resumes one that was stopped or killed."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import ray
from ray import tune

from rlhf_ray.actors.placement import missing
from rlhf_ray.data import consent
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import INSIDE, Lock
from rlhf_ray.data.modules import found_in_all
from rlhf_ray.data.places import in_job
from rlhf_ray.data.strays import without_strays
from rlhf_ray.runs.folder import own_folder
from rlhf_ray.settings import Experiment, from_json, to_json
from rlhf_ray.settings.checks import Count, Natural, check_values
from rlhf_ray.settings.start import Metric
from rlhf_ray.sweeps import state
from rlhf_ray.sweeps.report import conclude
from rlhf_ray.sweeps.results import SweepOutcome, collect
from rlhf_ray.sweeps.space import PLACED, Space, apply, check, describe, extremes, points
from rlhf_ray.sweeps.state import PLAN as PLAN  # where callers look for it
from rlhf_ray.sweeps.strategies import Schedule, Search, check_strategies, scheduler, searcher
from rlhf_ray.sweeps.trial import ENV_STEPS, LINKS, OBJECTIVE, REFUSAL, TRIAL, TRIALS

FAILURES = 10
"""Maximum restarts of a trial from its last checkpoint after its process died or raised: enough for a cluster of spot machines that
loses a trial a few times, but finite for an environment that always raises."""

SEEDS = "seeds"
"""Subfolder of the sweep with trainings of the best settings with other seeds."""


def tell(what: str) -> None:
    """Print a message. A function of ours, since Tune pickles it, and Ray may have replaced `print`."""
    print(what)


@dataclass(frozen=True)
class Plan:
    """A sweep: an experiment, the settings that vary (`rlhf_ray.sweeps.space`), and options of `rlhf-ray tune`, by their names.

    The experiment's seed also seeds the search; ``trials`` is the number of draws of settings, which ``repeat`` repeats with seeds
    from the experiment's on.
    """

    experiment: Experiment
    space: Space = field(default_factory=dict)
    trials: Count = 4
    repeat: Count = 1
    concurrent: Count | None = None
    search: Search = "random"
    schedule: Schedule = "none"
    metric: Metric = "return"
    evaluation_episodes: Count = 20
    seeds: Natural = 0
    name: str = ""

    def check(self) -> None:
        """Check the plan.

        Raises:
            SettingError: a setting is invalid, or settings don't fit together.
        """
        check_values(self, "--")
        preferences = self.experiment.preferences
        if self.metric == "likelihood" and not preferences.held_out_share:
            raise SettingError(
                "preferences.held_out_share is 0, but the objective is the likelihood of held-out comparisons: set it to 0.1, for "
                "example, or --metric to return."
            )
        if preferences.asks_people and self.schedule in ("pbt", "pb2"):
            raise SettingError(
                f"--schedule is {self.schedule} and preferences.teacher is {preferences.teacher!r}: trials of a population take "
                "turns, each with its own labelling page, so annotators would have to switch pages. Use asha or none."
            )
        if self.repeat > 1 and self.schedule != "none":
            raise SettingError(
                f"--repeat is {self.repeat} and --schedule is {self.schedule}: a schedule stops or changes single trials, but a "
                "mean is over complete ones; remove one of the two."
            )
        if self.repeat > 1 and "seed" in self.space:
            raise SettingError(f"--repeat is {self.repeat}, but the search space varies seed: remove one of the two.")
        check(self.space, self.experiment)
        check_strategies(self.search, self.schedule, self.space, self.trials, self.concurrent)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON values, with the search space as `describe` gives it."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return values | {
            "experiment": to_json(self.experiment),
            "space": {name: describe(domain) for name, domain in self.space.items()},
        }


_OTHER = "or start another sweep"


def sweep(plan: Plan, folder: Path, say: Callable[[str], None] = tell) -> SweepOutcome:
    """Run ``plan``. Write results, report and the best settings to ``folder``, which is new or empty; ``say`` tells the user.

    Raises:
        SettingError: the plan is invalid, a trial doesn't fit on the cluster, or the folder is not empty or can't be created.
        LockedError: another process writes to the folder.
    """
    plan.check()
    at_once, seed = concurrency(plan, say), plan.experiment.seed
    with own_folder(folder, _OTHER):
        if any(entry.name != INSIDE for entry in without_strays(folder.iterdir())):
            raise SettingError(f"run_dir is {folder}, which is not empty: name another folder.")
        values = plan.to_json() | {"modules": found_in_all(map(consent.module_of, plan.experiment.own_names()))}
        write_text(folder / PLAN, json.dumps(values, indent=2) + "\n")
        state.keep(folder, folder, {})
        # The schedulers use these generators.
        random.seed(seed)
        np.random.seed(seed)
        space, samples = {**plan.space, TRIAL: _common(plan, plan.experiment)}, plan.trials * plan.repeat
        if plan.repeat > 1 and plan.search == "random":
            space["seed"], samples = tune.grid_search([seed + i for i in range(plan.repeat)]), plan.trials
        search = searcher(plan.search, seed, at_once, plan.repeat, points(plan.space, plan.trials, seed))
        schedule = scheduler(plan.schedule, plan.space, plan.experiment.total_env_steps)
        return _finish(plan, folder, _tuner(plan, folder, space, search, samples, schedule, say), say)


def go_on(folder: Path, say: Callable[[str], None] = tell) -> SweepOutcome:
    """Resume the sweep in ``folder``, each trial from its last checkpoint.

    Raises:
        SettingError: ``folder`` has no sweep, one of its files is damaged (nothing is changed then), or no trial has started.
    """
    plan = read_plan(folder)
    if not state.has_started(folder):
        raise SettingError(f"--resume is {folder}, but no trial of its sweep has started: start the sweep again.")
    concurrency(plan, say)
    with Lock(folder, _OTHER):
        return _finish(plan, folder, _restored(plan, folder), say)


def _restored(plan: Plan, folder: Path) -> tune.Tuner:
    """Return a tuner that resumes what is in ``folder``."""
    state.put_back(folder)
    with state.named(folder / state.TUNER):
        tuner = tune.Tuner.restore(str(folder), trainable=TRIALS[plan.experiment.agent], resume_errored=True)
        tuner.get_results()  # fails if Tune can't read its state: it would start the sweep anew over the old results
    return tuner


def read_plan(folder: Path) -> Plan:
    """Read the plan of the sweep in ``folder``, with its search space as `describe` gives it, and check the sweep's files.

    Raises:
        SettingError: there is no sweep in ``folder``, or one of its files is damaged.
    """
    if not (folder / PLAN).exists() and not state.has_started(folder):
        raise SettingError(f"{folder} is not a sweep's folder: it has no {PLAN}.")
    for part in (folder, folder / SEEDS):
        state.check(part)
    kept = state.kept(folder) / PLAN
    with state.named(file := kept if kept.exists() else folder / PLAN):
        values = json.loads(file.read_text())
        modules = values.pop("modules", None)
        plan = Plan(experiment=from_json(Experiment, values.pop("experiment")), **values)
    consent.check(plan.experiment.own_names(), folder / PLAN, modules)
    for part in (folder, folder / SEEDS):
        state.check_pickles(part)
    return plan


def concurrency(plan: Plan, say: Callable[[str], None] = lambda what: None) -> int:
    """Return how many trials may run concurrently; 0 for no limit, for populations, whose trials must all exist and take turns.

    On a cluster that may grow (RAY_ADDRESS), returns ``plan.concurrent`` if set; trials wait until they fit.

    Raises:
        SettingError: not even one trial fits. The message says what is missing.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    grows = bool(os.environ.get("RAY_ADDRESS")) and plan.concurrent is not None
    fit = 0
    for settings in placements(plan.space):
        config = {TRIAL: _common(plan, plan.experiment), **settings}
        request = TRIALS[plan.experiment.agent].default_resource_request(config)
        fits = room(request.bundles, nodes)
        if fits == 0 and not grows:
            of = f" with {', '.join(f'{name}={value}' for name, value in settings.items())}" if settings else ""
            raise SettingError(
                f"A trial{of} needs {_said(request.bundles)}, but the cluster has {_said(nodes)}: free or add nodes, or reduce "
                f"{plan.experiment.agent}.num_env_runners. With an autoscaler, set the number of trials to request at a time with "
                "--concurrent."
            )
        fit = max(fit, fits)
    population, wanted = plan.schedule in ("pbt", "pb2"), plan.concurrent or fit
    at_once = wanted if grows else min(fit, wanted)
    # Trials that take turns: request resources for no more than fit.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(at_once if grows and not population else max(1, fit))
    if wanted > at_once and not population:
        say(f"Only {fit} of the {wanted} concurrent trials requested with --concurrent fit on the cluster.")
    return 0 if population else at_once


def placements(space: Space) -> list[dict[str, Any]]:
    """Return all combinations of extreme values of the settings in ``space`` that decide a trial's resources."""
    varied = {name: extremes(space[name]) for name in PLACED if name in space}
    return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]


def room(bundles: Sequence[dict[str, float]], nodes: Sequence[dict[str, float]]) -> int:
    """Return how many trials with these bundles fit on nodes with these resources. A bundle must fit on one node."""
    count = 0
    while bundles and missing([*bundles] * (count + 1), nodes) is None:
        count += 1
    return count


def _said(of: Sequence[dict[str, float]]) -> str:
    parts = [[f"{node[kind]:g} {kind}" for kind in ("CPU", "GPU") if node.get(kind)] for node in of]
    return " + ".join(" and ".join(part) or "none" for part in parts)


def _common(plan: Plan, experiment: Experiment) -> dict[str, Any]:
    """Return the part of the config that all trials share."""
    return {
        "experiment": to_json(experiment),
        "metric": plan.metric,
        "episodes": plan.evaluation_episodes,
        "seed": plan.experiment.seed,
    }


def _tuner(
    plan: Plan, folder: Path, space: Space, search: Any, samples: int, schedule: Any, say: Callable[[str], None]
) -> tune.Tuner:
    return tune.Tuner(
        TRIALS[plan.experiment.agent],
        param_space=space,
        tune_config=tune.TuneConfig(
            metric=OBJECTIVE,
            mode="max",
            num_samples=samples,
            search_alg=search,
            scheduler=schedule,
            reuse_actors=False,  # RLlib's algorithms can't be reset
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            failure_config=tune.FailureConfig(max_failures=FAILURES),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=True, checkpoint_frequency=plan.experiment.checkpoint_every, num_to_keep=state.KEPT
            ),
            callbacks=[Announcer(say), state.Keeper()],
            verbose=0,  # Tune's own table would have a column per setting
        ),
    )


def _name(trial: Any) -> str:
    """Return the name of a trial and its folder. Tune's own names list all settings, including shared ones."""
    return f"trial_{trial.trial_id}"


def _finish(plan: Plan, folder: Path, tuner: tune.Tuner, say: Callable[[str], None]) -> SweepOutcome:
    outcome = collect(_fit(tuner, folder), plan.to_json(), plan.trials * plan.repeat)
    if outcome.best is not None and outcome.complete and plan.seeds:
        best = apply(plan.experiment, outcome.best["settings"])
        outcome = dataclasses.replace(outcome, seeds=_with_other_seeds(plan, folder / SEEDS, best, say))
    conclude(outcome, plan.experiment, folder, say)
    return outcome


def _with_other_seeds(plan: Plan, folder: Path, best: Experiment, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """Train the best settings with the seeds after the sweep's own."""
    say(f"training the best settings with {plan.seeds} other seeds")
    if state.has_started(folder):
        tuner = _restored(plan, folder)
    else:
        seeds = tune.grid_search([plan.experiment.seed + i for i in range(plan.repeat, plan.repeat + plan.seeds)])
        alone = dataclasses.replace(plan, experiment=best, schedule="none", space={}, repeat=1)
        search, space = searcher("random", 0, concurrency(alone)), {"seed": seeds, TRIAL: _common(plan, best)}
        tuner = _tuner(plan, folder, space, search, 1, scheduler("none", {}, 0), say)
    return collect(_fit(tuner, folder), {**plan.to_json(), "space": {"seed": {}}, "repeat": 1}, plan.seeds).trials


def _fit(tuner: tune.Tuner, folder: Path) -> tune.ResultGrid:
    # Not every result has an objective; don't let Tune fail because of that.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    # No tracebacks for lost trials: `Announcer` reports them in one line, and `error.txt` in the trial's folder has the details.
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    results = tuner.fit()
    live = [each for each in results if each.checkpoint is not None and not (each.metrics or {}).get("done")]
    state.keep(folder, folder, {Path(each.path).name: each.checkpoint.path for each in live})
    return results


class Announcer(tune.Callback):  # type: ignore[misc]
    """Reports starts, measurements, restarts and failures of trials, and annotators' links. Tune calls its hooks."""

    def __init__(self, say: Callable[[str], None] = tell):
        self.say = say
        self._told: dict[str, str] = {}
        """The links last reported, by trial."""

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        """Report new links."""
        for trial in trials:
            links = Path(trial.path or ".") / LINKS
            if trial.is_finished() or not links.exists() or self._told.get(trial.trial_id) == links.read_text():
                continue
            self._told[trial.trial_id] = links.read_text()
            if in_job():  # a job's output is readable by anyone with the cluster's token
                self.say(f"{trial}: annotators' links are in {links}")
                continue
            for person, link in json.loads(links.read_text()).items():
                self.say(f"{trial}: {person} labels at {link}")

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Report a start."""
        self.say(f"{trial}: started, {sum(t.is_finished() for t in trials)} trials done")

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        """Report a measurement or a refusal."""
        if REFUSAL in result:
            after = f"failed after {result[ENV_STEPS]:.0f} env steps" if result[ENV_STEPS] else "can't run"
            self.say(f"{trial}: {after}: {result[REFUSAL]}")
        if OBJECTIVE in result:
            self.say(f"{trial}: env steps {result[ENV_STEPS]:.0f}, objective {result[OBJECTIVE]:.4g}")

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Report a restart."""
        start = f"its last checkpoint, {Path(trial.checkpoint.path).name}" if trial.checkpoint else "the beginning"
        self.say(
            f"{trial}: its process failed; restarting from {start} (restart {trial.num_failures} of {FAILURES}); "
            f"see {trial.error_file}"
        )

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Report a failure."""
        self.say(f"{trial}: failed; see {trial.error_file}")
