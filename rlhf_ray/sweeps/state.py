"""A sweep's state: what a resumed sweep needs, copied beside Tune's own files, which Tune overwrites in place."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.experiment import Trial

from rlhf_ray.data import signed
from rlhf_ray.data.atomic import find_folder, whole_folder
from rlhf_ray.data.checkpoints import add_manifest, damaged_files
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.strays import without_strays
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.runs.metrics_files import carry_on

STATE, TRIALS = "state", "trials.json"
"""Folder in a sweep's folder with the copies, and the file in it with each trial's newest checkpoint."""
PLAN, TUNER = "sweep.json", "tuner.pkl"
SAVED = ("*[-_]state-*.json", "*-state-*.pkl", "callback-states-*.pkl", "experiment_state-*.json")
"""Patterns of the files in which Tune saves its searcher, its callbacks and its trials."""
KEPT = 4
"""Newest checkpoints kept per trial. With fewer, one that another trial is about to copy could be deleted."""


class Keeper(tune.Callback):  # type: ignore[misc]
    """Keeps each state that Tune saves (see `keep`)."""

    _newest = 0

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        """Keep a new state (called by Tune in the same step in which it saved the state)."""
        if not trials:
            return
        storage = trials[0].storage
        staged = Path(storage.experiment_driver_staging_path)
        newest = max((file.stat().st_mtime_ns for file in staged.glob(SAVED[-1])), default=0)
        if newest != self._newest:
            live = [trial for trial in trials if trial.checkpoint is not None and trial.status != Trial.TERMINATED]
            checkpoints = {trial.storage.trial_dir_name: trial.checkpoint.path for trial in live}
            keep(Path(storage.experiment_fs_path), staged, checkpoints)
            self._newest = newest


def keep(folder: Path, source: Path, checkpoints: Mapping[str, str]) -> None:
    """Copy Tune's state in ``source`` to the sweep's folder `STATE`, atomically, with checksums and a signature.

    ``checkpoints``: by the name of a trial's folder, the path of the checkpoint that it would resume from.
    """
    with carry_on("state of the sweep"), whole_folder(folder / STATE) as new:
        trials = {
            name: [os.path.relpath(path, folder), signed.digest(Path(path), skip=(PREFERENCES,))]
            for name, path in checkpoints.items()
        }
        for file in (*filter(Path.exists, (folder / PLAN, folder / TUNER)), *_saved(source)):
            shutil.copyfile(file, new / file.name)
        (new / TRIALS).write_text(json.dumps(trials, indent=2) + "\n")
        add_manifest(new, PREFERENCES)
        signed.sign(new)


def has_started(folder: Path) -> bool:
    """Return whether any trial of the sweep has started."""
    return bool(_saved(folder) or _saved(kept(folder))) or any(folder.glob("trial_*"))


def kept(folder: Path) -> Path:
    """Return the folder with the copies."""
    return find_folder(folder / STATE)


def check(folder: Path) -> None:
    """Check the files that a resumed sweep reads.

    Raises:
        SettingError: one is missing or damaged.
    """
    copies = kept(folder)
    if copies.exists() and (damage := damaged_files(copies)):
        raise _damaged(copies / damage[0])
    for name, (checkpoint, _) in _trials(folder).items():
        with named(rows := folder / name / "result.json"):
            for line in rows.read_text().splitlines()[:-1]:  # a kill may cut the last one
                json.loads(line)
        if damage := damaged_files(folder / checkpoint):
            raise _damaged(folder / checkpoint / damage[0])


def check_pickles(folder: Path) -> None:
    """Check that the pickles of a sweep's state and of its trials' checkpoints are of this user, or allowed (`signed.check`)."""
    if has_started(folder):
        signed.check(kept(folder) if _saved(kept(folder)) else folder, folder)
    for checkpoint, pickles in _trials(folder).values():
        if pickles != signed.digest(folder / checkpoint, skip=(PREFERENCES,)):
            signed.check(folder / checkpoint, folder, skip=(PREFERENCES,))


def put_back(folder: Path) -> None:
    """Put the kept state where Tune reads it, and cut rows that a killed sweep wrote in part. Call `check` first.

    Remove other states and errors there, which Tune would unpickle.
    """
    copies = kept(folder)
    if _saved(copies):
        for file in (*_saved(folder), *folder.glob("trial_*/error.pkl")):
            file.unlink()
        for file in (*_saved(copies), *copies.glob(TUNER), *copies.glob(PLAN)):
            shutil.copyfile(file, folder / file.name)
    for rows in (*folder.glob("trial_*/result.json"), *folder.glob("trial_*/progress.csv")):
        os.truncate(rows, rows.read_bytes().rfind(b"\n") + 1)
    for checkpoint, _ in _trials(folder).values():
        # Tune fails when it can't delete older checkpoints again: make empty folders in place of those deleted since.
        name, _, number = Path(checkpoint).name.rpartition("_")
        for older in range(max(0, int(number) - KEPT + 1), int(number)):
            (folder / checkpoint).with_name(f"{name}_{older:0{len(number)}d}").mkdir(exist_ok=True)


@contextlib.contextmanager
def named(file: Path) -> Iterator[None]:
    """Context manager: an error inside, other than a SettingError, means that ``file`` is damaged."""
    try:
        yield
    except SettingError:
        raise
    except Exception as error:
        raise _damaged(file) from error


def _damaged(file: Path) -> SettingError:
    what = "is missing" if not file.exists() else "is empty" if not file.stat().st_size else "is damaged"
    return SettingError(
        f"{file} {what}; nothing was changed. Start the sweep again in another folder (its labels are in preferences/ of each "
        "trial's folder)."
    )


def _trials(folder: Path) -> dict[str, tuple[str, str]]:
    """Return each live trial's newest checkpoint, relative to ``folder``, and the hash of what runs code in it."""
    file = kept(folder) / TRIALS
    return json.loads(file.read_text()) if file.exists() else {}


def _saved(folder: Path) -> list[Path]:
    """Return the files of Tune's states in ``folder``, those of trials last, the newest at the end."""
    found = without_strays({file for pattern in SAVED for file in folder.glob(pattern)})
    return sorted(found, key=lambda file: file.match(SAVED[-1]))
