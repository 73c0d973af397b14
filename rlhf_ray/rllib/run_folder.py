"""InRunFolder: a mixin for algorithms that write to a run folder under runs/, not to RLlib's ~/ray_results."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray.rllib.algorithms.algorithm import Algorithm

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.places import make_run_folder
from rlhf_ray.rllib.metrics import PREFERENCES

logger = logging.getLogger(__name__)


class InRunFolder(Algorithm):  # type: ignore[misc]
    """An RLlib algorithm whose ``logdir`` is the ``run_dir`` of its configuration; by default, a new folder under runs/.

    A Tune trial keeps its own folder.

    Raises:
        SettingError: the folder can't be made.
    """

    def __init__(self, config: Any = None, *arguments: Any, **keywords: Any):
        self._logdir: str | None = None
        try:
            super().__init__(config, *arguments, **keywords)
        except BaseException:
            self._remove_empty()
            raise
        ours: Any = self.config
        if self._storage is None and not (ours.run_dir or ours.store) and ours.settings().preferences.comparisons:
            logger.warning(
                "The comparisons are in %s; .preferences(run_dir=…) names another folder.", self._store_path()
            )

    def _setup_logdir(self) -> None:
        """Make the folder of the run (called by Ray, whose own would be in ~/ray_results)."""
        if self._storage is not None:
            super()._setup_logdir()
            return
        config: Any = self.config
        try:
            if config.run_dir is not None:
                path = Path(config.run_dir)
                path.mkdir(parents=True, exist_ok=True)
            else:
                env = getattr(config.env, "__name__", str(config.env))
                path = make_run_folder(env, getattr(config, "seed", None) or 0).absolute()
        except OSError as error:
            raise SettingError(
                f"The run's folder {error.filename} can't be made ({error.strerror}): name one that can, with "
                ".preferences(run_dir=…)."
            ) from error
        self._logdir = str(path)

    def cleanup(self) -> None:
        """Remove the folder if nothing was written to it (called by Ray)."""
        super().cleanup()
        self._remove_empty()

    def _remove_empty(self) -> None:
        if self._logdir is not None and self._storage is None:
            with contextlib.suppress(OSError):  # it is not empty
                Path(self._logdir).rmdir()

    def _store_path(self) -> Path | str:
        """Return the configured store, or a folder next to Tune's checkpoints of the trial, which a restored trial finds again."""
        if self.config.store:
            return str(self.config.store)
        storage = self._storage
        if storage is not None and isinstance(storage.storage_filesystem, pyarrow.fs.LocalFileSystem):
            return Path(storage.trial_fs_path).absolute() / PREFERENCES
        return Path(self.logdir).absolute() / PREFERENCES
