"""Running a sweep with Ray Tune, or going on with one that was stopped or killed."""

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
from rlhf_ray.data.modules import found_in_all, look_in_all
from rlhf_ray.data.places import in_job
from rlhf_ray.runs.trackers import PROJECT, TrackerName, check_tracker
from rlhf_ray.settings import Experiment, from_json, to_json
from rlhf_ray.sweeps.results import SweepOutcome, collect, conclude
from rlhf_ray.sweeps.space import PLACED, Space, apply, check, describe, extremes
from rlhf_ray.sweeps.strategies import (
    Schedule,
    Search,
    check_strategies,
    scheduler,
    searcher,
)
from rlhf_ray.sweeps.trial import ENV_STEPS, LINKS, OBJECTIVE, REFUSAL, TRIAL, Metric, SweepTrial

FAILURES = 10
"""Times that a trial is begun again from its last checkpoint after its process was lost or raised: a cluster of spot machines
loses the same trial a few times, and an environment that always raises should not be tried for ever."""

KEPT = 4
"""Newest checkpoints of a trial that are kept. With fewer, one that another trial is to take over could be gone by then."""

SEEDS = "seeds"
"""Folder, in the sweep's, of the trainings of the best settings with other seeds."""

PLAN = "sweep.json"


def tell(what: str) -> None:
    """Print it. A function of ours, since Tune pickles what it is given, and Ray may have put another in the place of `print`."""
    print(what)


