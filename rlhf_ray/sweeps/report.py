"""The sweep report: one self-contained page about a sweep, made from the ``trials.json`` in its folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rlhf_ray.data.atomic import write_text
from rlhf_ray.study.page import Screen, render
from rlhf_ray.study.plots import BLUE, ORANGE, CurvePanel, draw_curves, png
from rlhf_ray.study.section import Check, Picture, Section, Table, figure


@dataclass(frozen=True)
class Sweep:
    """The ``trials.json`` of a sweep."""

    values: dict[str, Any]

    @cached_property
    def ranked(self) -> Sequence[dict[str, Any]]:
        """What the sweep compares, best first: configurations, if trials are repeated, else trials."""
        ranked: Sequence[dict[str, Any]] = self.values.get("configurations") or self.values["trials"]
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
        "folder": folder.name,
        "command": sweep.values["command"],
        "search": plan["search"],
        "schedule": plan["schedule"],
    }
    section = section_of(sweep)
    steps = figure(experiment["total_env_steps"])
    under = f"{experiment['environment']} · {plan['trials']} trials of {steps} environment steps"
    curves = [picture for picture in section.pictures if picture.name.startswith("curves")]
    heading = plan["name"] or experiment["environment"]
    screen = Screen("sweep report", heading, under, section.checks, tables=section.tables, pictures=curves)
    page = folder / "report.html"
    write_text(page, render(about, [section], screen))
    return page


def checks_of(sweep: Sweep) -> Iterator[Check]:
    """Yield what is known of the best settings, and what the best is the best of."""
    values, best, over = sweep.values, sweep.best, sweep.values["over_seeds"]
    repeated = bool(values.get("configurations"))
    if not values["complete"]:
        resume = "Some have not finished: resume with `rlhf-ray tune --resume` and this folder."
        yield Check("all trials ended", None, remedy=resume)
    kind = "configurations" if repeated else "trials"
    what = f"{values['objective']} of the best of {len(sweep.ranked)} {kind}"
    if best is None:
        yield Check(what, False, remedy="No trial ran long enough to be measured.")
        return
    luck = "The best of several trials is partly luck: `--seeds 5` trains its settings with other seeds."
    lucky = over is None and not repeated
    low, high = best.get("interval_95") or (None, None)
    yield Check(what, None if lucky else True, best["objective"], low, high, remedy=luck if lucky else "")
    if over is not None:
        name = f"{values['objective']} of its settings with {len(over['each'])} other seeds"
        yield Check(name, True, over["mean"], *(over["interval_95"] or (None, None)))
    whole = [each for each in sweep.ranked if each["status"] == "finished"]
    cut = [each["objective"] for each in sweep.ranked if each not in whole and each["objective"] is not None]
    ahead = [f"One that was stopped was ahead, at {figure(max(cut))}."] if cut and max(cut) > best["objective"] else []
    name = f"of {len(sweep.ranked)} {kind} ran their full budget, and come first"
    yield Check(name, True if whole else None, len(whole), remedy="".join(ahead))


def section_of(sweep: Sweep) -> Section:
    """Return what is known of the trials."""
    values, plan = sweep.values, sweep.values["plan"]
    repeat = plan.get("repeat", 1)
    if plan["metric"] == "return":
        meaning = (
            f"the mean true return of the deterministic policy over {plan['evaluation_episodes']} separate episodes, with the same "
            "initial states for all trials."
        )
    else:
        meaning = (
            "the mean log-likelihood, in nats, of held-out comparisons under the reward model; −0.69 is chance. It measures "
            "how well the model predicts answers, not how well the agent performs."
        )
    each = f"Each row is one draw of settings: the objective is the mean over {repeat} seeds, with its 95 % interval. "
    changes = " Population-based training changes settings during a trial: these are the final ones."
    notes = [
        f"{each if repeat > 1 else ''}The objective, {values['objective']}, is {meaning}",
        f"Train with the best settings: `rlhf-ray train best.json`.{changes if plan['schedule'] in ('pbt', 'pb2') else ''}",
    ]
    return Section("trials", "Trials", list(checks_of(sweep)), (), [_table(sweep)], list(_pictures(sweep)), notes)


def _table(sweep: Sweep) -> Table:
    space = list(sweep.values["plan"]["space"])
    rows = []
    for place, trial in enumerate(sweep.ranked, 1):
        objective = None if trial["objective"] is None else figure(float(trial["objective"]))
        if ends := trial.get("interval_95"):
            objective = f"{objective} [{figure(ends[0])}, {figure(ends[1])}]"
        mark = f"{place}, the best" if trial["name"] == sweep.values["best"] else str(place)
        status = f"{trial['status']}: {trial['error']}" if trial["error"] else trial["status"]
        settings = [_text(trial["settings"].get(name)) for name in space]
        rows.append([mark, objective, trial["env_steps"], trial["held_out_accuracy"], status, *settings])
    return Table(["trial", "objective", "env steps", "held-out accuracy", "status", *space], rows, "Trials, best first")


def _text(value: Any) -> str:
    return " ".join(map(str, value)) if isinstance(value, list) else "–" if value is None else str(value)


def _pictures(sweep: Sweep) -> Iterator[Picture]:
    objective = sweep.values["objective"]
    captions = {
        "trials": "All measurements of each trial; the best trial in orange. A dot marks the end of a trial.",
        "seeds": "The best settings, trained with other seeds.",
    }
    for kind, caption in captions.items():
        if lines := {trial["name"]: trial["curve"] for trial in sweep.values[kind] or () if trial["curve"]}:
            panel = CurvePanel(objective, lines, marked=sweep.values["best"] if kind == "trials" else "")
            yield Picture(f"curves_of_{kind}", draw_curves([panel], size=(4.8, 2.9)), caption)
    for name, space in sweep.values["plan"]["space"].items():
        if (image := setting_plot(sweep, name, space)) is not None:
            drawn = f" (one of {', '.join(map(str, space['values']))})" if "values" in space else ""
            if "low" in space:
                drawn = f" ({space['low']:.3g} to {space['high']:.3g}{', logarithmic' if space.get('log') else ''})"
            caption = (
                f"Objective against {name}{drawn}. One dot per trial: filled if it ran its full budget, outlined if it was stopped "
                "early; the best trial in orange. Several settings vary at once, so one alone does not explain a dot's height."
            )
            yield Picture(f"setting_{name}", image, caption)


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
