"""Tables of cells (benchmarks/results/method_*.json): each seed's true return, and that normalised.

Normalised is (return - random) / (true reward - random), where "true reward" is the interquartile mean of the agents that the same
algorithm trains on the true reward in as many steps. Figures are interquartile means over seeds with 95 % bootstrap intervals
(Agarwal et al. 2021); those over several tasks draw seeds within each task.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
from scipy import stats

sys.path.insert(0, str(Path(__file__).parent.parent))
from benchmarks.cells import Cell, kept

mpl.use("Agg")
import matplotlib.pyplot as plt

BLUE, GREY = "#0072b2", "#555555"
REFERENCE = "true reward"
DRAWS = 5_000

Values = Sequence[float]


@dataclass(frozen=True)
class Estimate:
    """An interquartile mean with its 95 % interval; ``low`` and ``high`` are NaN where one seed gives none."""

    value: float
    low: float
    high: float

    def text(self, sign: bool = False) -> str:
        """As tables have it."""
        value, low, high = (number(one, sign) for one in (self.value, self.low, self.high))
        return value if math.isnan(self.low) else f"{value} ({low} to {high})"


def number(value: float, sign: bool = False) -> str:
    """Three digits or so, with a minus sign."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text.replace("-", "−")


def _middle(groups: Sequence[Any]) -> Any:
    return stats.trim_mean(np.concatenate(groups, axis=-1), 0.25, axis=-1)


def _drawn(groups: Sequence[Values], seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    arrays = [np.asarray(values, np.float64) for values in groups]
    return _middle([values[rng.integers(len(values), size=(DRAWS, len(values)))] for values in arrays])


def _interval(draws: Any, *samples: Sequence[Values]) -> tuple[float, float]:
    """The 95 % interval of ``draws``; NaN if one of the samples that they were drawn from has one seed of each task."""
    if any(all(len(values) < 2 for values in groups) for groups in samples):
        return math.nan, math.nan
    low, high = np.quantile(draws, [0.025, 0.975])
    return float(low), float(high)


def estimate(*groups: Values) -> Estimate:
    """The interquartile mean of all values; each group is resampled by itself."""
    return Estimate(float(_middle(groups)), *_interval(_drawn(groups), groups))


def difference(ours: Sequence[Values], theirs: Sequence[Values]) -> Estimate:
    """The interquartile mean of ``ours`` minus that of ``theirs``; runs are independent."""
    draws = _drawn(ours, 0) - _drawn(theirs, 1)
    return Estimate(float(_middle(ours) - _middle(theirs)), *_interval(draws, ours, theirs))


class Table:
    """The finished cells of a table, with the order of its tasks and variants."""

    def __init__(self, name: str, planned: Sequence[Cell]) -> None:
        self.name = name
        self.cells: Mapping[str, Any] = kept(f"method_{name}")
        self.planned: list[Cell] = [cell for cell in planned if cell.experiment != "reference"]
        self.references = [cell for cell in planned if cell.experiment == "reference"]
        self.tasks = list(dict.fromkeys(cell.task for cell in self.planned))

    def variants(self, task: str | None = None) -> list[str]:
        """Those of a task, or of all."""
        return list(dict.fromkeys(cell.variant for cell in self.planned if task in (None, cell.task)))

    def found(self, task: str, variant: str) -> list[Any]:
        """The finished cells of all seeds."""
        among = self.references if variant == REFERENCE else self.planned
        wanted = [cell.key for cell in among if (cell.task, cell.variant) == (task, variant)]
        return [self.cells[key] for key in wanted if key in self.cells]

    def returns(self, task: str, variant: str) -> list[float]:
        """The true return of each seed."""
        return [cell["return"] for cell in self.found(task, variant)]

    def successes(self, task: str, variant: str) -> list[float]:
        """The share of each seed's episodes in which a step succeeded, where the task says so."""
        return [cell["success_rate"] for cell in self.found(task, variant) if cell["success_rate"] is not None]

    def random(self, task: str) -> float:
        """The true return of random actions."""
        cells = (cell for variant in self.variants(task) for cell in self.found(task, variant))
        return float(np.mean([cell["random"] for cell in cells if cell["random"] is not None]))

    def normalised(self, task: str, variant: str) -> list[float]:
        """The true return of each seed: 0 is random, 1 what is printed of the true reward's agents. Empty if either is missing."""
        returns, best = self.returns(task, variant), self.returns(task, REFERENCE)
        if not returns or not best:
            return []
        low, high = self.random(task), estimate(best).value
        return [(value - low) / (high - low) for value in returns]

    def rows(self) -> Iterator[tuple[str, str, list[float], list[float]]]:
        """Each task and variant that was run, with true returns, and those normalised."""
        for task in self.tasks:
            for variant in self.variants(task):
                if returns := self.returns(task, variant):
                    yield task, variant, returns, self.normalised(task, variant)

    def missing(self) -> int:
        """How many cells are not there."""
        return sum(cell.key not in self.cells for cell in [*self.planned, *self.references])


def text(values: Values) -> str:
    """The interquartile mean with its interval; nothing of no values."""
    return estimate(values).text() if values else ""


def filled(page: str, markdown: Callable[[str], str]) -> str:
    """``page`` with each table between its two marks made anew by ``markdown`` of its name."""
    marks = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    return marks.sub(lambda match: f"{match[1]}\n{markdown(match[2])}\n\n{match[3]}", page)


def save(figure: Any, path: Path) -> None:
    """Write the figure without its upper and right edges, and close it."""
    for panel in figure.axes:
        panel.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=130)
    plt.close(figure)