@dataclass(frozen=True)
class Plan:
    """A sweep: an experiment, what of it varies, and how that is searched.

    Attributes:
        experiment: what the trials have in common. Its seed is also that of the draws.
        space: what varies; see `rlhf_ray.sweeps.space`.
        trials: how many.
        concurrent: at most so many at a time; None: as many as there is room for.
        search: who chooses the settings.
        schedule: which trials are stopped early, or take over others.
        metric: what trials are measured by.
        evaluation_episodes: played for each measurement of the true return.
        seeds: trainings of the best settings with other seeds, at the end.
        tracker: where results go besides TensorBoard.
        name: of the experiment, for people.
    """

    experiment: Experiment
    space: Space = field(default_factory=dict)
    trials: int = 4
    concurrent: int | None = None
    search: Search = "random"
    schedule: Schedule = "none"
    metric: Metric = "return"
    evaluation_episodes: int = 20
    seeds: int = 0
    tracker: TrackerName = "none"
    name: str = ""

    def check(self) -> None:
        """Check that it can be run.

        Raises:
            SettingError: it cannot.
        """
        for name in ("trials", "evaluation_episodes"):
            if getattr(self, name) < 1:
                raise SettingError(f"{name} is {getattr(self, name)}; it must be 1 or more.")
        if self.concurrent is not None and self.concurrent < 1:
            raise SettingError(f"concurrent is {self.concurrent}; it must be 1 or more.")
        if self.seeds < 0:
            raise SettingError(f"seeds is {self.seeds}; it must be 0 or more.")
        preferences = self.experiment.preferences
        if self.metric == "likelihood" and not preferences.held_out_share:
            raise SettingError(
                "preferences.held_out_share is 0, and trials are to be measured by the likelihood of held-out comparisons: set it "
                "to 0.1, say, or --metric to return."
            )
        if preferences.asks_people and self.schedule in ("pbt", "pb2"):
            raise SettingError(
                f"--schedule is {self.schedule} and preferences.teacher is {preferences.teacher!r}: the trials of a population "
                "take turns, each with a labelling page of its own, so that people are sent from one to another. Use asha or none."
            )
        check_tracker(self.tracker)
        check(self.space, self.experiment)
        check_strategies(self.search, self.schedule, self.space, self.trials, self.concurrent)

    def to_json(self) -> dict[str, Any]:
        """All of it as JSON values; the search space in words."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return values | {
            "experiment": to_json(self.experiment),
            "space": {name: describe(domain) for name, domain in self.space.items()},
        }


def sweep(plan: Plan, folder: Path, say: Callable[[str], None] = tell) -> SweepOutcome:
    """Run ``plan`` and leave results, report and the best settings in ``folder``.

    Raises:
        SettingError: it cannot be run.
    """
    plan.check()
    if folder.exists() and any(folder.iterdir()):
        raise SettingError(f"run_dir is {folder}, and there is something there already: name another folder.")
    at_once = concurrency(plan, say)
    folder.mkdir(parents=True, exist_ok=True)
    values = plan.to_json() | {"modules": found_in_all(map(consent.module_of, plan.experiment.own_names()))}
    write_text(folder / PLAN, json.dumps(values, indent=2) + "\n")
    # The schedulers draw from these.
    random.seed(plan.experiment.seed)
    np.random.seed(plan.experiment.seed)
    space = {**plan.space, TRIAL: _common(plan, plan.experiment)}
    search = searcher(plan.search, plan.experiment.seed, at_once)
    schedule = scheduler(plan.schedule, plan.space, plan.experiment.total_env_steps)
    return _finish(plan, folder, _tuner(plan, folder, space, search, plan.trials, schedule, say), say)


def go_on(folder: Path, say: Callable[[str], None] = tell) -> SweepOutcome:
    """Go on with the sweep in ``folder``: each trial from its last checkpoint.

    Raises:
        SettingError: there is no sweep in ``folder``.
    """
    plan = read_plan(folder)
    if not tune.Tuner.can_restore(str(folder)):
        raise SettingError(f"--resume is {folder}, and no trial of the sweep in it has begun: begin the sweep anew.")
    concurrency(plan, say)
    tuner = tune.Tuner.restore(str(folder), trainable=SweepTrial, resume_errored=True)
    return _finish(plan, folder, tuner, say)


def read_plan(folder: Path) -> Plan:
    """The plan of the sweep in ``folder``, with its search space in words.

    Raises:
        SettingError: there is no sweep in ``folder``.
    """
    if not (folder / PLAN).exists():
        raise SettingError(f"{folder} is no folder of a sweep (it has no {PLAN}).")
    values = json.loads((folder / PLAN).read_text())
    look_in_all(values.pop("modules", None))
    experiment = from_json(Experiment, values["experiment"])
    consent.check(experiment.own_names(), folder / PLAN)
    return Plan(**values | {"experiment": experiment})


def concurrency(plan: Plan, say: Callable[[str], None] = lambda what: None) -> int:
    """How many trials may run at a time; 0 for no limit, where they have to exist side by side and take turns.

    On a cluster of others' nodes, which may grow, as many as ``plan.concurrent`` says; all else waits until it fits.

    Raises:
        SettingError: there is no room for a single one; says what is missing.
    """
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    grows = bool(os.environ.get("RAY_ADDRESS")) and plan.concurrent is not None
    fit = 0
    for settings in placements(plan.space):
        request = SweepTrial.default_resource_request({TRIAL: _common(plan, plan.experiment), **settings})
        fits = room(request.bundles, nodes)
        if fits == 0 and not grows:
            of = f" with {', '.join(f'{name}={value}' for name, value in settings.items())}" if settings else ""
            raise SettingError(
                f"A trial{of} needs {_said(request.bundles)}, and the cluster has {_said(nodes)}: free or add nodes, or lower "
                "ppo.num_env_runners. Where an autoscaler brings nodes, say how many trials to ask for at a time with --concurrent."
            )
        fit = max(fit, fits)
    # Of those that take turns, no more wait for a place than there are places.
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(1, fit))
    if plan.schedule in ("pbt", "pb2"):
        return 0
    if grows:
        assert plan.concurrent is not None
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(plan.concurrent)
        return plan.concurrent
    if plan.concurrent is not None and plan.concurrent > fit:
        say(f"There is room for {fit} of the {plan.concurrent} trials that --concurrent asks for at a time.")
    return min(fit, plan.concurrent or fit)


def placements(space: Space) -> list[dict[str, Any]]:
    """The settings in ``space`` that decide what a trial needs, at the ends of what they are drawn from, in every combination."""
    varied = {name: extremes(space[name]) for name in PLACED if name in space}
    return [dict(zip(varied, values, strict=True)) for values in itertools.product(*varied.values())]


def room(bundles: Sequence[dict[str, float]], nodes: Sequence[dict[str, float]]) -> int:
    """How many trials of these bundles fit on nodes with these resources, each bundle as a whole on one node."""
    count = 0
    while bundles and missing([*bundles] * (count + 1), nodes) is None:
        count += 1
    return count


def _said(of: Sequence[dict[str, float]]) -> str:
    kinds = ("CPU", "GPU")
    return " + ".join(
        " and ".join(f"{node[kind]:g} {kind}" for kind in kinds if node.get(kind)) or "none" for node in of
    )


def _common(plan: Plan, experiment: Experiment) -> dict[str, Any]:
    """What all trials have in common, in their configs."""
    return {
        "experiment": to_json(experiment),
        "metric": plan.metric,
        "episodes": plan.evaluation_episodes,
        "seed": plan.experiment.seed,
    }


def _tuner(
    plan: Plan, folder: Path, space: Space, search: Any, samples: int, schedule: Any, say: Callable[[str], None]
) -> tune.Tuner:
    callbacks: list[Any] = [Announcer(say)]
    if plan.tracker == "wandb":
        from ray.air.integrations.wandb import WandbLoggerCallback

        # Its processes may be on other nodes, and have another environment.
        mode = os.environ.get("WANDB_MODE")
        callbacks.append(WandbLoggerCallback(project=PROJECT, group=folder.name, dir=str(folder), mode=mode))
    return tune.Tuner(
        SweepTrial,
        param_space=space,
        tune_config=tune.TuneConfig(
            metric=OBJECTIVE,
            mode="max",
            num_samples=samples,
            search_alg=search,
            scheduler=schedule,
            reuse_actors=False,  # RLlib's algorithms cannot be reset
            trial_name_creator=_name,
            trial_dirname_creator=_name,
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            failure_config=tune.FailureConfig(max_failures=FAILURES),
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=True, checkpoint_frequency=plan.experiment.checkpoint_every, num_to_keep=KEPT
            ),
            callbacks=callbacks,
            verbose=0,  # Tune's own table has a column of each setting
        ),
    )


def _name(trial: Any) -> str:
    """What a trial and its folder are called: Tune's own names list settings, those that all trials share too."""
    return f"trial_{trial.trial_id}"


