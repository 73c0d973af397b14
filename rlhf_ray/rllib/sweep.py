"""Sweeps: an experiment's search space, run by Ray Tune."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.search.sample import Domain
from rich.console import Console
from rich.table import Table

from rlhf_ray.checkpoints import KEPT
from rlhf_ray.rllib.algorithm import PREFERENCES, PreferencePPO
from rlhf_ray.rllib.config import PreferencePPOConfig
from rlhf_ray.settings import SettingError

METRIC = "env_runners/episode_return_mean"
"""The true return of the rollouts at the end of training: what trials are compared by."""


def sweep(
    config: PreferencePPOConfig, folder: Path, *, trials: int, concurrent: int | None = None, show: bool = True
) -> tune.ResultGrid:
    """Run ``trials`` trials of ``config`` to the end of their budgets and print a table, the best first.

    Args:
        config: with Tune's samplers in place of the settings that are varied.
        folder: for Tune's results, a checkpoint of each trial among them.
        trials: how many.
        concurrent: at most so many at a time; as many as the cluster has room for unless given.
        show: whether to print how trials go and the table.
    """
    tuner = tune.Tuner(
        PreferencePPO,
        param_space=config,
        tune_config=tune.TuneConfig(
            metric=METRIC, mode="max", num_samples=trials, max_concurrent_trials=concurrent, reuse_actors=False
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            stop={f"{PREFERENCES}/finished": 1.0},
            checkpoint_config=tune.CheckpointConfig(
                checkpoint_at_end=True, checkpoint_frequency=config.checkpoint_every, num_to_keep=KEPT
            ),
            callbacks=[_Announcer()] if show else [],
            verbose=0,  # Tune's own table has a column of 200 settings
        ),
    )
    return _finish(tuner, config if show else None)


def go_on(folder: Path, config: PreferencePPOConfig) -> tune.ResultGrid:
    """Go on with the sweep in ``folder`` that was stopped or killed: each trial from its last checkpoint.

    Args:
        folder: of the sweep.
        config: what it was begun with.

    Raises:
        SettingError: there is no sweep in ``folder``.
    """
    if not tune.Tuner.can_restore(str(folder)):
        raise SettingError(f"--resume is {folder}, and there is no sweep in it.")
    tuner = tune.Tuner.restore(str(folder), trainable=PreferencePPO, param_space=config, resume_errored=True)
    return _finish(tuner, config)


def _finish(tuner: tune.Tuner, shown: PreferencePPOConfig | None) -> tune.ResultGrid:
    # The first iterations of long episodes end none, and so have no return: no reason for Tune to give up.
    os.environ.setdefault("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    results = tuner.fit()
    if shown is not None:
        _print(results, varied(shown.to_dict()))
    return results


class _Announcer(tune.Callback):  # type: ignore[misc]
    """Says when a trial starts, how it stands every few iterations, and when it ends."""

    EVERY = 10
    """Iterations between two lines of a trial."""

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        print(f"{trial}: started, {sum(t.is_finished() for t in trials)} of {len(trials)} trials done")

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if result["training_iteration"] % self.EVERY == 0:
            steps, value = _at(result, (PREFERENCES, "env_steps")), _at(result, ("env_runners", "episode_return_mean"))
            print(f"{trial}: env steps {steps:.0f}, true return {_text(value)}")

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:
        print(f"{trial}: failed; see {trial.local_path}")


def varied(space: dict[str, Any], prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """The paths of the samplers in a nested dictionary of settings."""
    paths = []
    for name, value in space.items():
        if isinstance(value, Domain):
            paths.append((*prefix, name))
        elif isinstance(value, dict):
            paths += varied(value, (*prefix, str(name)))
    return paths


def _print(results: tune.ResultGrid, paths: list[tuple[str, ...]]) -> None:
    table = Table(title="trials, best first")
    table.add_column("true return", justify="right")
    table.add_column("held-out accuracy", justify="right")
    for path in paths:
        table.add_column(".".join(path).replace("_config", ""), justify="right")
    table.add_column("folder")
    rows = []
    for result in results:
        metrics = result.metrics or {}
        value = _at(metrics, ("env_runners", "episode_return_mean"))
        accuracy = _at(metrics, (PREFERENCES, "round", "held_out_accuracy"))
        settings = [_text(_at(result.config, path)) for path in paths]
        outcome = "failed" if result.error else _text(value)
        rows.append(
            (float("-inf") if value is None else value, [outcome, _text(accuracy), *settings, Path(result.path).name])
        )
    for _, row in sorted(rows, key=lambda row: -row[0]):
        table.add_row(*row)
    Console().print(table)


def _at(values: Any, path: tuple[str, ...]) -> Any:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    return values


def _text(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
