"""LearningSession: the reward that one agent's environments learn: the ring, the steps that it gets, the newest version."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
import uuid
import weakref
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import ray
import torch

from rlhf_ray.actors.asynchronous import AsynchronousRing
from rlhf_ray.actors.build import for_films, start_people
from rlhf_ray.actors.cluster import hold_ray, release_ray
from rlhf_ray.actors.people import PageSettings
from rlhf_ray.actors.ray_executor import RayExecutor
from rlhf_ray.actors.ring import Progress, RingSettings, RoundReport, no_policy
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.actors.ring_callbacks import Logs
from rlhf_ray.actors.synchronous import SynchronousRing
from rlhf_ray.data.arrays import Array, BoolArray, FloatArray
from rlhf_ray.data.atomic import find_folder
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY, cut_fragments
from rlhf_ray.data.images import is_image
from rlhf_ray.data.lock import Lock
from rlhf_ray.data.nested import read_nested
from rlhf_ray.data.seeds import generator
from rlhf_ray.labelling.films import Film
from rlhf_ray.labelling.sessions import invitation
from rlhf_ray.queries.gatherers import who_sees_films
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.queries.pool import CutFragments, FragmentPool
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.reward.novelty import Novelty
from rlhf_ray.settings import FragmentSettings, LabellingSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore
from rlhf_ray.wrappers.recorder import GivenFragments, Recorder, filmed_fragments
from rlhf_ray.wrappers.session import ASKED, RewardSession

logger = logging.getLogger(__name__)


class LearningSession(RewardSession):
    """A reward that a ring learns while the agent trains, and what the ring needs of the agent.

    Args:
        spaces, total_env_steps, seed: see `RewardSession`.
        fragments, preferences, reward_model, folder, ask, fit, labelling: see `HumanPreferencesEnv`.
        waits: whether a step whose labels are due waits for them and the fit.
        title: title of the labelling page.
        fps: frames per second of the environment at its own speed.
    """

    def __init__(
        self,
        spaces: tuple[gym.spaces.Box, gym.Space[Any]],
        total_env_steps: int,
        seed: int,
        *,
        fragments: FragmentSettings | None,
        preferences: PreferenceSettings | None,
        reward_model: RewardModelSettings | None,
        folder: Path | str | None,
        ask: bool,
        fit: bool,
        labelling: LabellingSettings | None = None,
        waits: bool = False,
        title: str = "clips",
        fps: float = 15.0,
    ):
        super().__init__(spaces, total_env_steps, seed)
        fragments, preferences = fragments or FragmentSettings(), preferences or PreferenceSettings()
        images = is_image(spaces[0])
        resolved = fragments.resolved(horizon=None, total_env_steps=total_env_steps, images=images)
        pretraining = preferences.pretraining_env_steps if ask else 0
        # This library does not control the agent: the first clips are of what it does, after the pretraining.
        first = resolved.initial_env_steps + pretraining
        self.fragments = dataclasses.replace(resolved, varied=False, initial_env_steps=first)
        self.last_fit: FitReport | None = None
        self.asks, self.fits, self.waits = ask, fit, waits
        self._novelty = Novelty(spaces[0].shape[0]) if pretraining and len(spaces[0].shape) == 1 else None
        self._begun = False
        preferences = dataclasses.replace(preferences, mode="synchronous" if waits else "asynchronous")
        with torch.random.fork_rng(devices=[]):  # must not affect the agent's random numbers
            self.ensemble = RewardEnsemble(*self.spaces, reward_model or RewardModelSettings())
        self.ensemble.check_steps(ASKED)
        self._check(preferences, folder, explores=fragments.exploration_env_steps)
        own_folder = tempfile.TemporaryDirectory(prefix="rlhf_ray-") if folder is None else None
        store = Path(own_folder.name if own_folder is not None else folder or "").absolute()
        lock = Lock(store / "preferences", "or give another folder")
        hold_ray(cpus=2)
        try:
            self.ring, self.source = self._build(preferences, store, labelling or LabellingSettings(), title, fps)
        except BaseException:
            release_ray()
            lock.release()
            raise
        self.films = bool(self.ring.actors.viewed) and not is_image(self.spaces[0])
        for line in invitation(self.links, store) if self.links else ():
            logger.warning("%s", line)
        self._end = weakref.finalize(self, _end, self.ring, lock, own_folder)  # also runs if close() is never called

    def _build(
        self, preferences: PreferenceSettings, folder: Path, labelling: LabellingSettings, title: str, fps: float
    ) -> tuple[AsynchronousRing | SynchronousRing, GivenFragments]:
        settings = RingSettings(
            self.fragments,
            preferences,
            self.ensemble.settings,
            *self.spaces,
            folder / "preferences",
            self.seed,
            self.total_env_steps,
        )
        asks_people = self.asks and preferences.asks_people
        actors = RingActors(
            for_films(settings) if self.asks and who_sees_films(preferences) else settings,
            RayExecutor(f"ring-{uuid.uuid4().hex[:12]}"),
            fits_apart=not self.waits or asks_people,
        )
        schedule = LabelSchedule(preferences, env_steps=self.total_env_steps)
        callbacks = Logs(folder)
        if self.asks:
            actors.start_scripted()
        actors.executor.started()
        if asks_people:
            port = folder / "labelling.port"
            page = PageSettings.read(labelling, folder / "labelling.json", title, fps, title, self.seed, port)
            start_people(actors, schedule, page, callbacks)
        source = GivenFragments(actors, asks=self.asks)
        if self.waits:
            return SynchronousRing(actors, schedule, source, callbacks, fits=self.fits), source
        return AsynchronousRing(actors, schedule, source, callbacks, asks=self.asks, fits=self.fits), source

    def _check(self, preferences: PreferenceSettings, folder: Path | str | None, *, explores: float) -> None:
        check_parts(preferences, self.ensemble.settings)
        if explores:
            raise SettingError(
                f"fragments.exploration_env_steps is {explores}; exploration needs the agent's policy, which a "
                "wrapper does not have: set it to 0."
            )
        if preferences.pretraining_env_steps and len(self.spaces[0].shape) != 1:
            raise SettingError(
                f"preferences.pretraining_env_steps is {preferences.pretraining_env_steps}, but distances between the observations "
                f"{self.spaces[0]} mean nothing; it needs vectors: set it to 0."
            )
        first = self.fragments.initial_env_steps
        if self.total_env_steps <= first:
            raise SettingError(
                f"total_env_steps is {self.total_env_steps}, but the first fragments alone need fragments.initial_env_steps="
                f"{first}: set it to the number of steps the agent will train for."
            )
        if folder is None and preferences.asks_people:
            raise SettingError(
                f"folder is None and preferences.teacher is {preferences.teacher!r}; people's answers would be lost with the "
                "temporary folder: set folder."
            )

    def rewards(
        self, observations: Array, actions: Array, next_observations: Array, terminated: Array
    ) -> FloatArray | None:
        if self.ring.version != self.version:
            self._use_version(self.ring.newest_reward())
        return super().rewards(observations, actions, next_observations, terminated)

    def early_rewards(self, next_observations: Array, real: BoolArray) -> FloatArray:
        """The rewards of ``n`` steps before the first version, ``[n]``: 0.0, or with pretraining the novelty of ``real`` ones."""
        rewards = np.zeros(len(real))
        if self._novelty is not None and real.any():
            rewards[real] = self._novelty(torch.as_tensor(next_observations[real])).numpy()
        return rewards

    def begin(self) -> None:
        """Start the ring unless it is running."""
        self.check_open()
        if not self._begun:
            self._exclude_stored()
            if isinstance(self.ring, AsynchronousRing):
                self.ring.start()
            else:
                actors = self.ring.actors
                tally = actors.executor.get(actors.store.call(PreferenceStore.tally))
                self.ring.answered, self.ring.skipped = tally.comparisons, tally.skipped
            self._begun = True

    def _exclude_stored(self) -> None:
        """Don't ask again about pairs in the store: it would keep the first answer, and the label would be missing."""
        actors = self.ring.actors
        pairs = actors.executor.get(actors.store.call(PreferenceStore.pairs))
        actors.executor.get(actors.pool.call(FragmentPool.exclude, pairs))
        if pairs and not self.waits:
            actors.renumber()

    def note_unlearned(self, steps: int) -> None:
        """Count ``steps`` with reward 0.0; the first time, warn about the effect on replay buffers."""
        if self.gathering or not self.fits or self._novelty is not None:
            return
        if not self.unlearned_steps:
            logger.warning(
                "There is no learned reward yet, so step() returns 0.0. A replay buffer would keep these rewards: use "
                "wait=True, or rlhf_ray.wrappers.relabel_replay_buffer(agent, env) after each new version."
            )
        self.unlearned_steps += steps

    @property
    def records(self) -> bool:
        return self.asks and self.collecting

    def collect(self, on: bool) -> None:
        self.collecting = self.ring.collecting = on
        if isinstance(self.ring, AsynchronousRing):
            self.ring.notify()

    @property
    def random_steps_wanted(self) -> int:
        if not self.asks or self.version or self.ring.answered >= self.ring.schedule.first_fit:
            return 0
        return max(0, self.fragments.initial_env_steps - self.seen_steps)

    @property
    def seen_steps(self) -> int:
        """Environment steps so far, without those taken while collecting was paused."""
        return self.env_steps - self.source.unseen

    def count(self, steps: int) -> None:
        super().count(steps)
        if not self.collecting:
            self.source.unseen += steps

    def send(self, recorder: Recorder, source: int) -> None:
        """Cut fragments from the steps in ``recorder`` and send them, with the agent's progress, to the ring.

        Raises:
            Exception: an actor of the ring failed since the last call.
        """
        trajectories, lengths = recorder.take()
        if self.asks and trajectories:
            of, steps = self.fragments, [len(trajectory) for trajectory in trajectories]
            version = RANDOM_POLICY if self.gathering else self.windows
            films: tuple[Film, ...] = ()
            if self.films:
                fragments, films = filmed_fragments(trajectories, of.length, version)
            else:
                fragments = cut_fragments(
                    trajectories,
                    length=of.length,
                    count=min(of.pool, max(2, 2 * sum(steps) // of.length)),  # each step is in two on average
                    start_share=of.start_share,
                    policy_version=version,
                    rng=generator(self.seed, "fragments", self.windows),
                )
            cut = CutFragments(source, self.windows, fragments, lengths)
            self.fragments_dropped += not self.source.take(cut, films, wait=self.gathering or self.waits)
            self.windows += 1
        initial = self.fragments.initial_env_steps
        share = (self.env_steps - initial) / (self.total_env_steps - initial)
        self.source.taken = self.seen_steps
        progress = Progress(min(max(share, 0.0), 1.0), self.env_steps, 0, self.windows, no_policy)
        self._advance(progress)

    def _advance(self, progress: Progress) -> None:
        """Tell the ring how far the training is. With ``waits`` it holds the rounds that are due, the first once it has clips."""
        if isinstance(self.ring, AsynchronousRing):
            self._note(self.ring.advance(progress))
            return
        actors, begun = self.ring.actors, self.ring.rounds_held > 0
        self.source.env_steps = progress.env_steps
        if self.asks:
            report = actors.executor.get(actors.pool.call(FragmentPool.report))
            self.source.check(actors.check(report), progress.env_steps)
        made = not self.asks or self.source.taken >= self.fragments.initial_env_steps
        if begun or (made and self.collecting):
            first = None if begun else self.ring.begin(0)
            self._note(self.ring.advance(progress) or first)

    @property
    def links(self) -> dict[str, str]:
        return {} if self.ring.people is None else self.ring.people.page.links

    @property
    def people_wait(self) -> bool:
        return bool(self.links) and not self.version and self.seen_steps < self.fragments.initial_env_steps

    def wait(self) -> None:
        """Wait for the first version of the reward.

        Raises:
            RuntimeError: there will be no reward.
        """
        self.begin()
        if self.version:
            return
        if not self.fits or (not self.asks and self.ring.answered == 0):
            raise RuntimeError(
                "There is no reward to wait for: fit=False fits none, and ask=False needs existing preferences, in the folder or "
                "by load()."
            )
        if self.asks and not self.collecting:
            raise RuntimeError("There is no reward yet, and collecting is paused: call resume_collecting() first.")
        logger.info("Waiting for the first version of the reward.")
        if isinstance(self.ring, AsynchronousRing):
            self.source.waited_for = True
            self.ring.notify()
            self.ring.wait_for_version()
            self.source.waited_for = False
        elif not self.ring.rounds_held:
            self._note(self.ring.begin(0))
        self._use_version(self.ring.newest_reward())

    def _settle(self, path: Path) -> None:
        self.begin()
        if isinstance(self.ring, AsynchronousRing):  # the other has waited for them
            missing, due = self.ring.settle()
            if missing:
                logger.warning("%s: %d of %d due labels are missing.", path, missing, due)
        if self.ring.version:
            self._use_version(self.ring.newest_reward())

    def _write(self, folder: Path, ring: bool = True, unseen: int = 0) -> None:
        super()._write(folder, ring, self.source.unseen)
        self.ring.save(folder)

    def load(self, path: Path) -> None:
        self.check_open()
        if self._begun:
            raise RuntimeError("Call load() before the first reset(); create a new environment and load into it.")
        path = find_folder(path.absolute())
        if (path / "store.json").exists():
            actors = self.ring.actors
            actors.executor.get(actors.store.call(PreferenceStore.import_from, path))
            return
        state = read_nested(path)
        if not state["ring"]:
            raise ValueError(f"{path} has a fixed reward and no preferences; use reward_model={str(path)!r} instead.")
        if state.get("waits", False) != self.waits:
            wanted, saved = ("'always'", "False or True")[:: 1 if self.waits else -1]
            raise SettingError(f"wait is {wanted}, but {path} was saved with wait={saved}: use the same.")
        self.env_steps, self.windows = state["env_steps"], state["windows"]
        self.source.unseen = state.get("unseen", 0)
        self.source.taken = self.seen_steps
        self._exclude_stored()
        self.ring.load(path)
        self._begun = True
        if self.ring.version:
            self._use_version(self.ring.newest_reward())

    def status(self) -> dict[str, Any]:
        fitted = {} if self.last_fit is None else self.last_fit.metrics()
        fitted.pop("version", None)
        labels = {
            "comparisons": self.ring.answered,
            "comparisons_due": self._labels_due,
            "skipped": self.ring.skipped,
        }
        return fitted | super().status() | labels

    @property
    def _labels_due(self) -> int:
        """Total number of labels to request by now."""
        if isinstance(self.ring, AsynchronousRing):
            return self.ring.labels_due
        return self.ring.schedule.due_in_round(self.ring.round_number) if self.asks and self.ring.rounds_held else 0

    def check_may_leave(self) -> None:
        raise RuntimeError(  # the ring's threads don't exist in another process
            "Environments with a reward that is being learned, env.share(…) too, work only in the process that made the first "
            "one: use DummyVecEnv in place of SubprocVecEnv. For environments in processes of their own, wrap them together: "
            "HumanPreferencesVectorEnv(gym.make_vec(…, vectorization_mode='async'), …)."
        )

    def _close(self) -> None:
        if self.env_steps >= self.total_env_steps:
            self.ring.farewell(self.env_steps)
        self._end()

    def _use_version(self, state: dict[str, Array]) -> None:
        first = not self.version
        super()._use_version(state)
        if first and self.unlearned_steps:
            logger.warning(
                "The first learned reward is in use. Before it, %d steps had reward 0.0.", self.unlearned_steps
            )
        if isinstance(self.ring, AsynchronousRing):
            self._note(self.ring.take_report())

    def _note(self, report: RoundReport | None) -> None:
        """Store and log the report of a fit."""
        if report is not None and report.fit is not None:
            self.last_fit = report.fit
            logger.info("Reward version %d, fitted to %d comparisons.", report.fit.version, report.comparisons)


def _end(
    ring: AsynchronousRing | SynchronousRing, lock: Lock, own_folder: tempfile.TemporaryDirectory[str] | None
) -> None:
    """Stop everything that a `LearningSession` started."""
    try:
        if ray.is_initialized():  # at the end of the process, Ray may have ended first, and all of this with it
            ring.close()
    finally:
        release_ray()
        lock.release()
        if own_folder is not None:
            own_folder.cleanup()
