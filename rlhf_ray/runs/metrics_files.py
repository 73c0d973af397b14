"""Write a run's metrics to files after each iteration."""

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
    """Appends each iteration to ``metrics.jsonl``. Non-finite numbers become null."""

    def on_start(self, run: TrainingRun) -> None:
        """Create the file if it does not exist."""
        self._path = run.folder.metrics
        append(self._path, b"")

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Write one iteration atomically."""
        with carry_on("metrics"):
            append(self._path, (json.dumps(plain(metrics)) + "\n").encode())


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
        logging.getLogger(__name__).error("Can't write the %s: %s", what, error)
