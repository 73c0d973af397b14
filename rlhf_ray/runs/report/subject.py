"""The contents of a run's folder, as far as they can be read."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.queries.machine import Kept
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.runs.distances import RewardDistances
from rlhf_ray.runs.folder import RunFolder, read_metrics
from rlhf_ray.runs.reward_scores import RewardScores, newest_of_annotators, score_reward
from rlhf_ray.store import PreferenceStore
from rlhf_ray.store.answers import Presses, doubtful
from rlhf_ray.study.figures import figures_from


@dataclass
class Run:
    """The contents of a run folder; None or empty for missing parts.

    Attributes:
        settings: as written: the run may be of an older or newer version than these settings.
        presses: which sides each annotator chose, as shown to them.
        doubts: the answers that are more likely wrong than right, with how likely (`doubtful`); the likeliest first.
        machine: what a machine that answered was asked.
        unreadable: unreadable files, each with the reason.
    """

    name: str
    settings: dict[str, Any] = field(default_factory=dict)
    about: dict[str, Any] = field(default_factory=dict)
    rows: list[dict[str, Any]] = field(default_factory=list)
    result: dict[str, Any] = field(default_factory=dict)
    comparisons: Comparisons | None = None
    presses: Mapping[str, Presses] = field(default_factory=dict)
    reward: RewardEnsemble | None = None
    scores: RewardScores | None = None
    distances: RewardDistances | None = None
    doubts: Sequence[tuple[float, dict[str, Any]]] = ()
    machine: Kept | None = None
    unreadable: list[str] = field(default_factory=list)

    def named(self, name: str) -> Any:
        """Return the environment or the seed, if any file has it; else None."""
        return self.settings.get(name, self.result.get(name))

    def number(self, name: str, metric: str | None = None) -> float | None:
        """Return a number from the result, or else the latest value of ``metric`` (default: ``name``)."""
        value = self.result.get(name)
        return value if is_number(value) else self.latest(metric or name)

    def latest(self, metric: str) -> float | None:
        """Return the last numeric value of a metric."""
        return next((row[metric] for row in reversed(self.rows) if is_number(row.get(metric))), None)

    def agent(self, agent: str, name: str) -> float | None:
        """Return a number from the result for an agent: random, trained, reference."""
        value = part(self.result, agent).get(name)
        return value if is_number(value) else None


def is_number(value: object) -> bool:
    """Whether ``value`` is a finite number (and not a bool)."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def part(values: dict[str, Any], name: str) -> dict[str, Any]:
    """Return an object in a file that users may have edited; empty if it is none."""
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def read_numbers(folder: RunFolder) -> Run:
    """Read settings, metrics and outcome, as far as they exist and are readable. Imports none of the modules that they name."""
    run = Run(folder.path.name)
    read = partial(_read, folder, run)
    run.settings = read(folder.config, _read_object) or {}
    run.about = read(folder.run, _read_object) or {}
    run.rows = read(folder.metrics, _read_rows) or []
    run.result = read(folder.result, _read_object) or {}
    run.machine = read(folder.machine, Kept)
    return run


def read_run(folder: RunFolder) -> Run:
    """Read everything in ``folder`` that exists and is readable."""
    run = read_numbers(folder)
    read = partial(_read, folder, run)
    # Opening a folder that is not a store would create one.
    manifest = folder.preferences / "store.json"
    run.comparisons = read(manifest, lambda path: PreferenceStore(path.parent).load())
    run.presses = read(manifest, lambda path: PreferenceStore(path.parent).presses()) or {}
    run.reward = read(folder.reward_model / "reward.json", lambda path: _read_reward(path, run.comparisons))
    share, reward = part(run.settings, "preferences").get("held_out_share"), run.reward
    if run.comparisons is not None and reward is not None and isinstance(share, float):
        of = newest_of_annotators(run.rows)
        run.scores = read(manifest, lambda path: score_reward(reward, PreferenceStore(path.parent), share, *of))
    if suspicions := read(folder.checkpoints, lambda path: folder.suspicions()):
        run.doubts = read(manifest, lambda path: doubtful(PreferenceStore(path.parent).events(), suspicions)) or ()
    run.distances = read(folder.distances, lambda path: figures_from(RewardDistances, _read_object(path)))
    return run


def _read(folder: RunFolder, run: Run, path: Path, load: Callable[[Path], Any]) -> Any:
    """Load ``path`` in ``folder``; None if it is missing, or unreadable, which ``run`` then notes."""
    if not path.exists():
        return None
    try:
        return load(path)
    except Exception as error:  # one bad part must not prevent a report on the others
        run.unreadable.append(f"{path.relative_to(folder.path)}: {error}")
        return None


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
    reward = RewardEnsemble.load(path.parent)
    if comparisons is not None:
        reward.fragment_returns(comparisons.pairs.left[:1])  # raises for a reward model of another environment
    return reward
