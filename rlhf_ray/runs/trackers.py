"""Trackers: services that a run's metrics also go to, besides its own files and TensorBoard's."""

from __future__ import annotations

import hashlib
import importlib.util
from typing import Any, Literal

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nested import plain
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import to_json

TrackerName = Literal["none", "wandb"]

PROJECT = "rlhf_ray"
"""What the project is called there."""


def check_tracker(name: TrackerName) -> None:
    """Check that the tracker's library is installed.

    Raises:
        SettingError: it is not.
    """
    if name == "wandb" and importlib.util.find_spec("wandb") is None:
        raise SettingError("tracker is 'wandb', which is not installed: pip install 'rlhf-ray[wandb]'.")


class Tracker:
    """Sends the metrics of one run to Weights & Biases; with ``none``, nowhere. A run that is resumed goes on there too.

    Login and mode are those of its library: ``wandb login`` or ``WANDB_API_KEY``, and ``WANDB_MODE=offline`` for files in the run
    folder, which ``wandb sync`` sends later.
    """

    def __init__(self, name: TrackerName, folder: RunFolder):
        self._run: Any = None
        if name == "wandb":
            import wandb

            self._run = wandb.init(
                project=PROJECT,
                name=folder.path.name,
                # The same for the same run, wherever its folder lies.
                id=hashlib.sha256((folder.path.name + folder.about()["started"]).encode()).hexdigest()[:16],
                resume="allow",
                config=to_json(folder.experiment()),
                dir=str(folder.path),
            )

    def log(self, metrics: dict[str, Any]) -> None:
        """Send one iteration's metrics. Texts and lists stay in the run folder."""
        if self._run is not None:
            numbers = {name: value for name, value in plain(metrics).items() if isinstance(value, int | float)}
            self._run.log(numbers, step=int(metrics["env_steps"]))

    def close(self) -> None:
        """Send what is left."""
        if self._run is not None:
            self._run.finish()
