"""The run report: one page per run, made from the files in the run folder.

The page is self-contained: no scripts, no network, no other files. Its ``Content-Security-Policy`` forbids all requests.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.runs.distances import RewardDistances
from rlhf_ray.runs.folder import RunFolder, read_metrics
from rlhf_ray.runs.report import plots, summary
from rlhf_ray.runs.report.clips import Pair, show_pairs, show_those
from rlhf_ray.runs.report.pages import render
from rlhf_ray.runs.report.summary import Run
from rlhf_ray.runs.reward_scores import newest_of_annotators, score_reward
from rlhf_ray.settings import Experiment, to_json
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.answers import doubtful

PAIRS = 6
"""Number of comparisons shown on the page."""

DOUBTS = 4
"""Number of suspicious answers shown on the page."""

_T = TypeVar("_T")


def write_report(run: Path) -> Path:
    """Write ``report.html`` into the run folder ``run``. The run may be unfinished or still running.

    The page lists missing and unreadable files. Nothing else in the folder changes.

    Returns:
        The path of the page.

    Raises:
        ValueError: the folder does not exist or is not a run folder.
    """
    folder = RunFolder(run)
    if not any(path.exists() for path in (folder.config, folder.run, folder.metrics, folder.result)):
        raise ValueError(
            f"{run} is not a run folder: it has none of config.json, run.json, metrics.jsonl and result.json. "
            "Give the folder that the training wrote."
        )
    folder.report.write_text(_page(read_run(folder)), encoding="utf-8")
    return folder.report


def read_run(folder: RunFolder) -> Run:
    """Read everything in ``folder`` that exists and is readable."""
    unreadable: list[str] = []

    def attempt(path: Path, load: Callable[[Path], _T]) -> _T | None:
        if not path.exists():
            return None
        try:
            return load(path)
        except Exception as error:  # one bad part must not prevent a report on the others
            unreadable.append(f"{path.relative_to(folder.path)}: {error}")
            return None

    # Opening a folder that is not a store would create one.
    comparisons = attempt(folder.preferences / "store.json", lambda path: PreferenceStore(path.parent).load())
    settings = attempt(folder.config, _read_object) or {}
    rows = attempt(folder.metrics, _read_rows) or []
    reward = attempt(folder.reward_model / "reward.json", lambda path: _read_reward(path.parent, comparisons))
    share = _object(settings, "preferences").get("held_out_share")
    scores = None
    if comparisons is not None and reward is not None and isinstance(share, float):
        scores = attempt(
            folder.preferences / "store.json",
            lambda path: score_reward(reward, PreferenceStore(path.parent), share, *newest_of_annotators(rows)),
        )
    suspicions = attempt(folder.checkpoints, lambda path: folder.suspicions()) or {}
    doubts = None
    if suspicions:
        doubts = attempt(
            folder.preferences / "store.json",
            lambda path: doubtful(PreferenceStore(path.parent).events(), suspicions),
        )
    return Run(
        name=folder.path.name,
        settings=settings,
        about=attempt(folder.run, _read_object) or {},
        rows=rows,
        result=attempt(folder.result, _read_object),
        comparisons=comparisons,
        reward=reward,
        scores=scores,
        distances=attempt(folder.distances, lambda path: RewardDistances.from_json(_read_object(path))),
        doubts=tuple(doubts or ()),
        unreadable=tuple(unreadable),
    )


def _read_object(path: Path) -> dict[str, Any]:
    value = json.loads(path.read_text())
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value


def _read_rows(path: Path) -> list[dict[str, Any]]:
    """The metrics, one row per iteration; for an iteration written twice (by a resumed run), the later row."""
    rows = {row.get("iteration", i): row for i, row in enumerate(read_metrics(path)) if isinstance(row, dict)}
    return list(rows.values())


def _read_reward(path: Path, comparisons: Comparisons | None) -> RewardEnsemble:
    reward = RewardEnsemble.load(path)
    if comparisons is not None:
        reward.fragment_returns(comparisons.pairs.left[:1])  # raises for a reward model of another environment
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
        probe=plots.probe_plot(run.rows),
        reward_distances=plots.distances_plot(run.rows),
        reliability=None if run.scores is None else plots.reliability_plot(run.scores.curve),
        scores=summary.scores(run.scores),
        truth=summary.truth(run.scores, run.distances),
        pairs=pairs,
        doubts=_doubts(run),
        doubts_of_people=any(row["annotator_type"] == "human" for _, row in run.doubts),
        alarms=summary.alarms(run),
        notes=summary.notes(run),
        metrics=summary.metrics(run),
        settings=_settings(run.settings),
        versions=_object(run.about, "versions"),
        machine=_object(run.about, "machine"),
        command=run.about.get("command"),
    )


def _doubts(run: Run) -> list[tuple[Pair, str, float]]:
    """The likeliest wrong answers: the comparison, who answered, and how likely it is wrong."""
    if run.comparisons is None:
        return []
    found = zip(run.comparisons.pairs.ids, run.comparisons.annotators, strict=True)
    position = {key: i for i, key in enumerate(found)}
    keys = [(chance, (row["pair_id"], row["annotator"])) for chance, row in run.doubts]
    shown = [(position[key], key[1], chance) for chance, key in keys if key in position][:DOUBTS]
    if not shown:
        return []
    pairs = show_those(run.comparisons, run.reward, np.array([at for at, *_ in shown]))
    return [(pair, who, chance) for pair, (_, who, chance) in zip(pairs, shown, strict=True)]


def _object(values: dict[str, Any], name: str) -> dict[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _settings(settings: dict[str, Any]) -> list[tuple[str, list[tuple[str, str, str | None]]]]:
    """The settings by group: name, value, and the default if it differs. The experiment's own settings come first."""
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
    """Format a setting as on the command line."""
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)
