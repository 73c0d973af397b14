"""Pausing: pauses a run's collecting of comparisons alone, by a file in the run folder."""

from __future__ import annotations

from typing import Any

from rlhf_ray.runs.callbacks import Callback, TrainingRun


class Pausing(Callback):
    """Looks at `RunFolder.paused` before the first iteration and after each. The first labels are always collected."""

    def on_start(self, run: TrainingRun) -> None:
        """See `Callback.on_start`."""
        self._ring, self._file = run.algorithm.ring, run.folder.paused
        self._look()

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """See `Callback.on_metrics`."""
        self._look()

    def _look(self) -> None:
        self._ring.collecting = not (self._ring.version and self._file.exists())
