"""Callbacks: hooks into a run. Progress bars, metrics files and your own code are each a `Callback`; docs/metrics.md shows one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partialmethod
from typing import TYPE_CHECKING, Any

from rlhf_ray.data.errors import CallbackError
from rlhf_ray.data.failures import explain
from rlhf_ray.data.metrics import plain
from rlhf_ray.data.registry import Registry

if TYPE_CHECKING:  # RLlib takes seconds to import, and the terminal's progress does not need it
    from rlhf_ray.labelling.waiting import PeopleWait
    from rlhf_ray.rllib.algorithm import LearnsFromPreferences
    from rlhf_ray.runs.folder import RunFolder
    from rlhf_ray.runs.outcome import Outcome
    from rlhf_ray.settings import Experiment


@dataclass(frozen=True)
class TrainingRun:
    """The run passed to callbacks.

    Attributes:
        experiment: the run's settings.
        folder: the run folder.
        algorithm: the RLlib `Algorithm`, with additional ``reward_model()`` and ``env_steps``.
    """

    experiment: Experiment
    folder: RunFolder
    algorithm: LearnsFromPreferences


class Callback:
    """Base class of callbacks. Override the hooks you need; each does nothing by default.

    Hooks run synchronously in the training process. They are called in list order, `on_end` in reverse order, like nested
    ``with`` blocks. `on_metrics` passes the same dict to every callback, so later callbacks see the entries that earlier ones
    add. Alarms run before your callbacks and file writers after them: your callbacks see the alarms, and the files contain your
    metrics.

    If a hook raises, the other callbacks are still called. The run then stops with a checkpoint, like on Ctrl-C, and raises a
    `CallbackError` that names the callback and the hook; `rlhf-ray train --resume RUN` resumes it.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Called before training starts, or continues from a restored checkpoint."""

    def on_stage(self, stage: str) -> None:
        """Called when the run enters a stage: "training", "evaluating", "stopping", "fitting …". May precede `on_start`."""

    def on_links(self, links: dict[str, str]) -> None:
        """Called with the annotators' labelling links, by name, and again when they change. A link is a login: keep it private."""

    def on_wait(self, wait: PeopleWait) -> None:
        """Called about once a second while the training waits for people; ``wait.alarm`` says so if nobody answers."""

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Called after each iteration. `rlhf_ray.data.metrics` declares the keys of ``metrics``; values may be None."""

    def on_end(self, outcome: Outcome | None) -> None:
        """Called once at the end if `on_start` was called. ``outcome`` is None if the run failed."""


CALLBACKS: Registry[Callback] = Registry("callback", Callback, {})
"""Loads user callbacks by ``module:Name``."""


class Callbacks:
    """Calls several callbacks. Stores the first exception of a hook in ``failure`` and continues; see `check`."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = list(callbacks)
        self.failure: CallbackError | None = None
        self._started = False

    def check(self, consequence: str = "") -> None:
        """Raise the first failure.

        Raises:
            CallbackError: a hook raised. The message ends with ``consequence``.
        """
        if self.failure is not None:
            raise CallbackError(f"{self.failure}{consequence}") from self.failure.__cause__

    def on_start(self, run: TrainingRun) -> None:
        """See `Callback.on_start`."""
        self._started = True
        self._tell("on_start", run)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """See `Callback.on_metrics`. Removes values that can't be written as JSON and blames the callback that added them."""
        for callback in self.callbacks:
            before = dict(metrics)
            self._tell_one(callback, "on_metrics", metrics)
            for name in [name for name, value in metrics.items() if before.get(name) is not value]:
                try:
                    json.dumps(plain({name: metrics[name]}))
                except (TypeError, ValueError):
                    what = f"set the metric {name!r} to {metrics.pop(name)!r}, which is not a number, string or list"
                    self._failed(callback, "on_metrics", what)

    def on_end(self, outcome: Outcome | None) -> None:
        """See `Callback.on_end`."""
        if self._started:
            self._tell("on_end", outcome, reverse=True)

    def _tell(self, hook: str, *arguments: Any, reverse: bool = False) -> None:
        for callback in reversed(self.callbacks) if reverse else self.callbacks:
            self._tell_one(callback, hook, *arguments)

    on_stage = partialmethod(_tell, "on_stage")
    on_links = partialmethod(_tell, "on_links")
    on_wait = partialmethod(_tell, "on_wait")

    def _tell_one(self, callback: Callback, hook: str, *arguments: Any) -> None:
        try:
            getattr(callback, hook)(*arguments)
        except Exception as error:
            self._failed(callback, hook, f"raised {type(error).__name__}: {_said(error)}", error)

    def _failed(self, callback: Callback, hook: str, what: str, error: Exception | None = None) -> None:
        kind = type(callback)
        failure = CallbackError(f"Callback {kind.__module__}:{kind.__qualname__}.{hook} {what}.")
        failure.__cause__ = error
        self.failure = self.failure or failure


class Latest(Callback):
    """Keeps the last non-null value of each metric, including iterations before a resume."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def on_start(self, run: TrainingRun) -> None:
        """Read the earlier iterations."""
        for row in run.folder.rows():
            self.on_metrics(row)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Update the values."""
        self.values |= {name: value for name, value in metrics.items() if value is not None}


class Pausing(Callback):
    """Pauses the collecting of comparisons alone while the run folder has the file `RunFolder.paused`, from the next iteration on.

    The first labels are always collected.
    """

    def on_start(self, run: TrainingRun) -> None:
        """See `Callback.on_start`."""
        self._ring, self._file = run.algorithm.ring, run.folder.paused
        self.on_metrics({})

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Look whether the file is there."""
        self._ring.collecting = not (self._ring.version and self._file.exists())


def _said(error: Exception) -> str:
    """The first non-empty line of the error message."""
    text = explain(error) if isinstance(error, OSError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing").rstrip(".")
