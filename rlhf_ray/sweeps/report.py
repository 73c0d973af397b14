"""The sweep report: one self-contained page about a sweep, made from the ``trials.json`` in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from rlhf_ray.data.atomic import write_text
from rlhf_ray.study.page import figure, render
from rlhf_ray.study.plots import BLUE, ORANGE, png
from rlhf_ray.study.run import run_here
from rlhf_ray.study.section import Picture, Section, Statement, Table
from rlhf_ray.study.step import Step, StepContext
from rlhf_ray.study.verdict import reconcile
from rlhf_ray.study.words import Words, number

WORDS = Words(__file__)

Trials = Sequence[dict[str, Any]]
"""Trials as `rlhf_ray.sweeps.results` writes them, best first."""


@dataclass(frozen=True)
class Sweep:
    """The ``trials.json`` of a sweep."""

    values: dict[str, Any]

    seed, effort, digest = 0, 1.0, ""
    """Nothing is drawn or kept."""

    @cached_property
    def ranked(self) -> Trials:
        """What the sweep compares: configurations, if trials are repeated, else trials."""
        ranked: Trials = self.values.get("configurations") or self.values["trials"]
        return ranked

    @property
    def best(self) -> dict[str, Any] | None:
        """The best of them, if one was measured."""
        return next((trial for trial in self.ranked if trial["name"] == self.values["best"]), None)


def write_sweep_report(folder: Path) -> Path:
    """Write ``report.html`` to a sweep's folder, whose ``trials.json`` has the same for programs.

    Returns:
        The path of the page.

    Raises:
        OSError: there is no ``trials.json``.
    """
    sweep = Sweep(json.loads((folder / "trials.json").read_text()))
    plan = sweep.values["plan"]
    experiment = plan["experiment"]
    about = {
        "sweep": plan["name"] or experiment["environment"],
        "environment": experiment["environment"],
        "environment_steps": experiment["total_env_steps"],
        "folder": folder.name,
        "command": sweep.values["command"],
        **{name: plan[name] for name in ("trials", "search", "schedule")},
    }
    sections = run_here([STEP], sweep)
    page = folder / "report.html"
    template = Path(__file__).parent / "sweep.html"
    write_text(page, render(template, about, sections, verdict=reconcile(sections, ("outcome",))))
    return page


def run(context: StepContext[Sweep]) -> Section:
    """Compare the trials."""
    sweep = context.subject
    return WORDS.section(list(_statements(sweep)), (), [_table(sweep)], list(_pictures(sweep)))


def _statements(sweep: Sweep) -> Iterator[Statement]:
    values, best, trials, plan = sweep.values, sweep.best, sweep.values["trials"], sweep.values["plan"]
    yield WORDS.statement(
        "objective",
        objective=values["objective"],
        repeat=plan.get("repeat", 1),
        metric=plan["metric"],
        episodes=plan["evaluation_episodes"],
    )
    if not values["complete"]:
        yield WORDS.statement("incomplete")
    if best is None:
        yield WORDS.statement("unmeasured")
        return
    states = [trial["status"] for trial in trials]
    counts = {state: states.count(state) for state in ("stopped early", "failed")}
    repeated, over = len(values.get("configurations") or ()), values["over_seeds"]
    whole = [each["objective"] for each in sweep.ranked if each["status"] == "finished"]
    cut = [each["objective"] for each in sweep.ranked if each["status"] != "finished" and each["objective"] is not None]
    yield WORDS.statement(
        "best",
        3.0,
        best=best,
        objective=values["objective"],
        trials=len(trials),
        repeated=repeated,
        of=len(sweep.ranked),
        whole=len(whole),
        more=max(cut) if whole and cut and max(cut) > best["objective"] else None,
        aside=[f"{count} {state}" for state, count in counts.items() if count],
        env_steps=sum(trial["env_steps"] for trial in trials),
    )
    if over is not None:
        yield WORDS.statement("seeds", 2.0, over=over)
    changes = plan["schedule"] in ("pbt", "pb2")
    yield WORDS.statement("train", 1.0, changes=changes, lucky=not over and not repeated)


def _table(sweep: Sweep) -> Table:
    plan = sweep.values["plan"]
    rows = []
    for place, trial in enumerate(sweep.ranked, 1):
        objective = None if trial["objective"] is None else number(trial["objective"])
        if ends := trial.get("interval_95"):
            objective = f"{objective} [{number(ends[0])}, {number(ends[1])}]"
        mark = f"{place}, the best" if trial["name"] == sweep.values["best"] else str(place)
        status = f"{trial['status']}: {trial['error']}" if trial["error"] else trial["status"]
        settings = [_text(trial["settings"].get(name)) for name in plan["space"]]
        rows.append([mark, objective, trial["env_steps"], trial["held_out_accuracy"], status, *settings])
    return WORDS.table("trials", rows, list(plan["space"]))


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else figure(value)


def _pictures(sweep: Sweep) -> Iterator[Picture]:
    values = sweep.values
    for name, space in values["plan"]["space"].items():
        if (image := setting_plot(sweep, name, space)) is not None:
            key = "values" if "values" in space else "range" if "low" in space else ""
            caption = WORDS.text("setting", name=name, drawn=WORDS.text(key, space=space) if key else "")
            yield Picture(f"setting_{name}", image, caption)
    if curves := [trial for trial in values["trials"] if trial["curve"]]:
        yield WORDS.picture("curves", curves_plot(curves, values["best"], values["objective"]))
    if curves := [trial for trial in values["seeds"] or () if trial["curve"]]:
        seeds = len(values["over_seeds"]["each"]) if values["over_seeds"] else len(curves)
        yield WORDS.picture("seed_curves", curves_plot(curves, None, values["objective"]), seeds=seeds)


def setting_plot(sweep: Sweep, name: str, space: dict[str, Any]) -> bytes | None:
    """Plot the objective of each trial against its value of the setting ``name``; None without measurements."""
    shown = [t for t in sweep.ranked if t["objective"] is not None and t["settings"].get(name) is not None]
    if not shown:
        return None
    drawing = Figure(figsize=(4.8, 3), layout="constrained")
    axes = drawing.subplots()
    values = [trial["settings"][name] for trial in shown]
    if "values" not in space and all(isinstance(value, int | float) for value in values):
        axes.set_xscale("log" if space.get("log") else "linear")
    else:
        kinds = list(dict.fromkeys(_text(value) for value in [*space.get("values", []), *values]))
        # Jitter, so that trials with equal values are distinguishable.
        values = [kinds.index(_text(value)) + 0.12 * ((i % 5) - 2) / 2 for i, value in enumerate(values)]
        axes.set_xticks(range(len(kinds)), kinds)
    for trial, value in zip(shown, values, strict=True):
        best, whole = trial["name"] == sweep.values["best"], trial["status"] == "finished"
        colour = ORANGE if best else BLUE
        axes.plot(value, trial["objective"], "o", color=colour, mfc=colour if whole else "none", ms=8 if best else 5.5)
    axes.set(xlabel=name, ylabel=sweep.values["objective"])
    axes.margins(x=0.06, y=0.12)
    return png(drawing)


def curves_plot(trials: Trials, best: str | None, objective: str) -> bytes:
    """Plot the objective of each trial over its environment steps, the best one in its own colour."""
    drawing = Figure(figsize=(4.8, 3.5), layout="constrained")
    axes = drawing.subplots()
    for trial in reversed(trials):  # draw the best last, on top
        steps, values = np.array(trial["curve"]).T
        colour, width = (ORANGE, 2.2) if trial["name"] == best else (BLUE, 1.0)
        axes.plot(steps, values, "-o", color=colour, linewidth=width, markersize=4, markevery=[-1])
    axes.set(xlabel="environment steps", ylabel=objective)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    return png(drawing)


STEP = Step(WORDS.name, WORDS.title, run)
