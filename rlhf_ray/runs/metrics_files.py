"""Write a run's metrics to files after each iteration."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import logging
import os
import socket
import struct
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import import_module
from typing import Any

from rlhf_ray.data.atomic import append, write_text
from rlhf_ray.data.metrics import Metric, described, in_order, plain
from rlhf_ray.runs.callbacks import Callback, TrainingRun

DECLARE = (
    "rlhf_ray.actors.ring",
    "rlhf_ray.measure.error_rates",
    "rlhf_ray.queries.schedule",
    "rlhf_ray.reward.fit_report",
    "rlhf_ray.rllib.metrics",
    "rlhf_ray.runs.health",
    "rlhf_ray.runs.probe",
    "rlhf_ray.runs.train",
)
"""The modules that declare metrics, by name: a process that only reads a run folder has not imported them."""


def all_metrics() -> list[Metric]:
    """Import the modules that declare metrics, and return these in the order in which they are shown."""
    for name in DECLARE:
        import_module(name)
    return in_order()


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
    """Writes each iteration's numbers to a TensorBoard event file, at step ``env_steps``, atomically.

    On resume, TensorBoard drops events after the last row. tensorboardX's own writer is not used: its thread dies on the first full
    disk, and after that, writes block forever on a full queue.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Create an event file."""
        from tensorboardX.proto import event_pb2  # imports torch, which takes seconds; some commands write nothing

        self._protocol: Any = event_pb2
        self._described: set[str] = set()
        folder = run.folder.tensorboard
        folder.mkdir(exist_ok=True)
        self._path = folder / f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        self._write(file_version="brain.Event:2")
        if last := run.folder.last_metrics():
            begins = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            self._write(step=last["env_steps"] + 1, session_log=begins)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Write one iteration."""
        values = numbers(metrics)
        step, summary = int(values.pop("env_steps")), self._protocol.Event().summary
        for name, value in values.items():
            added = summary.value.add(tag=name, simple_value=value)
            if name not in self._described:  # TensorBoard reads the description from the first value
                added.metadata.summary_description = described(name)
        with carry_on("TensorBoard events"):
            self._write(step=step, summary=summary)
            self._described |= set(values)

    def _write(self, **fields: Any) -> None:
        from tensorboardX.record_writer import masked_crc32c

        data = self._protocol.Event(wall_time=time.time(), **fields).SerializeToString()
        length = struct.pack("<Q", len(data))
        checks = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
        append(self._path, b"".join((length, next(checks), data, next(checks))))


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
