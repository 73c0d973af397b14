"""Metrics of a run: each is declared once, by the module that measures it, with `declare`.

Code that computes a metric adds it to the results by name. Everything that shows metrics reads the declarations: integer types,
Prometheus gauges and help texts, TensorBoard descriptions, terminal bars and the report.
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Metric:
    """The declaration of a number that a run reports after an iteration.

    Attributes:
        name: in ``metrics.jsonl`` and everywhere else; with a tag, see `metric_of`.
        help: what it is.
        unit: empty for a count.
        kind: int for whole numbers, else float.
        tag: what the metric has one value per; empty for a single value.
        whole: with a tag: whether there is one value for all too, under the name alone.
        gauge: whether it is exported to Prometheus; with ``whole``, the value for all.
        bar: the terminal bar that shows it; empty for none.
        label: its name in that bar.
        group: one of `GROUPS`; `declare` sets it.
        among: the metric that counts the answers behind it, which is shown beside it; empty for none.
    """

    name: str
    help: str
    unit: str = ""
    kind: type[int] | type[float] = float
    tag: str = ""
    whole: bool = False
    gauge: bool = True
    bar: str = ""
    label: str = ""
    among: str = ""
    group: str = ""

    def text(self, value: float, answers: int | None = None) -> str:
        """Format a value for the terminal, with the number of answers behind it, if known."""
        return f"{value:.1f}" if self.unit != "share" else share_of(value, answers)


def share_of(share: float, answers: int | None) -> str:
    """Format a share of answers with their number: on a few, it says little."""
    return f"{share:.2f}" if answers is None else f"{share:.2f} ({answers} answer{'' if answers == 1 else 's'})"


def pairs_skipped(count: int) -> str:
    """Say how many pairs annotators skipped."""
    return f"{count} pair{'' if count == 1 else 's'} skipped"


GROUPS = ("run", "returns", "agent", "fragments", "labels", "reward model", "stages", "alarms")
"""The groups of metrics, in the order in which they are shown."""

METRICS: dict[str, Metric] = {}
"""The metrics that the modules imported so far have declared, by name."""

strict = False
"""Whether a number that nobody declared is an error, as in this package's tests, or is left out with a warning."""


class UndeclaredMetricError(Exception):
    """A number is reported that nobody declared."""


def declare(group: str, *metrics: Metric) -> None:
    """Declare metrics, beside the code that measures them.

    Args:
        group: one of `GROUPS`.
        metrics: the metrics, in the order in which they are shown.

    Raises:
        ValueError: there is no such group, or another metric has a name already.
    """
    if group not in GROUPS:
        raise ValueError(f"group is {group!r}; it must be one of {', '.join(GROUPS)}.")
    for metric in (replace(metric, group=group) for metric in metrics):
        if METRICS.setdefault(metric.name, metric) != metric:
            raise ValueError(f"Another metric is called {metric.name!r}: give this one another name.")


def in_order() -> list[Metric]:
    """Return the declared metrics, group by group."""
    return sorted(METRICS.values(), key=lambda metric: GROUPS.index(metric.group) if metric.group else len(GROUPS))


def declared(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values whose metrics are declared; warns of each other name once.

    Raises:
        UndeclaredMetricError: one isn't declared, and `strict` is set.
    """
    unknown = [name for name in values if metric_of(name) is None]
    if unknown and strict:
        raise UndeclaredMetricError(f"{unknown[0]} is reported, but not declared: call declare() beside its code.")
    for name in set(unknown) - _warned:
        logger.warning("The metric %s is not declared, and left out.", name)
    _warned.update(unknown)
    return {name: value for name, value in values.items() if name not in unknown}


_warned: set[str] = set()


def metric_of(name: str) -> tuple[Metric, str] | None:
    """Return the declaration for ``name`` in ``metrics.jsonl`` and the value of its tag; None if undeclared.

    ``error_rate/ada`` is `error_rate` of ada, ``error_rate`` that of all answers; ``fitting_queue`` is `stage_queue` of fitting.
    """
    if (metric := METRICS.get(name)) is not None and (not metric.tag or metric.whole):
        return metric, ""
    head, _, tag = name.partition("/")
    if tag and head in METRICS:
        return METRICS[head], tag
    stage, _, what = name.rpartition("_")
    metric = METRICS.get(f"stage_{what}")
    return None if metric is None or not stage else (metric, stage)


def declarations(names: Iterable[str]) -> dict[str, tuple[Metric, str]]:
    """Return `metric_of` each of ``names``, without those that nobody declared."""
    return {name: declaration for name in names if (declaration := metric_of(name)) is not None}


def described(name: str) -> str:
    """Return a metric's description and unit in one line; empty if undeclared."""
    if (declaration := metric_of(name)) is None:
        return ""
    metric = declaration[0]
    return f"{metric.help} [{metric.unit}]" if metric.unit else metric.help


def plain(value: Any) -> Any:
    """Convert metrics or settings to JSON values, recursively: numpy numbers to Python's, NaN and infinity to None."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
