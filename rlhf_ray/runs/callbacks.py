"""Callbacks: what a run tells, and to whom. Each listener (progress bars, metrics files, trackers, yours) is one `Callback`.

::

    class Best(Callback):
        def on_start(self, run):
            self.best = -math.inf

        def on_metrics(self, metrics):
            true_return = metrics["true_return_mean"]  # None until an episode has ended
            self.best = max(self.best, -math.inf if true_return is None else true_return)
            metrics["best_true_return"] = self.best

    train(experiment, folder, callbacks=[Best()])
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlhf_ray.data.errors import CallbackError
from rlhf_ray.data.failures import explain
from rlhf_ray.data.plain import plain
from rlhf_ray.data.registry import Registry

if TYPE_CHECKING:  # RLlib takes seconds to import, which the terminal's progress does without
    from rlhf_ray.rllib.algorithm import LearnsFromPreferences
    from rlhf_ray.runs.folder import RunFolder
    from rlhf_ray.runs.outcome import Outcome
    from rlhf_ray.settings import Experiment


@dataclass(frozen=True)
class TrainingRun:
    """The run that callbacks listen to.

    Attributes:
        experiment: its settings.
        folder: its folder.
        algorithm: the RLlib `Algorithm` that trains, with ``reward_model()``, ``env_steps`` and all that RLlib has.
    """

    experiment: Experiment
    folder: RunFolder
    algorithm: LearnsFromPreferences


class Callback:
    """Listens to a run. Override the hooks you need; each does nothing by itself.

    The hooks run in the process that trains, which waits for them. All callbacks hear a hook in the order of the list, and
    `on_end` in the reverse, as nested ``with`` blocks end. `on_metrics` hands the same dict to each: what one adds to it, those
    after it see. The run puts its alarms before your callbacks, and the files it writes after them, so that your callbacks see
    the alarms and the files hold what you add.

    Where a hook raises, the other callbacks still hear it. Then the run stops as by Ctrl-C, with a checkpoint, and raises a
    `CallbackError` that names the callback and the hook; `rlhf-ray train --resume RUN` continues.
    """

    def on_start(self, run: TrainingRun) -> None:
        """Training is about to begin, or to continue: a resumed run is back at its checkpoint."""

    def on_stage(self, stage: str) -> None:
        """The run does something else now: "training", "evaluating", "stopping", "fitting …". May come before `on_start`."""

    def on_links(self, links: dict[str, str]) -> None:
        """People label at these links, by name; again when they have changed. A link lets its owner in: show it to nobody else."""

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """An iteration ended. `rlhf_ray.data.metrics` declares what ``metrics`` holds; numbers may be None."""

    def on_end(self, outcome: Outcome | None) -> None:
        """The run is over. ``outcome`` is None where it failed. Comes once, wherever `on_start` came."""


CALLBACKS: Registry[Callback] = Registry("callback", Callback, {})
"""Finds users' callbacks by ``module:Name``."""


class Callbacks:
    """Several callbacks as one. A hook that raises is remembered in ``failure`` and stops nobody at once; see `check`."""

    def __init__(self, callbacks: Sequence[Callback]):
        self.callbacks = list(callbacks)
        self.failure: CallbackError | None = None
        self._started = False

    def check(self, consequence: str = "") -> None:
        """Raise the first failure.

        Raises:
            CallbackError: a hook raised. Its message ends with the ``consequence``.
        """
        if self.failure is not None:
            raise CallbackError(f"{self.failure}{consequence}") from self.failure.__cause__

    def on_start(self, run: TrainingRun) -> None:
        """See `Callback.on_start`."""
        self._started = True
        self._tell("on_start", run)

    def on_stage(self, stage: str) -> None:
        """See `Callback.on_stage`."""
        self._tell("on_stage", stage)

    def on_links(self, links: dict[str, str]) -> None:
        """See `Callback.on_links`."""
        self._tell("on_links", links)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """See `Callback.on_metrics`. A value that can't be written is taken out again, and a failure of who added it."""
        for callback in self.callbacks:
            before = dict(metrics)
            self._tell_one(callback, "on_metrics", metrics)
            for name in [name for name, value in metrics.items() if before.get(name) is not value]:
                try:
                    json.dumps(plain({name: metrics[name]}))
                except (TypeError, ValueError):
                    value = metrics.pop(name)
                    self._failed(
                        callback,
                        "on_metrics",
                        f"set the metric {name!r} to {value!r}, which is no number, text or list",
                    )

    def on_end(self, outcome: Outcome | None) -> None:
        """See `Callback.on_end`."""
        if self._started:
            self._tell("on_end", outcome, reverse=True)

    def _tell(self, hook: str, *arguments: Any, reverse: bool = False) -> None:
        for callback in reversed(self.callbacks) if reverse else self.callbacks:
            self._tell_one(callback, hook, *arguments)

    def _tell_one(self, callback: Callback, hook: str, *arguments: Any) -> None:
        try:
            getattr(callback, hook)(*arguments)
        except Exception as error:
            self._failed(callback, hook, f"raised {type(error).__name__}: {_said(error)}", error)

    def _failed(self, callback: Callback, hook: str, what: str, error: Exception | None = None) -> None:
        failure = CallbackError(f"{_name(callback)}.{hook} {what}.")
        failure.__cause__ = error
        self.failure = self.failure or failure


class Latest(Callback):
    """Knows the last value of each metric that is a number, those of a resumed run's earlier iterations too."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}

    def on_start(self, run: TrainingRun) -> None:
        """Look up what the iterations before came to."""
        for row in run.folder.rows():
            self.on_metrics(row)

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Remember them."""
        self.values |= {name: value for name, value in metrics.items() if value is not None}


def _said(error: Exception) -> str:
    """The first line of what it says."""
    text = explain(error) if isinstance(error, OSError) else str(error)
    return next((line.strip() for line in text.splitlines() if line.strip()), "nothing").rstrip(".")


def _name(callback: Callback) -> str:
    return f"Callback {type(callback).__module__}:{type(callback).__qualname__}"
