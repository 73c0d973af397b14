"""Scripted labels of recorded behaviour, without an environment or Ray: from trajectories and a teacher to a preference store."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.fragments import RANDOM_POLICY, Fragments, Trajectory, cut_fragments
from rlhf_ray.data.recordings import open_episodes
from rlhf_ray.data.spaces import spaces_of
from rlhf_ray.queries.due import Skips
from rlhf_ray.queries.gatherers import DESERTED, ScriptedGatherer
from rlhf_ray.queries.parts import check_parts
from rlhf_ray.queries.pool import FragmentPool
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.settings import FragmentSettings, PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore, Tally
from rlhf_ray.store.files import lock_store

logger = logging.getLogger(__name__)


def load_recorded(path: Path | str, fragments: FragmentSettings | None = None, seed: int = 0) -> Fragments:
    """Load recorded behaviour as fragments.

    Args:
        path: anything that `rlhf_ray.data.recordings.open_episodes` reads, or a preference store, whose fragments are
            taken as they are.
        fragments: length, number (``pool``) and share of episode starts of the fragments to cut.
        seed: seeds the choice of fragments.

    Returns:
        At least two fragments; floats are float32, integer actions int64, true rewards NaN where unknown.

    Raises:
        SettingError: nothing can be read from ``path``, or it has fewer than two fragments.
    """
    path = Path(path)
    stored: Fragments | None
    if (path / "store.json").exists():
        store = PreferenceStore(path, create=False)
        stored = store.fragments(sorted({name for pair in store.pairs() for name in pair}))[1]
    else:
        trajectories = [episode.trajectory for episode in open_episodes(path).episodes]
        stored = cut(trajectories, fragments or FragmentSettings(), seed)
    if stored is None or len(stored) < 2:
        raise SettingError(f"{path} has fewer than two fragments of the length asked for; set a smaller length.")
    return stored


def cut(trajectories: Sequence[Trajectory], fragments: FragmentSettings, seed: int) -> Fragments | None:
    """Cut fragments, at most ``fragments.pool``; None if no trajectory is long enough."""
    lengths = [len(trajectory) for trajectory in trajectories]
    resolved = fragments.resolved(horizon=max(lengths, default=None), total_env_steps=sum(lengths))
    made = cut_fragments(
        trajectories,
        length=resolved.length,
        count=resolved.pool,
        start_share=resolved.start_share,
        policy_version=RANDOM_POLICY,
        rng=np.random.default_rng(seed),
    )
    if made is None:
        return None
    return dataclasses.replace(made, observations=_common(made.observations), actions=_common(made.actions))


def _common(values: Array) -> Array:
    """Floats as float32 and integers as int64, as environments have them; images as they are."""
    if values.dtype == np.uint8:
        return values
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int64)


def label_recorded(
    fragments: Fragments,
    store: PreferenceStore | Path | str,
    preferences: PreferenceSettings | None = None,
    reward_model: RewardModelSettings | None = None,
    *,
    seed: int = 0,
) -> Tally:
    """Let the teacher compare ``fragments`` until ``store`` holds ``preferences.comparisons`` labels.

    Pairs are selected in rounds, as in training: a selection that needs a reward model gets one, fitted after each round. Pairs
    that the store already has an event about are not asked. The same arguments give the same labels.

    Args:
        fragments: at least two, with their true rewards.
        store: the preference store, or its folder or URL, new or existing.
        preferences: the teacher, the selection, the number of labels and their schedule; by default 200 labels of the oracle.
        reward_model: settings of the reward model that a selection uses.
        seed: seeds pairs, answers and fits.

    Returns:
        The store's counts: fewer labels than asked for if no further pair is possible, or if the teacher skips nearly all.

    Raises:
        SettingError: a part is invalid, true rewards are missing, or people or a machine are the teachers.
    """
    settings, model = preferences or PreferenceSettings(), reward_model or RewardModelSettings()
    if settings.asks_people or settings.asks_machine:
        raise SettingError(f"preferences.teacher is {settings.teacher!r}; name a scripted teacher, such as oracle.")
    check_parts(settings, model)
    if np.isnan(fragments.rewards).any():
        raise SettingError(
            f"preferences.teacher is {settings.teacher!r}, which needs the true rewards; some steps have none."
        )
    kept = store if isinstance(store, PreferenceStore) else PreferenceStore(store)
    with lock_store(kept.path):
        labelling = _Labelling(fragments, kept, settings, model, seed)
        schedule = LabelSchedule(settings)
        for number in range(schedule.rounds + 1):
            labelling.ask(schedule.due_in_round(number))
            if number == 0:
                labelling.skips.check_first(labelling.tally)
            if labelling.tally.comparisons and number < schedule.rounds:
                labelling.skips.check_decided(labelling.tally)
                labelling.fit(number / schedule.rounds)
        return labelling.tally


class _Labelling:
    """The pool, the teacher and, for a selection that needs it, the reward model."""

    def __init__(
        self,
        fragments: Fragments,
        store: PreferenceStore,
        preferences: PreferenceSettings,
        reward_model: RewardModelSettings,
        seed: int,
    ):
        self.store = store
        self.spaces = spaces_of(fragments)
        self.preferences, self.reward_model, self.seed = preferences, reward_model, seed
        self.pool = FragmentPool.of(fragments, self.store.pairs(), preferences, reward_model, self.spaces, seed)
        self.gatherer = ScriptedGatherer(self._commit, preferences, seed, self._skip)
        self.skips = Skips(preferences)
        self.tally = self.store.tally()
        self.reward: dict[str, Array] | None = None
        self._trainer: Any = None
        self._read = 0
        """Number of the last store event that the reward model was fitted to."""

    def ask(self, due: int) -> None:
        """Ask until ``due`` labels are there, as far as that is possible."""
        self.skips.note(self.tally)
        self.skips.forget()
        known = self.gatherer.deserted
        while (missing := due - self.skips.used(self.tally)) > 0 and not self.skips.hopeless:
            # The store's last event numbers the batch: another one when labelling continues in the same store.
            pairs = self.pool.propose(missing, number := self.tally.last, self.reward, dict(self.tally.by_annotator))[1]
            if pairs is None:
                return
            self.gatherer.ask(number, pairs)
            self.tally = self.store.tally()
            self.skips.note(self.tally)
            if self.gatherer.deserted:
                if not known:
                    logger.warning(DESERTED)
                return

    def fit(self, progress: float) -> None:
        """Fit a new version of the reward model, if the selection needs one, as a training does at this ``progress``."""
        if self.pool.selection is None or not self.pool.selection.needs_reward:
            return
        from rlhf_ray.reward.comparison_set import NothingToFitError
        from rlhf_ray.reward.methods import unlabelled_pairs  # both import torch, which is slow
        from rlhf_ray.reward.trainer import RewardTrainer

        if self._trainer is None:
            share = self.preferences.held_out_share
            self._trainer = RewardTrainer(self.reward_model, *self.spaces, held_out_share=share, seed=self.seed)
        first = self.reward is None
        updates = self.reward_model.first_updates(self.tally.comparisons) if first else self.reward_model.updates
        changes = self.store.since(self._read)
        self._trainer.comparisons.apply(changes)
        self._read = changes.last
        wanted = unlabelled_pairs(self.reward_model)
        number = int(self._trainer.ensemble.version) + 1
        unlabelled = self.pool.unlabelled(wanted, number) if wanted else None
        with contextlib.suppress(NothingToFitError):  # all annotators so far have weight 0
            self._trainer.fit(updates, unlabelled=unlabelled, progress=progress)
            self.reward = self._trainer.ensemble.state()

    def _commit(self, answers: Comparisons) -> None:
        for name in dict.fromkeys(answers.annotators):
            self.store.commit(answers[np.array(answers.annotators) == name], annotator=name)

    def _skip(self, pairs: Pairs, annotators: Sequence[str]) -> None:
        for name in dict.fromkeys(annotators):
            self.store.skip(pairs[np.array(annotators) == name], annotator=name)