def _finish(plan: Plan, folder: Path, tuner: tune.Tuner, say: Callable[[str], None]) -> SweepOutcome:
    outcome = collect(_fit(tuner), plan.to_json(), plan.trials)
    if outcome.best is not None and outcome.complete and plan.seeds:
        outcome = dataclasses.replace(outcome, seeds=_with_other_seeds(plan, folder / SEEDS, outcome, say))
    conclude(outcome, plan.experiment, folder, say)
    return outcome


def _with_other_seeds(
    plan: Plan, folder: Path, outcome: SweepOutcome, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """The trials of the best settings with the seeds that follow the sweep's own."""
    assert outcome.best is not None
    best = apply(plan.experiment, outcome.best["settings"])
    say(f"training the best settings with {plan.seeds} other seeds")
    if tune.Tuner.can_restore(str(folder)):
        tuner = tune.Tuner.restore(str(folder), trainable=SweepTrial, resume_errored=True)
    else:
        seeds = tune.grid_search([plan.experiment.seed + i for i in range(1, plan.seeds + 1)])
        alone = dataclasses.replace(plan, experiment=best, schedule="none", space={})
        search = searcher("random", 0, concurrency(alone))
        tuner = _tuner(
            plan, folder, {"seed": seeds, TRIAL: _common(plan, best)}, search, 1, scheduler("none", {}, 0), say
        )
    return collect(_fit(tuner), {**plan.to_json(), "space": {"seed": {}}}, plan.seeds).trials


def _fit(tuner: tune.Tuner) -> tune.ResultGrid:
    # Not every result has an objective: no reason for Tune to give up.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    # Nor is a trial that is lost and begun again one for a trace: the announcer says it, and `error.txt` in its folder holds all.
    os.environ.setdefault("TUNE_PRINT_ALL_TRIAL_ERRORS", "0")
    return tuner.fit()


class Announcer(tune.Callback):  # type: ignore[misc]
    """Says when a trial starts, what each measurement comes to, and when it ends or fails."""

    def __init__(self, say: Callable[[str], None] = tell):
        self.say = say
        self._told: dict[str, str] = {}
        """The links that were said last, of each trial."""

    def on_step_end(self, iteration: int, trials: Any, **info: Any) -> None:
        """Called by Tune, every now and then."""
        for trial in trials:
            links = Path(trial.path or ".") / LINKS
            if not trial.is_finished() and links.exists() and self._told.get(trial.trial_id) != links.read_text():
                self._told[trial.trial_id] = links.read_text()
                if in_job():  # everyone with the cluster's token reads what a job prints
                    self.say(f"{trial}: everybody's link is in {links}")
                    continue
                for person, link in json.loads(links.read_text()).items():
                    self.say(f"{trial}: {person} labels at {link}")

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Called by Tune."""
        self.say(f"{trial}: started, {sum(t.is_finished() for t in trials)} of {len(trials)} trials done")

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        """Called by Tune."""
        if REFUSAL in result:
            self.say(f"{trial}: cannot be run: {result[REFUSAL]}")
        if OBJECTIVE in result:
            self.say(f"{trial}: env steps {result[ENV_STEPS]:.0f}, objective {result[OBJECTIVE]:.4g}")

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Called by Tune."""
        start = f"its last checkpoint, {Path(trial.checkpoint.path).name}" if trial.checkpoint else "the beginning"
        self.say(f"{trial}: {_why(trial)}; it restarts from {start} (restart {trial.num_failures} of {FAILURES})")

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        """Called by Tune."""
        self.say(f"{trial}: failed: {_why(trial)}; see {trial.error_file}")


def _why(trial: Any) -> str:
    """What went wrong with a trial, in a few words."""
    try:  # in this machine's file: Tune's own way reads the one in the sweep's folder, which is written later
        error = ray.cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
    except Exception:
        return "it failed"
    if isinstance(error, ray.exceptions.RayActorError):
        return "its process died"
    return (str(error).strip().splitlines() or [type(error).__name__])[-1][:200]
