"""The run folder: where everything that a run leaves behind lies, and how its metrics are written.

::

    config.json       the resolved settings                  metrics.jsonl   one line per iteration
    run.json          versions, machine, command, times      tensorboard/    the same metrics
    preferences/      the preference store                   result.json     the outcome
    reward_model/     safetensors and JSON                   report.html     one page about all of it
    checkpoint/       RLlib's checkpoint of the algorithm
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tensorboardX import SummaryWriter

from rlhf_ray.settings import Experiment, SettingError, load_experiment, save_experiment

FORMAT = "rlhf_ray.run/1"


class RunFolder:
    """The folder of one run. Makes nothing by itself: see `create`."""

    def __init__(self, path: Path | str):
        self.path = Path(path).absolute()
        self.config = self.path / "config.json"
        self.run = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.preferences = self.path / "preferences"
        self.reward_model = self.path / "reward_model"
        self.checkpoint = self.path / "checkpoint"
        self.result = self.path / "result.json"
        self.report = self.path / "report.html"

    @staticmethod
    def create(path: Path | str, experiment: Experiment) -> RunFolder:
        """Make the folder and write the settings, versions and command into it.

        Raises:
            SettingError: something is in the folder already.
        """
        folder = RunFolder(path)
        if folder.path.exists() and (not folder.path.is_dir() or any(folder.path.iterdir())):
            raise SettingError(f"run_dir is {folder.path}, and there is something there already: name another folder.")
        folder.path.mkdir(parents=True, exist_ok=True)
        save_experiment(experiment, folder.config)
        names = ("rlhf-ray", "ray", "torch", "gymnasium", "numpy", "pyarrow")
        folder._write(
            folder.run,
            {
                "format": FORMAT,
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "finished": None,
                "interrupted": False,
                "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                "versions": {name.replace("-", "_"): importlib.metadata.version(name) for name in names}
                | {"python": platform.python_version()},
                "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
            },
        )
        return folder

    @staticmethod
    def open(path: Path | str) -> RunFolder:
        """An existing run folder.

        Raises:
            SettingError: there is none.
        """
        folder = RunFolder(path)
        if not folder.config.exists():
            raise SettingError(f"{folder.path} is no run folder (it has no config.json).")
        return folder

    def experiment(self) -> Experiment:
        """The settings of the run."""
        return load_experiment(self.config)

    def finish(self, result: dict[str, Any], *, interrupted: bool) -> None:
        """Write the outcome and the time it was reached."""
        self._write(self.result, result)
        about = json.loads(self.run.read_text())
        about |= {"finished": datetime.now(UTC).isoformat(timespec="seconds"), "interrupted": interrupted}
        self._write(self.run, about)

    def last_metrics(self) -> dict[str, Any]:
        """The metrics of the last whole iteration; empty before the first."""
        rows = read_metrics(self.metrics)
        return rows[-1] if rows else {}

    @staticmethod
    def _write(path: Path, values: dict[str, Any]) -> None:
        temporary = path.with_name(f".tmp-{path.name}")
        temporary.write_text(json.dumps(plain(values), indent=2) + "\n")
        temporary.replace(path)


class MetricsWriter:
    """Appends each iteration's metrics to ``metrics.jsonl`` and to TensorBoard's event files."""

    def __init__(self, folder: RunFolder):
        self._lines = folder.metrics.open("a")
        self._events = SummaryWriter(str(folder.tensorboard))

    def write(self, metrics: dict[str, Any]) -> None:
        """Write one iteration; ``env_steps`` is the step TensorBoard shows it at. Numbers that are not finite become null.

        TensorBoard gets the numbers only, and of the alarms that are on their count.
        """
        values = plain(metrics)
        self._lines.write(json.dumps(values) + "\n")
        self._lines.flush()
        for name, value in values.items():
            if name == "alarms":
                value = len(value)
            if isinstance(value, int | float) and name != "env_steps":
                self._events.add_scalar(name, value, values["env_steps"])

    def close(self) -> None:
        """Flush everything to its file."""
        self._lines.close()
        self._events.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that was cut off is left out."""
    rows: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows


def plain(value: Any) -> Any:
    """``value`` with numpy's numbers as Python's and those that are not finite as None, all the way down."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
