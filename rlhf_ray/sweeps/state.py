"""A sweep's state: what a resumed sweep needs, copied with checksums beside Tune's own files.

Tune overwrites its files in place, and starts a sweep anew over the old results if it can't read them. Hence `Keeper` copies each
state that Tune saves to ``state/``, and `check` compares everything with it before a sweep resumes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.execution.tune_controller import TuneController
from ray.tune.experiment import Trial

from rlhf_ray.data import signed
from rlhf_ray.data.atomic import find_folder, whole_file, whole_folder
from rlhf_ray.data.checkpoints import damaged_files
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.strays import without_strays
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.runs.metrics_files import carry_on

STATE = "state"
"""Folder in a sweep's folder with the copies."""

DIGESTS = "digests.json"
"""File in `STATE` with the checksums."""

PLAN, TUNER = "sweep.json", "tuner.pkl"

SAVED = (
    "experiment_state-*.json",
    "*-state-*.json",
    "search_gen_state-*.json",
    "*-state-*.pkl",
    "callback-states-*.pkl",
)
"""Patterns of the files in which Tune saves its trials, its searcher and its callbacks."""

ROWS = ("result.json", "progress.csv")
"""Files in a trial's folder that grow by a row per result."""

KEPT = 4
"""Newest checkpoints kept per trial. With fewer, one that another trial is about to copy could be deleted."""

AGAIN = "Start the sweep again in another folder (its labels are in preferences/ of each trial's folder)"


class DamagedSweepError(SettingError):
    """A file of a sweep is missing or damaged. The message names it and the remedy. Nothing was changed."""

    def __init__(self, file: Path, what: str, remedy: str):
        super().__init__(f"{file} {what}; nothing was changed. {remedy}.")


@dataclass(frozen=True)
class Kept:
    """What is known of a trial when the state is saved.

    Attributes:
        rows: size and SHA-256 of each of `ROWS`. Later, the file may be longer.
        checkpoint: the newest checkpoint, relative to the sweep's folder; None if a resumed sweep doesn't need one.
        pickles: the hash of what runs code in it (`rlhf_ray.data.signed.digest`).
    """

    rows: dict[str, tuple[int, str]]
    checkpoint: str | None
    pickles: str | None


class Keeper(tune.Callback):  # type: ignore[misc]
    """Keeps each state that Tune saves (see `keep`)."""

    def __init__(self) -> None:
        self._newest = 0

    def on_step_end(self, iteration: int, trials: Sequence[Trial], **info: Any) -> None:
        """Keep a new state (called by Tune in the same step in which it saved the state)."""
        if not trials:
            return
        storage = trials[0].storage
        staged = Path(storage.experiment_driver_staging_path)
        newest = max((file.stat().st_mtime_ns for file in staged.glob(SAVED[0])), default=0)
        if newest != self._newest:
            with carry_on("state of the sweep"):
                found = {trial.storage.trial_dir_name: _of_trial(trial) for trial in trials}
                keep(Path(storage.experiment_fs_path), staged, found)
                self._newest = newest


def _of_trial(trial: Trial) -> tuple[Path, str | None]:
    """Return where a trial's rows are written, and its newest checkpoint if it may be resumed."""
    live = trial.checkpoint is not None and trial.status != Trial.TERMINATED
    return Path(trial.local_path), trial.checkpoint.path if live else None


def keep_results(folder: Path, results: tune.ResultGrid) -> None:
    """Keep the state at the end of a sweep, or of an interrupted one."""
    found = {}
    for result in results:
        live = result.checkpoint is not None and not (result.metrics or {}).get("done")
        found[Path(result.path).name] = Path(result.path), result.checkpoint.path if live else None
    with carry_on("state of the sweep"):
        keep(folder, folder, found)


