"""The run report: one page about one run, from the files in its folder.

The page needs nothing but itself: no script, no network, no file beside it. Its policy (``Content-Security-Policy``) forbids a
browser to ask for anything.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.runs.folder import RunFolder, read_metrics
from rlhf_ray.runs.report import plots, summary
from rlhf_ray.runs.report.clips import show_pairs
from rlhf_ray.runs.report.pages import render
from rlhf_ray.runs.report.summary import Run
from rlhf_ray.settings import Experiment, to_json
from rlhf_ray.store import PreferenceStore

PAIRS = 6
"""Compared pairs that the page shows."""

_T = TypeVar("_T")


def write_report(run: Path) -> Path:
    """Write ``report.html`` into the folder ``run`` of a run, which may be going on or broken off.

    What is missing in the folder, or cannot be read, is named on the page. Nothing else in the folder is changed.

    Returns:
        The path of the page.

    Raises:
        ValueError: the folder is not there, or holds nothing of a run.
    """
    folder = RunFolder(run)
    if not any(path.exists() for path in (folder.config, folder.run, folder.metrics, folder.result)):
        raise ValueError(
            f"{run} is no run folder: it has none of config.json, run.json, metrics.jsonl and result.json. "
            "Name the folder that the training wrote."
        )
    folder.report.write_text(_page(read_run(folder)), encoding="utf-8")
    return folder.report


def read_run(folder: RunFolder) -> Run:
    """What is in ``folder``, as far as it is there and can be read."""
    unreadable: list[str] = []

    def attempt(path: Path, load: Callable[[Path], _T]) -> _T | None:
        if not path.exists():
            return None
        try:
            return load(path)
        except Exception as error:  # whatever is wrong with one part, the report is about the others too
            unreadable.append(f"{path.relative_to(folder.path)}: {error}")
            return None

    # Opening a folder that is no store would make one of it.
    comparisons = attempt(folder.preferences / "store.json", lambda path: PreferenceStore(path.parent).load())
    return Run(
        name=folder.path.name,
        settings=attempt(folder.config, _read_object) or {},
        about=attempt(folder.run, _read_object) or {},
        rows=attempt(folder.metrics, _read_rows) or [],
        result=attempt(folder.result, _read_object),
        comparisons=comparisons,
        reward=attempt(folder.reward_model / "reward.json", lambda path: _read_reward(path.parent, comparisons)),
        unreadable=tuple(unreadable),
    )


def _read_object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    if not isinstance(value, dict):
        raise ValueError("it holds no JSON object")
    return value


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """The metrics, one row per iteration: of an iteration written twice (by a run that was resumed) the later."""
    rows = {row.get("iteration", i): row for i, row in enumerate(read_metrics(path)) if isinstance(row, dict)}
    return list(rows.values())


def _read_reward(path: Path, comparisons: Comparisons | None) -> RewardEnsemble:
    reward = RewardEnsemble.load(path)
    if comparisons is not None:
        reward.fragment_returns(comparisons.pairs.left[:1])  # fails for a model of another environment
    return reward


def _page(run: Run) -> str:
    pairs = [] if run.comparisons is None else show_pairs(run.comparisons, run.reward, PAIRS)
    return render(
        "report.html",
        run=run,
        started=summary.date(run.about.get("started")),
        status=summary.status(run),
        reading=summary.reading(run),
        warnings=summary.warnings(run),
        headline=summary.headline(run),
        facts=summary.facts(run),
        returns=plots.returns_plot(
            run.rows, *(run.agent(name, "true_return_mean") for name in ("random", "reference"))
        ),
        accuracy=plots.accuracy_plot(run.rows),
        comparisons=plots.comparisons_plot(run.rows, run.label_budget),
        scale=plots.scale_plot(run.rows),
        learner=plots.learner_plot(run.rows),
        pairs=pairs,
        alarms=summary.alarms(run),
        notes=summary.notes(run),
        metrics=summary.metrics(run),
        settings=_settings(run.settings),
        versions=_object(run.about, "versions"),
        machine=_object(run.about, "machine"),
        command=run.about.get("command"),
    )


def _object(values: dict[str, Any], name: str) -> dict[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _settings(settings: dict[str, Any]) -> list[tuple[str, list[tuple[str, str, str | None]]]]:
    """The settings by group: name, value, and the default where it is another. The experiment's own come first."""
    defaults = to_json(Experiment())
    own = {name: value for name, value in settings.items() if not isinstance(value, dict)}
    groups = {"experiment": own} | {name: value for name, value in settings.items() if isinstance(value, dict)}
    shown = []
    for group, values in groups.items():
        usual = defaults if values is own else defaults.get(group)
        usual = usual if isinstance(usual, dict) else {}
        rows = []
        for name, value in values.items():
            default = _setting_text(usual[name]) if name in usual else "unknown: not a setting of this version"
            rows.append((name, _setting_text(value), None if name in usual and usual[name] == value else default))
        if rows:
            shown.append((group, rows))
    return shown


def _setting_text(value: object) -> str:
    """A setting as the command line takes it."""
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)
