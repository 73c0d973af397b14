"""Write a run's metrics to files after each iteration, and its report at the end."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rlhf_ray.data.atomic import append, write_text
from rlhf_ray.data.metrics import plain
from rlhf_ray.runs.all_metrics import all_metrics
from rlhf_ray.runs.callbacks import Callback, TrainingRun
from rlhf_ray.runs.events import EventFile

if TYPE_CHECKING:
    from rlhf_ray.runs.outcome import Outcome


class MetricsFile(Callback):
    """Appends each iteration to ``metrics.jsonl``. Non-finite numbers become null."""

    def on_start(self, run: TrainingRun) -> None:
        """Create the file if it does not exist."""
        self._path = run.folder.metrics
        append(self._path, b"")

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Write one iteration atomically."""
        with carry_on("metrics"):
            append(self._path, (json.dumps(plain(metrics)) + "\n").encode())


class CSVFile(Callback):
    """Writes the numbers of each iteration to ``metrics.csv``, the table twin of ``metrics.jsonl``.

    Its first columns are the declared metrics with a single value, in the order of their declaration. Others (one per annotator,
    stage, or yours) follow as they first appear: the file is then written anew with the new column last, so that columns keep
    their places, also when a run is resumed. What an iteration doesn't have is empty.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Write the rows of a resumed run anew: some may be of iterations that will be repeated."""
        self._path = run.folder.metrics_csv
        self._rows = run.folder.rows
        self._columns = [metric.name for metric in all_metrics() if not metric.tag or metric.whole]
        if self._path.exists():
            with self._path.open(newline="") as file:
                self._columns = next(csv.reader(file), self._columns)
        with carry_on("metrics"):
            self._write_anew()

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Write one iteration."""
        values = numbers(metrics)
        new = [name for name in values if name not in self._columns]
        with carry_on("metrics"):
            if new:
                self._columns += new
                self._write_anew()  # this iteration's row too: `MetricsFile` comes first
            else:
                append(self._path, _csv([[values.get(name, "") for name in self._columns]]).encode())

    def _write_anew(self) -> None:
        rows = [numbers(row) for row in self._rows()]
        lines: list[list[Any]] = [self._columns, *([row.get(name, "") for name in self._columns] for row in rows)]
        write_text(self._path, _csv(lines))


def _csv(rows: Iterable[Sequence[Any]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


class TensorBoard(Callback):
    """Writes each iteration's numbers to TensorBoard event files, at step ``env_steps``.

    On resume, TensorBoard drops events after the last row.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Create an event file."""
        last = run.folder.last_metrics()
        self._events = EventFile(run.folder.tensorboard, purge_step=last["env_steps"] + 1 if last else None)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Write one iteration."""
        values = numbers(metrics)
        with carry_on("TensorBoard events"):
            self._events.add(int(values.pop("env_steps")), values)


class Reporting(Callback):
    """Writes the report if the run has an outcome."""

    def on_start(self, run: TrainingRun) -> None:
        """Remember the folder."""
        self._path = run.folder.path

    def on_end(self, outcome: Outcome | None) -> None:
        """Write the report."""
        if outcome is not None:
            from rlhf_ray.runs.report.run_report import write_report  # imports matplotlib, which training doesn't need

            write_report(self._path)


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers, and the number of active alarms."""
    values = plain(metrics)
    if "alarms" in values:
        values["alarms"] = len(values["alarms"])
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


@contextlib.contextmanager
def carry_on(what: str) -> Iterator[None]:
    """Inside this context, log OSErrors and keep training: the run may outlast a full disk."""
    try:
        yield
    except OSError as error:
        logging.getLogger(__name__).error("Can't read or write the %s: %s", what, error)