def keep(folder: Path, source: Path, trials: dict[str, tuple[Path, str | None]]) -> None:
    """Copy Tune's state to the folder `STATE`, atomically.

    Args:
        folder: the sweep's folder.
        source: where Tune has saved it.
        trials: by folder name, where each trial's rows are, and the path of the checkpoint that it would resume from.

    Raises:
        OSError: the write failed.
    """
    before = _read(folder)
    files = {name: folder / name for name in (PLAN, TUNER) if (folder / name).exists()}
    files |= {file.name: file for file in _saved(source)}
    of_trials = {}
    for name, (place, checkpoint) in trials.items():
        rows = {file: (path.stat().st_size, _digest(path)) for file in ROWS if (path := place / file).exists()}
        pickles = checkpoint and signed.digest(Path(checkpoint), skip=(PREFERENCES,))
        of_trials[name] = Kept(rows, checkpoint and os.path.relpath(checkpoint, folder), pickles)
    with whole_folder(folder / STATE) as new:
        for name, file in files.items():
            shutil.copyfile(file, new / name)
        digests = {name: _digest(new / name) for name in files}
        values = {
            # Tune's own files may lag behind by one state, as it copies them in the background.
            "files": {name: [digest, before.get("files", {}).get(name, [None])[0]] for name, digest in digests.items()},
            "trials": {name: asdict(kept) for name, kept in of_trials.items()},
            "trials_before": before.get("trials", {}),
        }
        text = json.dumps(values, indent=2)
        (new / DIGESTS).write_text(json.dumps({"sha256": _sum(text), **values}, indent=2) + "\n")
        signed.sign(new)


def has_state(folder: Path) -> bool:
    """Return whether `keep` has copied a state."""
    return find_folder(folder / STATE).exists()


def has_started(folder: Path) -> bool:
    """Return whether any trial of the sweep has started."""
    return bool(_saved(folder) or _saved(find_folder(folder / STATE))) or any(folder.glob("trial_*"))


def check_pickles(folder: Path) -> None:
    """Check that a process of this user has kept the state of a sweep, and that its pickles and its trials' are those.

    Raises:
        SettingError: it is not so, and the user has not allowed them; see `rlhf_ray.data.signed.check`.
    """
    kept = find_folder(folder / STATE)
    if not _saved(kept):
        kept = folder
    signed.check(kept, folder)
    for trial in _read(folder).get("trials", {}).values():
        checkpoint = trial["checkpoint"] and folder / trial["checkpoint"]
        if checkpoint and trial.get("pickles") != signed.digest(checkpoint, skip=(PREFERENCES,)):
            signed.check(checkpoint, folder, skip=(PREFERENCES,))


def check(folder: Path) -> None:
    """Check the files that a resumed sweep reads, if there are checksums (`DamagedSweepError` may advise to delete them).

    Raises:
        DamagedSweepError: one is missing or damaged.
    """
    if not has_state(folder):
        return
    kept = find_folder(folder / STATE)
    try:
        values = json.loads((kept / DIGESTS).read_text())
        whole = values.pop("sha256") == _sum(json.dumps(values, indent=2))
    except (OSError, ValueError, KeyError, AttributeError, TypeError):
        whole = False
    if not whole:
        raise DamagedSweepError(
            kept / DIGESTS, _state_of(kept / DIGESTS), f"Resume without its checksums: rm -r {kept}"
        )
    behind = False
    for name, digests in values["files"].items():
        behind |= _check_pair(folder / name, kept / name, *digests)
    for name, trial in values["trials"].items():
        rows = values["trials_before"].get(name, {"rows": {}})["rows"] if behind else trial["rows"]
        _check_trial(folder, name, rows, trial["checkpoint"])


def _check_pair(file: Path, copy: Path, digest: str, before: str | None) -> bool:
    """Check a file and its copy. Return whether the file is that of the state before, as a kill may leave it."""
    found = _digest_of(file), _digest_of(copy)
    if found[1] != digest:
        remedy = AGAIN
        if found[0] is not None and found[0] in (digest, before):
            remedy = f"Resume without the checksums there: rm -r {copy.parent}"
        raise DamagedSweepError(copy, _state_of(copy), remedy)
    if found[0] is None or found[0] not in (digest, before):
        raise DamagedSweepError(file, _state_of(file), f"Its copy is whole: cp {copy} {file}")
    return found[0] != digest


