"""Trackers: external services that receive a run's metrics, besides the run folder and TensorBoard."""

from __future__ import annotations

import hashlib
import importlib.util
from typing import TYPE_CHECKING, Any, Literal

from rlhf_ray.data.errors import SettingError
from rlhf_ray.runs.callbacks import Callback, TrainingRun
from rlhf_ray.runs.metrics_files import numbers
from rlhf_ray.settings import to_json

if TYPE_CHECKING:
    from rlhf_ray.runs.outcome import Outcome

TrackerName = Literal["none", "wandb"]

PROJECT = "rlhf_ray"
"""Name of the project on the tracker."""


def check_tracker(name: TrackerName) -> None:
    """Check that the tracker's library is installed.

    Raises:
        SettingError: it is not installed.
    """
    if name == "wandb" and importlib.util.find_spec("wandb") is None:
        raise SettingError("tracker is 'wandb', which is not installed: pip install 'rlhf-ray[wandb]'.")


class WandB(Callback):
    """Sends each iteration's numbers to Weights & Biases. A resumed run continues the same W&B run.

    Uses the login and mode of the wandb library: ``wandb login`` or ``WANDB_API_KEY``; with ``WANDB_MODE=offline`` it writes
    files into the run folder, for ``wandb sync`` later.
    """

    _run: Any = None

    def on_start(self, run: TrainingRun) -> None:
        """Start the W&B run."""
        import wandb

        folder = run.folder
        self._run = wandb.init(
            project=PROJECT,
            name=folder.path.name,
            # Stable for a run, wherever its folder is.
            id=hashlib.sha256((folder.path.name + folder.about()["started"]).encode()).hexdigest()[:16],
            resume="allow",
            config=to_json(run.experiment),
            dir=str(folder.path),
        )

    def on_metrics(self, metrics: dict[str, Any]) -> None:
        """Send one iteration. Strings and lists stay in the run folder."""
        self._run.log(numbers(metrics), step=int(metrics["env_steps"]))

    def on_end(self, outcome: Outcome | None) -> None:
        """Send the remaining data and finish the W&B run."""
        if self._run is not None:
            self._run.finish(exit_code=1 if outcome is None else 0)


TRACKERS: dict[TrackerName, list[type[Callback]]] = {"none": [], "wandb": [WandB]}
"""The callbacks of each tracker."""
