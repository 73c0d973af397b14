"""Results of a sweep: its trials, those of the same settings together, and the best."""

from __future__ import annotations

import json
import math
import shlex
import statistics
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ray.tune import Result, ResultGrid

from rlhf_ray.data.metrics import plain
from rlhf_ray.measure.intervals import mean_interval
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.sweeps.trial import ENV_STEPS, OBJECTIVE, REFUSAL, SETTINGS

FORMAT = "rlhf_ray.sweep/1"

NAMES = {"return": "true return", "likelihood": "held-out log-likelihood"}
"""Display names of the objectives."""


@dataclass(frozen=True)
class SweepOutcome:
    """The result of a sweep.

    Attributes:
        plan: the plan, as JSON values.
        trials: one dictionary per trial; first those that ran to the end, then the others, each best first: ``name``, ``status``
            (finished, stopped early, failed or unfinished), ``objective`` (None if never measured), ``env_steps``,
            ``held_out_accuracy``, ``held_out_decided`` (the number of answers behind it), ``comparisons``, ``settings`` (final
            values of those that vary), ``curve`` (environment steps and objective) and ``error``.
        configurations: with repeated trials, one dictionary per draw of settings in the same form, best first: those whose trials
            all ran to the end come first. ``objective`` is the mean over its trials; ``each`` has those of the single ones,
            ``interval_95`` the mean's 95 % interval (Student's t), ``seeds`` their seeds. Empty without repeats.
        complete: whether every trial has ended, including those stopped or failed.
        seeds: trials of the best settings with other seeds, in the same form; None without.
    """

    plan: dict[str, Any]
    trials: list[dict[str, Any]]
    complete: bool
    seeds: list[dict[str, Any]] | None = None
    configurations: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ranked(self) -> list[dict[str, Any]]:
        """What the sweep compares, best first: trials, or configurations if trials are repeated."""
        return self.configurations or self.trials

    @property
    def best(self) -> dict[str, Any] | None:
        """The best trial (or configuration) that ran to the end; if none did, the best of all. None if none was measured."""
        return next((each for each in self.ranked if each["objective"] is not None), None)

    @property
    def over_seeds(self) -> dict[str, Any] | None:
        """Mean and 95 % interval (Student's t) of the best settings' objective over other seeds; None without."""
        each = [trial["objective"] for trial in self.seeds or [] if trial["objective"] is not None]
        return {"mean": statistics.mean(each), "interval_95": mean_interval(each), "each": each} if each else None

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values."""
        about = {
            "format": FORMAT,
            "objective": NAMES[self.plan["metric"]],
            "best": None if self.best is None else self.best["name"],
            "over_seeds": self.over_seeds,
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        }
        values: dict[str, Any] = plain(about | vars(self))
        return values


def collect(results: ResultGrid, plan: dict[str, Any], trials: int) -> SweepOutcome:
    """Collect Tune's results of a plan, as JSON values, of so many trials."""
    found = sorted((_trial(result, plan["space"]) for result in results), key=_rank)
    done = [trial for trial in found if trial["status"] != "unfinished"]
    repeated = configurations(found, repeat) if (repeat := plan.get("repeat", 1)) > 1 else []
    return SweepOutcome(plan, found, complete=len(done) >= trials, configurations=repeated)


def configurations(trials: list[dict[str, Any]], repeat: int) -> list[dict[str, Any]]:
    """Average trials, each with its ``seed``, ``repeat`` of each configuration: see `SweepOutcome`."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for trial in trials:
        groups.setdefault(json.dumps(plain(trial["settings"]), sort_keys=True), []).append(trial)
    found = []
    for group in groups.values():
        group = sorted(group, key=lambda trial: (trial["seed"] is None, trial["seed"]))
        each = [trial["objective"] for trial in group if trial["objective"] is not None]
        states = {trial["status"] for trial in group} | ({"unfinished"} if len(group) < repeat else set())
        known = [trial for trial in group if is_known(trial["held_out_accuracy"])]
        decided: list[Any] = [trial.get("held_out_decided") for trial in known]
        found.append(
            group[0]
            | {
                "status": next(state for state in STATES if state in states),
                "objective": statistics.mean(each) if each else None,
                "interval_95": mean_interval(each),
                "each": each,
                "seeds": [trial["seed"] for trial in group],
                "env_steps": sum(trial["env_steps"] for trial in group),
                "held_out_accuracy": statistics.mean(trial["held_out_accuracy"] for trial in known) if known else None,
                "held_out_decided": None if None in decided else sum(decided),
                "curve": [],
                "error": next((trial["error"] for trial in group if trial["error"]), None),
            }
        )
    return sorted(found, key=_rank)


STATES = ("failed", "unfinished", "stopped early", "finished")
"""What may have become of a trial. The first of them that applies to a trial of a configuration applies to the whole."""


def is_known(value: Any) -> bool:
    """Whether a number was measured."""
    return value is not None and math.isfinite(value)


def _rank(trial: dict[str, Any]) -> tuple[bool, bool, float]:
    """Sort key: finished trials first, then those stopped early, each best first."""
    objective = trial["objective"]
    return objective is None, trial["status"] != "finished", -(objective or 0.0)


def _trial(result: Result, space: dict[str, Any]) -> dict[str, Any]:
    metrics = result.metrics or {}
    ring, settings = metrics.get(PREFERENCES, {}), metrics.get(SETTINGS, {})
    # Iterations without a fit have no accuracy.
    fits = _rows(result, *(f"{PREFERENCES}/round/held_out_{of}" for of in ("accuracy", "decided")))
    curve: list[list[float]] = []
    for steps, objective in _rows(result, ENV_STEPS, OBJECTIVE):
        while curve and curve[-1][0] >= steps:  # a restored checkpoint undid these
            curve.pop()
        curve.append([steps, objective])
    error = metrics.get(REFUSAL)
    if result.error is not None:
        error = str(result.error).strip().splitlines()[-1]
    status = "stopped early" if metrics.get("done") else "unfinished"
    if error is not None or ring.get("finished") == 1.0:
        status = "finished" if error is None else "failed"
    return {
        "name": Path(result.path).name,
        "status": status,
        "objective": curve[-1][1] if curve else None,
        "env_steps": int(metrics.get(ENV_STEPS, 0)),
        "held_out_accuracy": fits[-1][0] if fits else None,
        "held_out_decided": int(fits[-1][1]) if fits else None,
        "comparisons": ring.get("comparisons"),
        "settings": {name: settings.get(name) for name in space},
        "seed": settings.get("seed"),
        "curve": curve,
        "error": error and error[:500],
    }


def _rows(result: Result, *names: str) -> list[list[float]]:
    """Return the results that have all of the metrics ``names``."""
    table = result.metrics_dataframe
    if table is None or not {*names} <= {*table}:
        return []
    found: list[list[float]] = table[list(names)].dropna().astype(float).to_numpy().tolist()
    return found
