"""The sweep report: one self-contained page about a sweep, made from the ``trials.json`` in its folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from rlhf_ray.runs.report import plots, summary
from rlhf_ray.runs.report.pages import render

Trials = Sequence[dict[str, Any]]
"""Trials as `rlhf_ray.sweeps.results` writes them, best first."""


def write_sweep_report(folder: Path) -> Path:
    """Write ``report.html`` to a sweep's folder.

    Returns:
        The path of the page.

    Raises:
        OSError: there is no ``trials.json``.
    """
    sweep: dict[str, Any] = json.loads((folder / "trials.json").read_text())
    page = folder / "report.html"
    page.write_text(_page(sweep, folder.name), encoding="utf-8")
    return page


def _page(sweep: dict[str, Any], name: str) -> str:
    repeated = sweep.get("configurations", [])  # an older sweep has none
    ranked = repeated or sweep["trials"]
    best = next((each for each in ranked if each["name"] == sweep["best"]), None)
    plan = sweep["plan"]
    return render(
        "sweep.html",
        sweep=sweep,
        plan=plan,
        name=name,
        best=best,
        ranked=ranked,
        repeated=bool(repeated),
        reading=_reading(sweep, best),
        settings=[
            (setting_name, _description(space), setting_plot(ranked, setting_name, space, sweep))
            for setting_name, space in plan["space"].items()
        ],
        curves=curves_plot(sweep["trials"], sweep),
        seed_curves=None if not sweep["seeds"] else curves_plot(sweep["seeds"], sweep | {"best": None}, "seeds"),
        changes=plan["schedule"] in ("pbt", "pb2"),
    )


def _reading(sweep: dict[str, Any], best: dict[str, Any] | None) -> str:
    """Summarise the result in one or two sentences."""
    if best is None:
        return "No trial ran long enough to be measured."
    trials = sweep["trials"]
    counts = {status: sum(trial["status"] == status for trial in trials) for status in ("stopped early", "failed")}
    aside = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    repeated = sweep.get("configurations")
    of = f"{_count(len(repeated), 'configuration')}" if repeated else f"{_count(len(trials), 'trial')}"
    mean = f" on average over {_count(len(best['each']), 'seed')}" if repeated else ""
    text = (
        f"The best of {of} reached a {sweep['objective']} of {summary.number(best['objective'])}{mean}"
        f"{f' ({aside})' if aside else ''}, in a total of {sum(trial['env_steps'] for trial in trials):,} env steps."
    )
    over = sweep["over_seeds"]
    if over is not None:
        text += f" With {_count(len(over['each']), 'other seed')}, its settings reach {summary.number(over['mean'])}"
        if over["interval_95"] is not None:
            low, high = (summary.number(end) for end in over["interval_95"])
            text += f" (95 % interval of the mean: {low} to {high})"
        text += "."
    return text


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _description(space: dict[str, Any]) -> str:
    if "values" in space:
        return "one of " + ", ".join(summary.setting(value) for value in space["values"])
    if "low" in space:
        return f"{summary.setting(space['low'])} to {summary.setting(space['high'])}{', logarithmic' if space['log'] else ''}"
    return ""


def setting_plot(trials: Trials, name: str, space: dict[str, Any], sweep: dict[str, Any]) -> Markup | None:
    """Plot the objective of each trial against its value of the setting ``name``."""
    shown = [trial for trial in trials if trial["objective"] is not None and trial["settings"].get(name) is not None]
    if not shown:
        return None
    values = [trial["settings"][name] for trial in shown]
    numbers = "values" not in space and all(plots.is_number(value) for value in values)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        if numbers:
            places = [float(value) for value in values]
            if space.get("log"):
                axes.set_xscale("log")
        else:
            kinds = [summary.setting(value) for value in space.get("values", [])]
            kinds += sorted({summary.setting(value) for value in values} - set(kinds))
            # Jitter, so that trials with equal values are distinguishable.
            places = [kinds.index(summary.setting(value)) + 0.12 * ((i % 5) - 2) / 2 for i, value in enumerate(values)]
            axes.set_xticks(range(len(kinds)), kinds)
            axes.set_xlim(-0.6, len(kinds) - 0.4)
        for trial, place in zip(shown, places, strict=True):
            _dot(axes, place, trial, sweep["best"])
        axes.set(xlabel=name, ylabel=sweep["objective"])
        axes.margins(x=0.06, y=0.12)

    return plots.render(f"setting-{name}", f"{sweep['objective']} of each trial against {name}.", (360, 190), draw)


def _dot(axes: Axes, place: float, trial: dict[str, Any], best: str | None) -> None:
    """Draw a trial: filled if it ran to the end, else an outline; the best one larger and in its own colour."""
    colour = plots.LEARNED if trial["name"] == best else plots.TRUE
    whole = trial["status"] == "finished"
    axes.plot(
        [place],
        [trial["objective"]],
        marker="o",
        linestyle="",
        markersize=8 if trial["name"] == best else 5.5,
        markerfacecolor=colour if whole else "none",
        markeredgecolor=colour,
        markeredgewidth=1.2,
    )


def curves_plot(trials: Trials, sweep: dict[str, Any], name: str = "curves") -> Markup | None:
    """Plot the objective of each trial over its environment steps, the best one in its own colour."""
    shown = [trial for trial in trials if trial["curve"]]
    if not shown:
        return None

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        for trial in reversed(shown):  # draw the best last, on top
            x, y = np.array(trial["curve"]).T
            best = trial["name"] == sweep["best"]
            colour = plots.LEARNED if best else plots.TRUE
            axes.plot(x, y, color=colour, linewidth=2.2 if best else 1.0, alpha=1.0 if best else 0.55)
            axes.plot(x[-1:], y[-1:], color=colour, marker="o", markersize=4 if best else 3, linestyle="")
        axes.set_ylabel(sweep["objective"])
        plots.steps_axis(axes)

    return plots.render(name, f"{sweep['objective']} of each trial over environment steps.", (360, 260), draw)
