"""The run folder: where everything that a run leaves behind lies.

::

    config.json       the resolved settings                  metrics.jsonl   one line per iteration
    run.json          versions, machine, command, times      tensorboard/    the same metrics
    preferences/      the preference store                   result.json     the outcome
    reward_model/     safetensors and JSON                   report.html     one page about all of it
    checkpoints/      RLlib's checkpoints of the algorithm, the newest two
    start/            copies of what the run started from: reward_model/, labels/ (a store), policy.safetensors
    labelling.json    where people label: their names and tokens, for the owner of the folder alone
    labelling.port    the port of the labelling page, which a resumed run serves it at again
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_ray.data import consent
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.checkpoints import all_checkpoints, damaged_files, last_checkpoint
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import writing
from rlhf_ray.data.modules import found_in_all, look_in_all
from rlhf_ray.data.places import run_path
from rlhf_ray.data.plain import plain
from rlhf_ray.settings import Experiment, load_experiment, save_experiment

FORMAT = "rlhf_ray.run/1"


class RunFolder:
    """The folder of one run. Makes nothing by itself: see `create`."""

    def __init__(self, path: Path | str):
        self.path = run_path(path).absolute()
        self.config = self.path / "config.json"
        self.run = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.tensorboard = self.path / "tensorboard"
        self.preferences = self.path / "preferences"
        self.reward_model = self.path / "reward_model"
        self.checkpoints = self.path / "checkpoints"
        self.start = self.path / "start"
        self.result = self.path / "result.json"
        self.report = self.path / "report.html"
        self.labelling = self.path / "labelling.json"

    @staticmethod
    def create(path: Path | str, experiment: Experiment, options: dict[str, Any] | None = None) -> RunFolder:
        """Make the folder and write the settings, versions and command into it.

        Args:
            path: where.
            experiment: the settings.
            options: what else the run was asked to do, for when it is resumed.

        Raises:
            SettingError: something is in the folder already.
        """
        folder = RunFolder(path)
        try:
            folder.path.mkdir(parents=True)
        except (FileExistsError, NotADirectoryError):
            if not folder.path.is_dir() or any(folder.path.iterdir()):
                raise SettingError(
                    f"run_dir is {folder.path}, and there is something there already: name another folder."
                ) from None
        try:
            folder._begin(experiment, options or {})
        except BaseException:
            shutil.rmtree(folder.path, ignore_errors=True)  # or the next attempt would find something there
            raise
        for name in experiment.own_names():
            consent.allow(consent.module_of(name))
        return folder

    def _begin(self, experiment: Experiment, options: dict[str, Any]) -> None:
        with writing(self.config):
            save_experiment(experiment, self.config)
        names = ("rlhf-ray", "ray", "torch", "gymnasium", "numpy", "pyarrow")
        self._write(
            self.run,
            {
                "format": FORMAT,
                "started": datetime.now(UTC).isoformat(timespec="seconds"),
                "finished": None,
                "interrupted": False,
                "options": options,
                "modules": found_in_all(
                    map(consent.module_of, [*experiment.own_names(), *options.get("callback", ())])
                ),
                "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
                "versions": {name.replace("-", "_"): importlib.metadata.version(name) for name in names}
                | {"python": platform.python_version()},
                "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
            },
        )

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

    @staticmethod
    def around(path: Path | str) -> RunFolder | None:
        """The run folder that ``path`` is or lies in directly, as its store does; None where there is none."""
        folders = (RunFolder(path), RunFolder(run_path(path).absolute().parent))
        return next((folder for folder in folders if folder.config.exists()), None)

    def experiment(self) -> Experiment:
        """The settings of the run. The modules that it names are looked for where the run found them, too.

        Raises:
            SettingError: its config.json is missing, damaged or something else's; or nobody has allowed a module that it names
                to be imported (`rlhf_ray.data.consent`).
        """
        experiment = load_experiment(self.config)
        if experiment.own_names() and self.run.exists():
            look_in_all(self.about().get("modules"))
        consent.check(experiment.own_names(), self.config)
        return experiment

    def checkpoint(self) -> Path:
        """The newest whole checkpoint.

        Raises:
            SettingError: there is none yet, or each is damaged.
        """
        checkpoint = last_checkpoint(self.checkpoints)
        there = all_checkpoints(self.checkpoints)
        if checkpoint is None and there:
            damage = "; ".join(f"{each.name}: {', '.join(damaged_files(each)[:3])}" for each in there)
            raise SettingError(
                f"Every checkpoint in {self.checkpoints} is damaged; these files are missing or changed ({damage}). Bring one back "
                "from a copy, or remove that folder: `rlhf-ray train --resume` then begins anew, with the labels there are."
            )
        if checkpoint is None:
            every = self.experiment().checkpoint_every
            raise SettingError(
                f"{self.path} holds no policy yet: a run writes its first checkpoint after checkpoint_every={every} iterations, or "
                "when it ends."
            )
        return checkpoint

    def about(self) -> dict[str, Any]:
        """What `create` and `finish` wrote: versions, machine, command, times.

        Raises:
            SettingError: run.json is missing, damaged or something else's.
        """
        try:
            values: dict[str, Any] = json.loads(self.run.read_text())
            if values["format"] != FORMAT:
                raise ValueError(f"its format is {values['format']!r}")
        except (OSError, ValueError, TypeError, KeyError) as error:
            why = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({_said(error)})"
            raise SettingError(
                f"{self.run} {why}: bring it back from a copy. Without it the run cannot be continued, only evaluated."
            ) from error
        return values

    def metrics_at(self, iteration: int) -> dict[str, Any]:
        """The metrics of one iteration; empty where there are none."""
        return next((row for row in reversed(read_metrics(self.metrics)) if row["iteration"] == iteration), {})

    def finished(self) -> bool:
        """Whether the run came to its end."""
        about = self.about()
        return about["finished"] is not None and not about["interrupted"]

    def go_back_to(self, iteration: int) -> None:
        """Forget the metrics of the iterations after ``iteration``, which are about to be done again."""
        rows = [row for row in read_metrics(self.metrics) if row["iteration"] <= iteration]
        write_text(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def note_labels(self, last: int) -> None:
        """Note the number of the store's last event before the run began."""
        self._write(self.run, self.about() | {"labels_until": last})

    def labels_before(self) -> int | None:
        """What `note_labels` noted; None where the run did not come that far, or is of an earlier version."""
        last: int | None = self.about().get("labels_until")
        return last

    def finish(self, result: dict[str, Any], *, interrupted: bool) -> None:
        """Write the outcome and the time it was reached."""
        self._write(self.result, result)
        about = self.about() | {"finished": datetime.now(UTC).isoformat(timespec="seconds"), "interrupted": interrupted}
        self._write(self.run, about)

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of all whole iterations."""
        return read_metrics(self.metrics)

    def last_metrics(self) -> dict[str, Any]:
        """The metrics of the last whole iteration; empty before the first."""
        rows = self.rows()
        return rows[-1] if rows else {}

    @staticmethod
    def _write(path: Path, values: dict[str, Any]) -> None:
        write_text(path, json.dumps(plain(values), indent=2) + "\n")


def _said(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``; a last line that was cut off is left out."""
    rows: list[dict[str, Any]] = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError:
            break
    return rows
