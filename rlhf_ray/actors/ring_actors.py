"""RingActors: the ring's actors, except those that make fragments, and the operations that involve several of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rlhf_ray.actors.executor import Executor, Ref, passed
from rlhf_ray.actors.gatherer import LOST, ChosenPairs, GathererActor, OpenQuestions, as_arrays
from rlhf_ray.actors.people import People
from rlhf_ray.actors.ring import LABELS, STATE, RingSettings, check_horizon, check_labels
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Changes, Pairs
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.failures import blaming, cause
from rlhf_ray.labelling.films import Episode, Film
from rlhf_ray.queries.gatherers import make_gatherer, wants_films
from rlhf_ray.queries.pool import FragmentPool, PoolReport
from rlhf_ray.reward import RewardTrainer
from rlhf_ray.reward.annotators import Estimates
from rlhf_ray.reward.comparison_set import NothingToFitError
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.reward.methods import unlabelled_pairs
from rlhf_ray.settings import PreferenceSettings, RewardModelSettings
from rlhf_ray.store import PreferenceStore, Tally

logger = logging.getLogger(__name__)


class StateLostError(RuntimeError):
    """The process was restarted and lost its state; the caller must restore it."""


@dataclass(frozen=True)
class Fitted:
    """The report of a fit, and the number of the last store event that it included."""

    report: FitReport
    last: int


class RewardTrainerActor:
    """A `RewardTrainer` that detects when a restart has lost its state."""

    def __init__(
        self,
        settings: RewardModelSettings,
        preferences: PreferenceSettings,
        observation_space: gym.spaces.Box,
        action_space: gym.Space[Any],
        seed: int,
    ):
        self.trainer = RewardTrainer(
            settings, observation_space, action_space, held_out_share=preferences.held_out_share, seed=seed
        )
        self._parts = {"reward_model.network": settings.network, "reward_model.loss": settings.loss}
        self._parts |= {f"reward_model.methods ({name})": name for name in settings.methods}
        self._last = 0

    def fit(
        self, updates: int, version: int, changes: Changes, unlabelled: Pairs | None = None, progress: float = 0.0
    ) -> tuple[Fitted, dict[str, Array], dict[str, Any]]:
        """Apply ``changes``, take ``updates`` gradient steps and make a new version.

        Idempotent: calling it again with the same ``version`` returns that version without another fit.

        If no comparison remains (all were withdrawn, or all have weight 0), no version is made: the report is about the current
        version, with 0 ``gradient_steps`` and NaN losses and accuracies. The changes are applied in any case.

        Returns:
            The report, the version (`RewardEnsemble.state`), and the state after it (`RewardTrainer.state`).

        Raises:
            StateLostError: the current version is a different one, as after a restart.
        """
        current = int(self.trainer.ensemble.version)
        if current == version - 1:
            self.trainer.comparisons.apply(changes)
            self._last = changes.last
            try:
                with blaming(self._parts):
                    self._report: FitReport = self.trainer.fit(updates, unlabelled=unlabelled, progress=progress)
            except NothingToFitError as nothing:
                logger.warning("No new version of the reward model: %s", nothing)
                self._report = FitReport.nothing_fitted(
                    int(self.trainer.ensemble.version), len(self.trainer.comparisons)
                )
        elif current != version:
            raise StateLostError(f"The reward trainer is at version {current}; it can't make version {version} next.")
        state = self.trainer.state()
        return Fitted(self._report, self._last), state["ensemble"], state

    def load_state(self, state: dict[str, Any], comparisons: Changes) -> None:
        """Restore ``state`` (see `RewardTrainer.load_state`)."""
        self.trainer.load_state(state, comparisons)


class RingActors:
    """The ring's actors, except those that make fragments, and the operations that involve several of them.

    Args:
        fits_apart: whether other work (of the ring or annotators) continues during a fit, which then needs its own process.
    """

    def __init__(self, settings: RingSettings, executor: Executor, *, fits_apart: bool = True):
        of = self.settings = settings
        self.executor = executor
        self.people: People | None = None
        spaces = (of.observation_space, of.action_space)
        self.store = executor.start(PreferenceStore, "store", of.store, shares=True)
        pooling = (of.fragments, of.preferences, of.reward_model, *spaces, of.seed)
        self.pool = executor.start(FragmentPool, "pool", *pooling, shares=True)
        self.trainer = executor.start(
            RewardTrainerActor,
            "reward_trainer",
            of.reward_model,
            of.preferences,
            *spaces,
            of.seed,
            gpus=of.reward_model.gpus,
            shares=not fits_apart and not of.reward_model.gpus,
        )
        self.gatherers: list[OpenQuestions] = []
        """The questions of each gatherer."""
        self.asked = 0
        """Number of the next query batch. A number never stands for other pairs."""
        self.version = 0
        """Version of the reward model; 0 before the first fit."""
        self.read = 0
        """Number of the last store event that the reward model was fitted to."""
        self.reward: Ref[dict[str, Array]] | None = None
        """Reference of the newest version of the reward model."""
        self.extended = False
        """Whether the training that is resumed had another total of environment steps, so that its progress went back."""
        self._answered: dict[str, int] = {}
        """Answers by annotator, as last counted."""
        self._choosing = asyncio.Lock()
        self._state: Ref[dict[str, Any]] | None = None
        """Reference of the reward trainer's state."""

    def join(self, people: People) -> None:
        """Ask these people too, also about what other gatherers refer to them."""
        self.people = people
        for questions in self.gatherers:
            questions.refer = self.refer
        self.gatherers.append(people.questions)

    async def refer(self, pairs: Pairs) -> None:
        """Ask people about pairs that a gatherer leaves to them, unless they are being asked."""
        assert self.people is not None
        asked = {name for open_pairs in list(self.people.questions.pairs.values()) for name in (await open_pairs).ids}
        pairs = pairs[np.array([name not in asked for name in pairs.ids])]
        if not len(pairs):
            return
        async with self._choosing:
            number, self.asked = self.asked, self.asked + 1
        try:
            await self.people.questions.ask(ChosenPairs(number, self.executor.put(pairs), len(pairs)))
        except OSError as error:
            logger.error("Can't store fragments; people are not asked about %d pairs: %s", len(pairs), cause(error))

    def start_scripted(self) -> None:
        """Start the configured gatherer for the share of questions that people don't get.

        If it wants films, it gets them, and keeps them beside the store.
        """
        settings = self.settings
        share = 1.0 - settings.preferences.people_share
        if share == 0.0:
            return
        offered = {"seed": settings.seed, "machine": settings.machine, "instructions": settings.instructions}
        make = functools.partial(make_gatherer, settings.preferences, **offered)
        executor = self.executor
        views = wants_films(settings.preferences)
        folder = settings.store.parent if views and isinstance(settings.store, Path) else None
        store = executor.find(PreferenceStore, "store")
        refers = settings.preferences.asks_machine and settings.preferences.asks_people
        arguments = (make, store, executor.get, settings.preferences.gatherer_in_use, views, folder, refers)
        actor = executor.start(GathererActor, "gatherer", *arguments, shares=True)
        limit = settings.preferences.max_open_questions
        self.gatherers.append(OpenQuestions(actor, "answering", share=share, limit=limit, sees_films=views))

    @property
    def viewed(self) -> list[OpenQuestions]:
        """The questions of those who see films."""
        return [questions for questions in self.gatherers if questions.sees_films]

    async def show(self, films: Ref[tuple[Film, ...]]) -> None:
        """Send films to those who see films, before questions about their fragments."""
        for questions in self.viewed:
            with contextlib.suppress(*LOST):
                await questions.show(films)

    def show_made(self, films: tuple[Film, ...]) -> None:
        """Send films that this process made. Doesn't wait."""
        for questions in self.viewed:
            questions.show(self.executor.put(films))

    def show_episode(self, episode: Ref[Episode | None]) -> None:
        """Send people the film of an episode once it is available. Doesn't wait."""
        if self.people is not None:
            self.people.page.show_episode(episode)

    async def choose_pairs(self, count: int) -> ChosenPairs | None:
        """Choose up to ``count`` pairs to ask about: fewer if no more are possible, None for none."""
        if count <= 0:
            return None
        async with self._choosing:
            number, reward = self.asked, None if self.reward is None else passed(self.reward)
            proposed, pairs = self.pool.split(2, FragmentPool.propose, count, number, reward, self._answered)
            chosen = await proposed
            if not chosen:
                return None
            self.asked += 1
        return ChosenPairs(number, pairs, chosen)

    def renumber(self) -> None:
        """Give the next query batches numbers that none before had: this ring may follow a killed one, which asked about others.

        The time in milliseconds: it grows faster than anybody asks.
        """
        self.asked = max(self.asked, time.time_ns() // 1_000_000)

    @property
    def open(self) -> int:
        """Number of unanswered questions."""
        return sum(questions.open for questions in self.gatherers)

    async def tally(self, until: int | None = None) -> Tally:
        """Count the store's active comparisons (`PreferenceStore.tally`)."""
        tally = await self.store.call(PreferenceStore.tally, until)
        self._answered = dict(tally.by_annotator)
        return tally

    async def fit(self, updates: int, until: int | None = None, progress: float = 0.0) -> FitReport | None:
        """Fit to the store's labels up to event ``until``. Return the report, or None if there was nothing to fit to."""
        changes = self.store.call(PreferenceStore.since, self.read, until)
        wanted = unlabelled_pairs(self.settings.reward_model)
        unlabelled = self.pool.call(FragmentPool.unlabelled, wanted, self.version + 1) if wanted else None

        def fit() -> tuple[Ref[Fitted], Ref[dict[str, Array]], Ref[dict[str, Any]]]:
            without_answers = None if unlabelled is None else passed(unlabelled)
            arguments = (updates, self.version + 1, passed(changes), without_answers, progress)
            return self.trainer.split(3, RewardTrainerActor.fit, *arguments)

        result = fit()
        try:
            made = await result[0]
        except StateLostError:
            await self._restore()
            result = fit()
            made = await result[0]
        self.read = made.last
        _, self.reward, self._state = result
        self.executor.keep(self._state)  # in case the trainer's node is lost
        self.version = made.report.version
        if self.people is not None:
            self.people.suspect(made.report.suspicions)
        if not made.report.gradient_steps:
            return None
        if self.people is not None:
            self.people.error_rates = made.report.error_rates
        return made.report

    async def _restore(self) -> None:
        """Give the reward trainer its last state and the matching comparisons."""
        if self._state is not None:
            comparisons = self.store.call(PreferenceStore.since, 0, self.read)
            await self.trainer.call(RewardTrainerActor.load_state, passed(self._state), passed(comparisons))

    def newest_reward(self) -> dict[str, Array]:
        """Return the newest version of the reward model.

        Raises:
            ValueError: there is none before the first fit.
        """
        if self.version == 0 or self.reward is None:
            raise ValueError("There is no reward model yet: the first fit needs comparisons.")
        return self.executor.get(self.reward)

    async def save(self, folder: Path) -> dict[str, Any]:
        """Write the pool and the labels to ``folder``. Return the rest of the state, for `write_nested`."""
        (folder / STATE).mkdir(exist_ok=True)
        # Take references at one moment: stages may continue during the waits. Labels stored meanwhile count.
        open_pairs = [dict(questions.pairs) for questions in self.gatherers]
        kept: dict[str, Any] = {"asked": self.asked, "version": self.version, "read": self.read}
        kept["total_env_steps"] = self.settings.total_env_steps
        trainer = self._state
        pool = self.pool.call(FragmentPool.save, folder / STATE)
        store = self.store.call(PreferenceStore.copy_to, folder / LABELS)
        await pool
        await store
        kept["trainer"] = None if trainer is None else await trainer
        kept["open"] = [await as_arrays(pairs) for pairs in open_pairs]
        return kept

    async def load(self, folder: Path, state: dict[str, Any], *, replace: bool) -> None:
        """Restore what `save` kept. Adds the labels to the stored ones, or replaces those with ``replace``."""
        self.asked, self.version, self.read = state["asked"], state["version"], state["read"]
        self.extended = state.get("total_env_steps", self.settings.total_env_steps) != self.settings.total_env_steps
        if replace:
            await self.store.call(PreferenceStore.replace_with, folder / LABELS)
        elif await self.store.call(PreferenceStore.import_from, folder / LABELS):
            self.read = (await self.tally()).last  # event numbers differ between stores
        await self.pool.call(FragmentPool.load, folder / STATE)
        if state["trainer"] is not None:
            self._state = self.executor.put(state["trainer"])
            self.reward = self.executor.put(state["trainer"]["ensemble"])
            await self._restore()
            if self.people is not None:
                estimates = Estimates.from_state(state["trainer"])
                self.people.error_rates = estimates.error_rates
                self.people.suspect(estimates.suspicions)
        for questions, batches in zip(self.gatherers, state["open"], strict=False):
            await questions.ask_again(batches, self.executor.put)

    async def adopt(self, store: Path | str) -> None:
        """Import the labels of the preference store ``store``: they count as answered and contribute to the first fit.

        Their pairs are not asked about again, should the same fragments be cut again.

        Raises:
            SettingError: there are none, or they can't be fitted together with this ring's.
        """
        labels = PreferenceStore(store, create=False).load()
        if labels is None:
            raise SettingError(f"Training starts from the labels in {store}, but it has no active label.")
        settings = self.settings
        check_labels(labels, settings.fragments, settings.observation_space, settings.action_space, str(store))
        await self.store.call(PreferenceStore.import_from, store)
        await self.pool.call(FragmentPool.exclude, passed(self.store.call(PreferenceStore.pairs)))

    def check(self, report: PoolReport) -> PoolReport:
        """Check that training on the pool's episodes is allowed, and return the report.

        Raises:
            SettingError: episode lengths differ, and `allow_variable_horizon` is off.
        """
        check_horizon(report.episode_lengths, self.settings.preferences)
        return report

    def close(self) -> None:
        """Stop the actors."""
        for actor in (self.pool, *(questions.actor for questions in self.gatherers), self.trainer, self.store):
            self.executor.stop(actor)
