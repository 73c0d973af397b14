"""The ring of an algorithm, from its configuration, and the run folder of both: under runs/, not in RLlib's ~/ray_results."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any

import pyarrow.fs
from ray.rllib.algorithms.algorithm import Algorithm

from rlhf_ray.actors.build import build_ring
from rlhf_ray.actors.executor import LocalExecutor
from rlhf_ray.actors.people import PageSettings
from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.actors.ring import (
    STATE,
    Learn,
    Pretrained,
    Progress,
    Ring,
    RingSettings,
    RoundReport,
    StepBudget,
    Stop,
    never,
    no_fit,
)
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.data.places import make_run_folder
from rlhf_ray.labelling.camera import tried_fps
from rlhf_ray.queries.pool import PoolReport
from rlhf_ray.rllib.config import PreferenceConfig
from rlhf_ray.rllib.metrics import PREFERENCES
from rlhf_ray.rllib.starting import fitted_reward

logger = logging.getLogger(__name__)


class FixedReward(Ring):
    """The ring of a training on a fixed, already fitted reward model: no questions, no fits, no actors.

    Args:
        reward: the fitted reward model (`RewardEnsemble.state`); None if `load` will provide it.
    """

    env_steps = answered = skipped = rounds_held = 0
    collecting = False
    people: None = None

    def __init__(self, reward: dict[str, Array] | None):
        self._reward = reward

    @property
    def version(self) -> int:
        """The reward model's version when it was saved; 0 if there is none."""
        return 0 if self._reward is None else int(self._reward["version"])

    def newest_reward(self) -> dict[str, Array]:
        """See `Ring.newest_reward`.

        Raises:
            SettingError: there is none.
        """
        if self._reward is None:
            raise SettingError(
                "preferences.comparisons is 0, but there is no fitted reward model to train on: set it to 1 or more, or name a "
                "fitted one (`--reward-from`, or start_from(reward_model=…) of the configuration)."
            )
        return self._reward

    def begin(self, env_steps: int, stop: Stop = never, pretrained: Pretrained | None = None) -> RoundReport:
        """Report the fixed reward."""
        self.newest_reward()
        return RoundReport(0, 0, 0, 0, None, new_reward=True)

    def advance(self, progress: Progress, stop: Stop = never, learn: Learn = lambda fit: None) -> None:
        """Let the agent learn: nothing else is ever due."""
        learn(no_fit)

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`: there are no fragments."""
        return PoolReport().metrics()

    def save(self, folder: Path) -> None:
        (folder / STATE).mkdir(exist_ok=True)
        write_nested({"reward": self._reward}, folder / STATE)

    def load(self, folder: Path, *, replace: bool = False) -> None:
        self._reward = read_nested(folder / STATE)["reward"]


def ring_of(
    config: PreferenceConfig, budget: StepBudget, store: Path | str, folder: Path | str, callbacks: RingCallbacks | None
) -> Ring:
    """Start the ring of an algorithm.

    Raises:
        SettingError: there is no fitted reward model to train on, or the labels to start from can't be used.
    """
    checked, name = config.checked, config.ring_name
    assert checked is not None
    assert name is not None
    experiment = checked.experiment
    if experiment.preferences.comparisons == 0:
        return FixedReward(None if config.reward_from is None else fitted_reward(config.reward_from).state())
    settings = RingSettings(
        checked.fragments,
        experiment.preferences,
        experiment.reward_model,
        checked.observation_space,
        checked.action_space,
        store,
        experiment.seed,
        experiment.total_env_steps,
        config.begun_after,
        experiment.machine,
        experiment.labelling.instructions,
    )
    ring = build_ring(
        settings,
        LocalExecutor(name) if config.ring_here else RayExecutor(name),
        config.make_env(film=checked.films),
        rollouts=config.num_envs_per_env_runner,
        iterations=budget.learning_iterations,
        iteration_env_steps=budget.iteration_env_steps,
        page=page_of(config, name, folder),
        callbacks=callbacks,
    )
    if config.labels_from is not None:
        try:
            ring.adopt(config.labels_from)
        except Exception:
            ring.close()  # there is no algorithm yet that would close it
            raise
    return ring


def page_of(config: PreferenceConfig, run_id: str, folder: Path | str) -> PageSettings | None:
    """Return the settings of the labelling page; None without human annotators.

    Raises:
        SettingError: the environment can't be rendered, or the page's texts can't be read.
    """
    experiment = config.settings()
    labelling = experiment.labelling
    if not experiment.preferences.asks_people:
        return None
    sessions = Path(config.sessions or Path(folder).absolute() / "labelling.json")
    fps = tried_fps("preferences.teacher is human, but ", config.make_env(film=True))
    port_file = None if config.sessions is None else Path(config.sessions).with_suffix(".port")
    return PageSettings.read(labelling, sessions, str(config.env), fps, run_id, experiment.seed, port_file)


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
