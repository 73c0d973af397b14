"""The run folder: all files of a run.

::

    config.json       the resolved settings                  metrics.jsonl   one row per iteration
    run.json          versions, machine, command, times      tensorboard/    the same metrics
    preferences/      the preference store                   result.json     the outcome
    reward_model/     safetensors and JSON                   report.html     the run report; report.json: for programs
    policy/           the same of the newest checkpoint's policy
    checkpoints/      RLlib's checkpoints of the algorithm, the newest two
    start/            copies of the parts the run started from: reward_model/, labels/ (a store), policy.safetensors
    labelling.json    the annotators' names and tokens; readable by the folder's owner only
    distances.json    distances of the learned from the true reward, by `rlhf-ray evaluate RUN --distances`
    metrics.csv       the numbers in metrics.jsonl as a table
    probe.json        ids of the fragments on which reward versions are compared
    machine.jsonl     what a machine was asked and said (`rlhf_ray.queries.machine`)
    labelling.port    the port of the labelling page, reused by a resumed run
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlhf_ray.data import consent
from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.checkpoints import all_checkpoints, damaged_files, last_checkpoint
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import writing
from rlhf_ray.data.lock import INSIDE, Lock
from rlhf_ray.data.metrics import plain
from rlhf_ray.data.modules import found_in_all
from rlhf_ray.data.nested import read_nested
from rlhf_ray.data.places import run_path
from rlhf_ray.data.strays import without_strays
from rlhf_ray.settings import Experiment, load_experiment, save_experiment, to_json

FORMAT = "rlhf_ray.run/2"

_OTHER = "or start another run"


class RunFolder:
    """The folder of one run. The constructor creates nothing; see `create`."""

    def __init__(self, path: Path | str):
        self.path = run_path(path).absolute()
        self.config = self.path / "config.json"
        self.run = self.path / "run.json"
        self.metrics = self.path / "metrics.jsonl"
        self.metrics_csv = self.path / "metrics.csv"
        self.tensorboard = self.path / "tensorboard"
        self.preferences = self.path / "preferences"
        self.reward_model = self.path / "reward_model"
        self.policy = self.path / "policy"
        self.checkpoints = self.path / "checkpoints"
        self.start = self.path / "start"
        self.result = self.path / "result.json"
        self.report = self.path / "report.html"
        self.distances = self.path / "distances.json"
        self.probe = self.path / "probe.json"
        self.labelling = self.path / "labelling.json"
        self.machine = self.path / "machine.jsonl"
        self.paused = self.path / "collecting.paused"
        self.chosen: Path | None = None
        """The checkpoint that `of_policy` was given."""
        self._lock: Lock | None = None

    @staticmethod
    def create(path: Path | str, experiment: Experiment, options: dict[str, Any] | None = None) -> RunFolder:
        """Create the folder with the settings, versions and command.

        ``options``: other options of the run, needed to resume it.

        Raises:
            SettingError: the folder exists and is not empty, or can't be created.
        """
        folder, options, modules = RunFolder(path), options or {}, experiment.own_names()
        versions = {"rlhf_ray": "rlhf-ray"} | {name: name for name in ("ray", "torch", "gymnasium", "numpy", "pyarrow")}
        about = {
            "format": FORMAT,
            "started": _now(),
            "finished": None,
            "interrupted": False,
            "options": options,
            "modules": found_in_all(map(consent.module_of, [*modules, *options.get("callback", ())])),
            "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
            "versions": {name: importlib.metadata.version(of) for name, of in versions.items()}
            | {"python": platform.python_version()},
            "machine": {"cpus": os.cpu_count(), "platform": platform.platform()},
        }
        with own_folder(folder.path, _OTHER):
            if any(entry.name != INSIDE for entry in without_strays(folder.path.iterdir())):
                raise SettingError(f"run_dir is {folder.path}, which already exists; give another folder.")
            try:
                with writing(folder.config):
                    save_experiment(experiment, folder.config)
                folder._write(folder.run, about)
            except BaseException:
                shutil.rmtree(folder.path, ignore_errors=True)  # or the next attempt would fail: the folder exists
                raise
        for name in modules:
            consent.allow(consent.module_of(name))
        return folder

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Inside this context, no other process writes to the folder. Nested ones of this object do nothing.

        Raises:
            LockedError: another process writes there. Reading needs no lock.
        """
        if self._lock is not None:
            yield
            return
        try:
            with Lock(self.path, _OTHER) as self._lock:
                yield
        finally:
            self._lock = None

    @staticmethod
    def open(path: Path | str) -> RunFolder:
        """Open an existing run folder.

        Raises:
            SettingError: the path is not a run folder.
        """
        return RunFolder(path).is_there()

    @staticmethod
    def of_policy(path: Path | str) -> RunFolder:
        """The run folder ``path``, or the one that has the checkpoint ``path``, which is then its only one; it may not exist."""
        folder = RunFolder(path)
        run = RunFolder(folder.path.parents[1]) if len(folder.path.parents) > 1 else folder
        if not folder.config.exists() and folder.path.parent == run.checkpoints and run.config.exists():
            run.chosen = folder.path
            return run
        return folder

    def is_there(self) -> RunFolder:
        """Return this folder.

        Raises:
            SettingError: it is not a run folder.
        """
        if not self.config.exists():
            raise SettingError(f"{self.path} is not a run folder (no config.json); give the folder of a run.")
        return self

    @staticmethod
    def around(path: Path | str) -> RunFolder | None:
        """The run folder at ``path`` or at its parent, as for a run's store; None if neither is one."""
        folders = (RunFolder(path), RunFolder(run_path(path).absolute().parent))
        return next((folder for folder in folders if folder.config.exists()), None)

    def experiment(self) -> Experiment:
        """The settings of the run. Also adds the folders where the run found its user modules to the search path.

        Raises:
            SettingError: config.json is missing, damaged or not an experiment; or it names a module whose import was not allowed
                (`rlhf_ray.data.consent`).
        """
        experiment = load_experiment(self.config)
        names = experiment.own_names()
        found = self.about().get("modules") if names and self.run.exists() else None
        consent.check(names, self.config, found)
        return experiment

    def suspicions(self) -> dict[tuple[str, str], float]:
        """How likely answers are wrong that are more likely wrong than right, by pair id and annotator, at the last checkpoint."""
        for checkpoint in reversed(all_checkpoints(self.checkpoints)):
            if (checkpoint / "ring" / "state.json").exists():
                trainer = read_nested(checkpoint / "ring").get("trainer") or {}
                return {(pair, who): chance for pair, who, chance in trainer.get("suspicions", ())}
        return {}

    def checkpoint(self) -> Path:
        """The newest whole checkpoint, or the one that `of_policy` was given.

        Raises:
            SettingError: there is none yet, or all are damaged.
        """
        if self.chosen is not None:
            if bad := damaged_files(self.chosen) if self.chosen.exists() else ["it does not exist"]:
                raise SettingError(f"The checkpoint {self.chosen} is damaged ({', '.join(bad[:3])}); give another one.")
            return self.chosen
        if (checkpoint := last_checkpoint(self.checkpoints)) is not None:
            return checkpoint
        if there := all_checkpoints(self.checkpoints):
            damage = "; ".join(f"{each.name}: {', '.join(damaged_files(each)[:3])}" for each in there)
            raise SettingError(
                f"All checkpoints in {self.checkpoints} are damaged; files are missing or changed ({damage}). Restore one from a "
                "backup, or delete that folder: `rlhf-ray train --resume` then restarts training with the stored labels."
            )
        every = self.experiment().checkpoint_every
        raise SettingError(
            f"{self.path} has no policy yet: a run writes its first checkpoint after checkpoint_every={every} iterations or at its "
            f"end. Wait for it; if the run has stopped, resume it with `rlhf-ray train --resume {self.path}`."
        )

    def about(self) -> dict[str, Any]:
        """Read run.json: versions, machine, command, times.

        Raises:
            SettingError: run.json is missing, damaged, not a run's, or another version's.
        """
        try:
            values: dict[str, Any] = json.loads(self.run.read_text())
            written = values["format"]
        except (OSError, ValueError, TypeError, KeyError) as error:
            said = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            why = "is missing" if isinstance(error, FileNotFoundError) else f"can't be read ({said})"
            raise SettingError(
                f"{self.run} {why}: restore it from a backup. Without it the run can be evaluated but not resumed."
            ) from error
        if written != FORMAT:
            raise SettingError(
                f"{self.run} has format {written!r}; this version reads {FORMAT!r}: use the version that wrote it."
            )
        return values

    def metrics_at(self, iteration: int) -> dict[str, Any]:
        """The metrics of one iteration; empty if there are none."""
        return next((row for row in reversed(self.rows()) if row["iteration"] == iteration), {})

    def finished(self) -> bool:
        """Whether the run is complete."""
        about = self.about()
        return about["finished"] is not None and not about["interrupted"]

    def go_back_to(self, iteration: int) -> None:
        """Delete the metrics of the iterations after ``iteration``, which will be repeated."""
        rows = [row for row in self.rows() if row["iteration"] <= iteration]
        write_text(self.metrics, "".join(json.dumps(row) + "\n" for row in rows))

    def note_labels(self, last: int) -> None:
        """Record the number of the store's last event before training starts, as ``labels_until``."""
        self._write(self.run, self.about() | {"labels_until": last})

    def finish(self, result: dict[str, Any], *, interrupted: bool) -> None:
        """Write the outcome and the end time."""
        self._write(self.result, result)
        self._write(self.run, self.about() | {"finished": _now(), "interrupted": interrupted})

    def extend(self, experiment: Experiment) -> None:
        """Replace the settings by those of a longer run, which `train` resumes. The outcome so far is deleted."""
        about = self.about()
        part = {"finished": about["finished"], "extended": _now(), "total_env_steps": experiment.total_env_steps}
        part["comparisons"] = experiment.preferences.comparisons
        write_text(self.config, json.dumps(to_json(experiment), indent=2) + "\n")
        parts = [*about.get("parts", []), part]
        self._write(self.run, about | {"finished": None, "interrupted": False, "parts": parts})
        self.result.unlink(missing_ok=True)

    def rows(self) -> list[dict[str, Any]]:
        """The metrics of all complete iterations."""
        return read_metrics(self.metrics)

    def last_metrics(self) -> dict[str, Any]:
        """The metrics of the last complete iteration; empty before the first."""
        return next(reversed(self.rows()), {})

    @staticmethod
    def _write(path: Path, values: dict[str, Any]) -> None:
        write_text(path, json.dumps(plain(values), indent=2) + "\n")


@contextlib.contextmanager
def own_folder(path: Path, remedy: str) -> Iterator[None]:
    """Inside this context, the folder of a new run or sweep exists, and no other process writes to it; see `Lock`.

    If it is empty in the end, it is removed.

    Raises:
        SettingError: it can't be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SettingError(
            f"--run-dir is {path}, which can't be created ({error.strerror}): choose a folder that can be written."
        ) from error
    try:
        with Lock(path, remedy):
            yield
    finally:
        with contextlib.suppress(OSError):
            path.rmdir()


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl`` file, without a truncated last line."""
    rows: list[dict[str, Any]] = []
    with contextlib.suppress(json.JSONDecodeError):
        for line in path.read_text().splitlines() if path.exists() else []:
            rows.append(json.loads(line))
    return rows
