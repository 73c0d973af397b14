"""Reporting: a run that came to an outcome leaves a report."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_ray.runs.callbacks import Callback, TrainingRun

if TYPE_CHECKING:
    from rlhf_ray.runs.outcome import Outcome


class Reporting(Callback):
    """Writes the report."""

    def on_start(self, run: TrainingRun) -> None:
        """Remember the folder."""
        self._path = run.folder.path

    def on_end(self, outcome: Outcome | None) -> None:
        """Write it."""
        if outcome is not None:
            from rlhf_ray.runs.report.run_report import write_report  # matplotlib, which training does without

            write_report(self._path)
