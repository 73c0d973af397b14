"""What a sweep leaves behind: its trials for programs, the best settings for `rlhf-ray train`, a list and a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.metrics import share_of
from rlhf_ray.settings import Experiment, save_experiment
from rlhf_ray.study.curves import BLUE, ORANGE, CurvePanel, draw_curves
from rlhf_ray.study.page import Screen, render
from rlhf_ray.study.plots import png
from rlhf_ray.study.section import Check, Picture, Section, Table, figure
from rlhf_ray.sweeps.results import NAMES, SweepOutcome, is_known
from rlhf_ray.sweeps.space import apply

BEST, TRIALS = "best.json", "trials.json"


def conclude(outcome: SweepOutcome, experiment: Experiment, folder: Path, say: Callable[[str], None]) -> None:
    """Write ``trials.json``, ``best.json`` and ``report.html`` to ``folder``, and ``say`` the list of the trials."""
    values = outcome.to_json()
    write_text(folder / TRIALS, json.dumps(values, indent=2) + "\n")
    if outcome.best is not None:
        save_experiment(apply(experiment, outcome.best["settings"]), folder / BEST)
    write_text(folder / "report.html", page_of(outcome, folder.name, values["command"]))
    say(f"{NAMES[outcome.plan['metric']]} of the trials, best first; those stopped early come last")
    for place, trial in enumerate(outcome.ranked, 1):
        say("\n".join(_listed(outcome, place, trial)))
    if (over := outcome.over_seeds) is not None:
        say(f"the best settings with {len(over['each'])} other seeds: {_text(over['mean'])}{_between(over)}")
    if not outcome.complete:
        say(f"not all trials are done; resume with: rlhf-ray tune --resume {folder}")
    if outcome.best is not None:
        say(f"train with the best settings: rlhf-ray train {folder / BEST}")
    say(f"report: {folder / 'report.html'}")


def _listed(outcome: SweepOutcome, place: int, trial: dict[str, Any]) -> Iterator[str]:
    """Yield what to say of a trial or configuration: its objective, its settings."""
    best = f" (best, in {BEST})" if trial is outcome.best else ""
    said = [trial["name"], trial["status"], f"{trial['env_steps']:,} steps"]
    if outcome.configurations:
        said.append(f"mean of {len(trial['each'])} seeds: {', '.join(map(_text, trial['each']))}")
    if is_known(trial["held_out_accuracy"]):
        said.append(f"held-out accuracy {share_of(trial['held_out_accuracy'], trial.get('held_out_decided'))}")
    yield f"{place}. {_text(trial['objective'])}{_between(trial)}{best}: {', '.join(said)}"
    yield from (f"     {name} {_text(value)}" for name, value in trial["settings"].items())


def _between(trial: dict[str, Any]) -> str:
    ends = trial.get("interval_95")
    return f" (95 % interval {_text(ends[0])} to {_text(ends[1])})" if ends else ""


def page_of(outcome: SweepOutcome, name: str, command: str) -> str:
    """Return the page of the sweep in the folder ``name``: the best and what it is the best of, trials, curves, each setting."""
    plan, section = outcome.plan, section_of(outcome)
    experiment = plan["experiment"]
    steps, environment = figure(experiment["total_env_steps"]), experiment["environment"]
    under = f"{environment} · {plan['trials']} trials of {steps} environment steps"
    curves = [picture for picture in section.pictures if picture.name.startswith("curves")]
    heading = plan["name"] or environment
    screen = Screen("sweep report", heading, under, section.checks, tables=section.tables, pictures=curves)
    about = {"folder": name, "command": command, "search": plan["search"], "schedule": plan["schedule"]}
    return render(about, [section], screen)


def checks_of(outcome: SweepOutcome) -> Iterator[Check]:
    """Yield what is known of the best settings, and what the best is the best of."""
    best, over, repeated = outcome.best, outcome.over_seeds, bool(outcome.configurations)
    objective = NAMES[outcome.plan["metric"]]
    if not outcome.complete:
        resume = "Some have not finished: resume with `rlhf-ray tune --resume` and this folder."
        yield Check("all trials ended", None, remedy=resume)
    kind = "configurations" if repeated else "trials"
    what = f"{objective} of the best of {len(outcome.ranked)} {kind}"
    if best is None:
        yield Check(what, False, remedy="No trial ran long enough to be measured.")
        return
    luck = "The best of several trials is partly luck: `--seeds 5` trains its settings with other seeds."
    lucky = over is None and not repeated
    low, high = best.get("interval_95") or (None, None)
    yield Check(what, None if lucky else True, best["objective"], low, high, remedy=luck if lucky else "")
    if over is not None:
        name = f"{objective} of its settings with {len(over['each'])} other seeds"
        yield Check(name, True, over["mean"], *(over["interval_95"] or ()))
    whole = [each for each in outcome.ranked if each["status"] == "finished"]
    cut = [each["objective"] for each in outcome.ranked if each not in whole and each["objective"] is not None]
    ahead = f"One that was stopped was ahead, at {figure(max(cut))}." if cut and max(cut) > best["objective"] else ""
    name = f"of {len(outcome.ranked)} {kind} ran their full budget, and come first"
    yield Check(name, True if whole else None, len(whole), remedy=ahead)


def section_of(outcome: SweepOutcome) -> Section:
    """Return what is known of the trials."""
    plan = outcome.plan
    meaning = (
        "the mean log-likelihood, in nats, of held-out comparisons under the reward model; −0.69 is chance. It measures "
        "how well the model predicts answers, not how well the agent performs."
    )
    if plan["metric"] == "return":
        meaning = (
            f"the mean true return of the deterministic policy over {plan['evaluation_episodes']} separate episodes, with the same "
            "initial states for all trials."
        )
    notes = [
        f"The objective, {NAMES[plan['metric']]}, is {meaning}",
        "Train with the best settings: `rlhf-ray train best.json`.",
    ]
    if (repeat := plan.get("repeat", 1)) > 1:
        each = (
            f"Each row is one draw of settings: the objective is the mean over {repeat} seeds, with its 95 % interval."
        )
        notes.insert(0, each)
    if plan["schedule"] in ("pbt", "pb2"):
        notes.append("Population-based training changes settings during a trial: these are the final ones.")
    return Section("trials", "Trials", list(checks_of(outcome)), (), [_table(outcome)], list(_pictures(outcome)), notes)


def _table(outcome: SweepOutcome) -> Table:
    space = list(outcome.plan["space"])
    rows = []
    for place, trial in enumerate(outcome.ranked, 1):
        objective = None if trial["objective"] is None else figure(float(trial["objective"]))
        if ends := trial.get("interval_95"):
            objective = f"{objective} [{figure(ends[0])}, {figure(ends[1])}]"
        mark = f"{place}, the best" if trial is outcome.best else str(place)
        status = f"{trial['status']}: {trial['error']}" if trial["error"] else trial["status"]
        settings = [_text(trial["settings"].get(name)) for name in space]
        rows.append([mark, objective, trial["env_steps"], trial["held_out_accuracy"], status, *settings])
    return Table(["trial", "objective", "env steps", "held-out accuracy", "status", *space], rows, "Trials, best first")


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(map(str, value)) if isinstance(value, list) else "–" if value is None else str(value)


def _pictures(outcome: SweepOutcome) -> Iterator[Picture]:
    best = "" if outcome.best is None else outcome.best["name"]
    about = "All measurements of each trial; the best in orange. A dot marks the end of a trial."
    curves = (
        ("trials", outcome.trials, best, about),
        ("seeds", outcome.seeds or [], "", "The best settings, trained with other seeds."),
    )
    for kind, trials, marked, caption in curves:
        if lines := {trial["name"]: trial["curve"] for trial in trials if trial["curve"]}:
            panel = CurvePanel(NAMES[outcome.plan["metric"]], lines, marked=marked)
            yield Picture(f"curves_of_{kind}", draw_curves([panel], size=(480, 290)), caption)
    for name, space in outcome.plan["space"].items():
        if (image := setting_plot(outcome, name, space)) is not None:
            drawn = f" (one of {', '.join(map(str, space['values']))})" if "values" in space else ""
            if "low" in space:
                drawn = f" ({space['low']:.3g} to {space['high']:.3g}{', logarithmic' if space.get('log') else ''})"
            caption = (
                f"Objective against {name}{drawn}. One dot per trial: filled if it ran its full budget, outlined if it was stopped "
                "early; the best trial in orange. Several settings vary at once, so one alone does not explain a dot's height."
            )
            yield Picture(f"setting_{name}", image, caption)


def setting_plot(outcome: SweepOutcome, name: str, space: dict[str, Any]) -> bytes | None:
    """Plot the objective of each trial against its value of the setting ``name``; None without measurements."""
    shown = [t for t in outcome.ranked if t["objective"] is not None and t["settings"].get(name) is not None]
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
        best, whole = trial is outcome.best, trial["status"] == "finished"
        colour = ORANGE if best else BLUE
        axes.plot(value, trial["objective"], "o", color=colour, mfc=colour if whole else "none", ms=8 if best else 5.5)
    axes.set(xlabel=name, ylabel=NAMES[outcome.plan["metric"]])
    axes.margins(x=0.06, y=0.12)
    return png(drawing)