def _check_trial(folder: Path, name: str, rows: dict[str, Any], checkpoint: str | None) -> None:
    for file, (size, digest) in rows.items():
        path = folder / name / file
        if not path.exists() or _digest(path, size) != digest:
            other = next(one for one in ROWS if one != file)
            remedy = f"Its rows are in {other} too; resume without it and without checksums: rm -rf {path}"
            raise DamagedSweepError(path, _state_of(path), f"{remedy} {folder / STATE}")
    if checkpoint is None:
        return
    newest = folder / checkpoint
    if damage := damaged_files(newest):
        others = without_strays(newest.parent.glob("checkpoint_*"))
        older = [one for one in others if one.name < newest.name and not damaged_files(one)]
        remedy = f"Resume from the one before it: rm -rf {newest}; cp -r {older[-1]} {newest}" if older else AGAIN
        raise DamagedSweepError(newest / damage[0], _state_of(newest / damage[0]), remedy)


@contextlib.contextmanager
def named(file: Path, remedy: str = AGAIN) -> Iterator[None]:
    """Context manager: an error inside means that ``file`` is damaged.

    Raises:
        DamagedSweepError: there was an error.
    """
    try:
        yield
    except SettingError:
        raise
    except Exception as error:
        raise DamagedSweepError(file, _state_of(file), remedy) from error


def put_back(folder: Path) -> None:
    """Put the kept state where Tune reads it, and cut rows that a killed sweep wrote in part. Call `check` first.

    Remove other states and errors there, which Tune would unpickle.
    """
    kept = find_folder(folder / STATE)
    if names := {file.name for file in _saved(kept)}:
        for file in (*_saved(folder), *folder.glob("trial_*/error.pkl")):
            if file.name not in names:
                file.unlink()
    for file in (*_saved(kept), *kept.glob(TUNER)):
        if _digest_of(folder / file.name) != _digest(file):
            with whole_file(folder / file.name) as sink:
                sink.write(file.read_bytes())
    for rows in (file for name in ROWS for file in folder.glob(f"trial_*/{name}")):
        content = rows.read_bytes()
        if content and not content.endswith(b"\n"):
            os.truncate(rows, content.rfind(b"\n") + 1)
    for trial in _read(folder).get("trials", {}).values():
        if trial["checkpoint"] is not None:
            _stand_in(folder / trial["checkpoint"])


def _stand_in(newest: Path) -> None:
    """Make empty folders in place of older checkpoints that were deleted since: Tune fails when it can't delete them again."""
    name, _, number = newest.name.rpartition("_")
    for older in range(max(0, int(number) - KEPT + 1), int(number)):
        newest.with_name(f"{name}_{older:0{len(number)}d}").mkdir(exist_ok=True)


@contextlib.contextmanager
def restored_or_stopped(folder: Path) -> Iterator[None]:
    """Context manager for `Tuner.fit`: if Tune can't restore the sweep, end it. Tune would start it anew over the old results.

    Raises:
        DamagedSweepError: Tune can't restore it.
    """
    before = TuneController.resume

    @functools.wraps(before)
    def resume(self: Any, *arguments: Any, **keywords: Any) -> None:
        try:
            before(self, *arguments, **keywords)
        except Exception as error:
            raise _NotRestored from error  # no Exception, which Tune would ignore

    TuneController.resume = resume
    try:
        yield
    except _NotRestored as stop:
        error = stop.__cause__
        what = f"can't be restored by Ray Tune ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
        raise DamagedSweepError(folder, what, AGAIN) from error
    finally:
        TuneController.resume = before


class _NotRestored(BaseException):
    pass


def _read(folder: Path) -> dict[str, Any]:
    try:
        values: dict[str, Any] = json.loads((find_folder(folder / STATE) / DIGESTS).read_text())
    except (OSError, ValueError):
        return {}
    return values


def _saved(folder: Path) -> list[Path]:
    """Return the files of Tune's states in ``folder``, those of trials last, the newest at the end."""
    found = {file for pattern in SAVED for file in without_strays(folder.glob(pattern))}
    return sorted(found, key=lambda file: (file.match(SAVED[0]), file.name))


def _state_of(file: Path) -> str:
    return "is missing" if not file.exists() else "is empty" if not file.stat().st_size else "is damaged"


def _digest_of(file: Path) -> str | None:
    return _digest(file) if file.is_file() else None


def _digest(file: Path, size: int = -1) -> str:
    """Return the SHA-256 of a file, or of its first ``size`` bytes."""
    with file.open("rb") as content:
        return hashlib.sha256(content.read(size)).hexdigest()


def _sum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
