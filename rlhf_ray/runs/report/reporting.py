"""The callback that writes the report at the end of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlhf_ray.runs.callbacks import Callback, TrainingRun

if TYPE_CHECKING:
    from rlhf_ray.runs.outcome import Outcome


class Reporting(Callback):
    """Writes the report if the run has an outcome."""

    def on_start(self, run: TrainingRun) -> None:
        """Remember the folder."""
        self._path = run.folder.path

    def on_end(self, outcome: Outcome | None) -> None:
        """Write the report."""
        if outcome is not None:
            from rlhf_ray.runs.report.run_report import write_report  # imports matplotlib, which training does not need

            write_report(self._path)
