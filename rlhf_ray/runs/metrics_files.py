"""The files that a run's metrics are written to, one iteration after the other."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from typing import Any

from rlhf_ray.data.atomic import append
from rlhf_ray.data.plain import plain
from rlhf_ray.runs.callbacks import Callback, TrainingRun
from rlhf_ray.runs.events import EventFile


class MetricsFile(Callback):
    """Appends each iteration to ``metrics.jsonl``. Numbers that are not finite become null."""

    def on_start(self, run: TrainingRun) -> None:
        """Make the file where it is not there."""
        self._path = run.folder.metrics
        append(self._path, b"")

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Write one iteration, all of it or nothing."""
        with carry_on("metrics"):
            append(self._path, (json.dumps(plain(metrics)) + "\n").encode())


class TensorBoard(Callback):
    """Writes the numbers of each iteration to TensorBoard's event files, at the step ``env_steps``.

    Where the run is continued, TensorBoard is told to forget what lies behind the last row.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Begin a file."""
        last = run.folder.last_metrics()
        self._events = EventFile(run.folder.tensorboard, purge_step=last["env_steps"] + 1 if last else None)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Write one iteration."""
        values = numbers(metrics)
        with carry_on("TensorBoard events"):
            self._events.add(int(values.pop("env_steps")), values)


def numbers(metrics: dict[str, Any]) -> dict[str, float]:
    """The metrics that are finite numbers, and the count of the alarms that are on."""
    values = plain(metrics)
    if "alarms" in values:
        values["alarms"] = len(values["alarms"])
    return {name: value for name, value in values.items() if isinstance(value, int | float)}


@contextlib.contextmanager
def carry_on(what: str) -> Iterator[None]:
    """Within it, log OSErrors and keep training: the run may outlast a full disk."""
    try:
        yield
    except OSError as error:
        logging.getLogger(__name__).error("The %s could not be written: %s", what, error)
