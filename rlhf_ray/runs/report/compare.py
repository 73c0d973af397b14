"""Several runs beside each other: outcome, labels, settings that differ, and the learning curves in one picture."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.metrics import share_of
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.runs.report.steps.learning import points
from rlhf_ray.runs.report.steps.values import leaves, text_of
from rlhf_ray.runs.report.subject import Run, part, read_numbers
from rlhf_ray.study.curves import CurvePanel, draw_curves
from rlhf_ray.study.page import Screen, render
from rlhf_ray.study.section import Picture, Table

CURVE = "true_return_mean"
"""Metric of the curves: the mean true return of the episodes that ended in an iteration of training."""

ROWS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "environment": lambda run: run["environment"],
    "seed": lambda run: run["seed"],
    "state": lambda run: run["state"],
    "true return": lambda run: measured(run),
    "of random actions": lambda run: run["random_return_mean"],
    "in training": lambda run: run["training_return"],
    "labels": lambda run: run["comparisons"],
    "held-out accuracy": lambda run: accuracy(run),
    "env steps": lambda run: run["env_steps"],
}
"""What the table shows of each run, before the settings that differ."""


def compare(paths: Sequence[Path | str]) -> list[dict[str, Any]]:
    """Read runs, which may be unfinished or of others; imports no module that they name.

    Args:
        paths: run folders.

    Returns:
        For each run: ``run`` (its path as given), ``environment``, ``seed``, ``state`` (finished, interrupted, or unfinished, as a
        run that still trains), ``true_return_mean`` and ``true_return_std`` over ``episodes`` of the evaluation at the end,
        ``random_return_mean``, ``normalised`` and ``success_rate`` of the same (None if not known), ``training_return`` (the last
        in training), ``comparisons``, ``skipped``, ``held_out_accuracy`` on ``held_out_decided`` answers, ``env_steps``,
        ``settings`` (those that differ between the runs, by name; None where a run lacks one), ``curve`` (environment steps and
        true return in training) and ``unreadable`` (files that can't be read, and why).

    Raises:
        SettingError: a path is not a run folder.
    """
    runs = [read_numbers(RunFolder.open(path)) for path in paths]
    settings = [{k: v for k, v in leaves(run.settings) if k not in ("environment", "seed", "format")} for run in runs]
    names = dict.fromkeys(name for each in settings for name in each)
    differ = [name for name in names if any(each.get(name) != settings[0].get(name) for each in settings)]
    return [
        _numbers(run) | {"run": str(path), "settings": {name: each.get(name) for name in differ}}
        for path, run, each in zip(paths, runs, settings, strict=True)
    ]


def _numbers(run: Run) -> dict[str, Any]:
    evaluated = run.about.get("finished") is not None
    agent = "reference" if part(run.about, "options").get("true_reward") else "trained"
    of_agent = ("true_return_mean", "true_return_std", "episodes", "success_rate")
    of_run = ("normalised", "comparisons", "skipped", "held_out_accuracy", "held_out_decided", "env_steps")
    return {
        "environment": run.named("environment"),
        "seed": run.named("seed"),
        "state": ("interrupted" if run.about.get("interrupted") else "finished") if evaluated else "unfinished",
        **{name: run.agent(agent, name) for name in of_agent},
        "random_return_mean": run.agent("random", "true_return_mean"),
        **{name: run.number(name) for name in of_run},
        "training_return": run.latest(CURVE),
        "curve": points(run.rows, CURVE).tolist(),
        "unreadable": run.unreadable,
    }


def table_of(runs: Sequence[dict[str, Any]]) -> Table:
    """Return one column for each run that `compare` read; a row for each setting that differs."""
    rows = [[name, *map(shown, runs)] for name, shown in ROWS.items()]
    for name in runs[0]["settings"]:
        values = [run["settings"][name] for run in runs]
        rows.append([name, *(text_of(value) if isinstance(value, list | str) else value for value in values)])
    caption = "True return: mean ± standard deviation (episodes) of the evaluation at the end"
    return Table(["", *(run["run"] for run in runs)], rows, caption)


def measured(run: dict[str, Any]) -> str | None:
    """Return the true return of the evaluation at the end as text; None without one."""
    mean, std, episodes = (run[name] for name in ("true_return_mean", "true_return_std", "episodes"))
    return None if mean is None or std is None else f"{mean:.1f} ± {std:.1f} ({episodes})".replace("-", "−")


def accuracy(run: dict[str, Any]) -> str | None:
    """Return the held-out accuracy as text, with the number of answers; None without one."""
    share, answers = run["held_out_accuracy"], run["held_out_decided"]
    return None if share is None else share_of(share, None if answers is None else int(answers))


def curves_of(runs: Sequence[dict[str, Any]]) -> Picture:
    """Draw the true return in training over environment steps: one panel for each environment, one curve for each run."""
    lines: dict[str, dict[str, Any]] = {}
    for run in runs:
        lines.setdefault(str(run["environment"]), {})[run["run"]] = run["curve"]
    panels = [CurvePanel("true return in training", of, title=environment) for environment, of in lines.items()]
    caption = "The true return in training, which the agent does not see."
    return Picture("curves", draw_curves(panels, size=(800, 320)), caption)


def write_comparison(runs: Sequence[dict[str, Any]], page: Path) -> None:
    """Write a page with the table and the curves of the runs that `compare` read."""
    heading = f"Comparison of {len(runs)} runs"
    screen = Screen("comparison", heading, tables=[table_of(runs)], pictures=[curves_of(runs)])
    write_text(page, render({"runs": len(runs)}, [], screen))
