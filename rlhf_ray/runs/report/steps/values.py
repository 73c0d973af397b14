"""The run's settings, and the latest value of each metric."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlhf_ray.data.metrics import described, metric_of
from rlhf_ray.runs.metrics_files import all_metrics
from rlhf_ray.runs.report.subject import Run
from rlhf_ray.settings import Experiment, to_json
from rlhf_ray.study.section import Section, Table


def section(run: Run) -> Section:
    """List them."""
    defaults = dict(leaves(to_json(Experiment())))
    rows = []
    for name, value in leaves(run.settings):
        default = text_of(defaults[name]) if name in defaults else "unknown: not a setting of this version"
        rows.append([name, text_of(value), "" if defaults.get(name, text_of) == value else default])
    tables = [Table(["setting", "value", "default, where it differs"], rows, "Settings")] if rows else []
    if metrics := newest_metrics(run):
        latest = [(name, value, described(name)) for name, value in metrics.items()]
        tables.append(Table(["metric", "latest", "description"], latest, "All metrics"))
    return Section("values", "Settings and metrics", tables=tables)


def leaves(settings: dict[str, Any], group: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the settings and those of each group, as "group.name"."""
    for name, value in settings.items():
        if isinstance(value, dict) and not group:
            yield from leaves(value, f"{name}.")
        else:
            yield group + name, value


def newest_metrics(run: Run) -> dict[str, float]:
    """Return the latest value of each numeric metric, in the order in which they are declared; undeclared ones come last."""
    known = [metric.name for metric in all_metrics()]

    def place(name: str) -> int:
        metric = metric_of(name)
        return len(known) if metric is None else known.index(metric[0].name)

    names = dict.fromkeys(name for row in run.rows for name in row)
    values = {name: run.latest(name) for name in sorted(names, key=place)}
    return {name: value for name, value in values.items() if value is not None}


def text_of(value: object) -> str:
    """Format a setting as on the command line."""
    return " ".join(str(item) for item in value) if isinstance(value, list) else str(value)
