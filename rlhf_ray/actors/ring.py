"""The ring: the interface that a training uses, and the actors and operations that all implementations share."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import gymnasium as gym

from rlhf_ray.actors.askings import Askings, open_questions
from rlhf_ray.actors.executor import Executor
from rlhf_ray.actors.gatherer import GathererActor, MakeGatherer
from rlhf_ray.actors.reward_trainer import RewardTrainerActor, StateLostError
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.queries.pool import ClipPool, PoolReport
from rlhf_ray.reward.estimates import Estimates
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.reward.fitting import check_clips
from rlhf_ray.reward.methods import unlabelled_pairs
from rlhf_ray.settings import PreferenceSettings, ResolvedFragments, RewardModelSettings
from rlhf_ray.store import PreferenceStore, Tally
from rlhf_ray.store.answers import Suspicions

STATE, LABELS = "ring", "preferences"
"""Subfolders of a checkpoint: the ring's state, and the labels."""

Stop = Callable[[], bool]
"""Polled while waiting; True ends the wait."""


@dataclasses.dataclass(frozen=True)
class RoundReport:
    """Report of a labelling round, or of everything since the last report.

    Attributes:
        round_number: 0 for the round before training.
        wanted: comparisons that were due.
        answered: comparisons that were answered and stored; fewer if there were too few fragments to pair.
        comparisons: total stored so far.
        fit: report of the fit; None if there was nothing new to fit to.
        new_reward: whether there is a reward version that the learner doesn't have yet.
    """

    round_number: int
    wanted: int
    answered: int
    comparisons: int
    fit: FitReport | None
    new_reward: bool


@dataclasses.dataclass(frozen=True)
class Moment:
    """The training's progress, as passed to `Ring.advance`.

    Attributes:
        progress: from 0 before the first iteration to 1 before the last.
        env_steps: total environment steps so far.
        room: environment steps that the ring may take before the next iteration.
        iteration: index of the next iteration, from 0.
        policy: returns a factory of the newest policy, for rollouts other than the training's own.
    """

    progress: float
    env_steps: int
    room: int
    iteration: int
    policy: Callable[[], PolicyFactory]


class Pretrained(NamedTuple):
    """The policy after unsupervised pretraining, with its version: higher than those of its rollouts."""

    version: int
    policy: PolicyFactory


class Ring(Protocol):
    """The interface between a training and the ring, in every mode."""

    env_steps: int
    """Environment steps that the ring has taken."""
    answered: int
    """Comparisons answered and stored so far."""
    version: int
    """Version of the newest reward; 0 before the first."""
    rounds_held: int
    """Labelling rounds so far, including the first; in the asynchronous mode, rounds of gradient steps."""
    collecting: bool
    """Whether to ask questions and make clips for them; False pauses that alone. The labels due meanwhile are asked for later."""
    begun_after: int | None
    """For a run that restarts because it was killed before its first checkpoint: the store's last event number when it first
    started; else None. In the synchronous mode with scripted teachers, later labels are ignored and asked for again, so that the
    run repeats bit for bit; otherwise they count at once."""

    def begin(self, env_steps: int, stop: Stop, pretrained: Pretrained | None = None) -> RoundReport | None:
        """Take ``env_steps`` steps for the initial fragments, ask, and fit the first version; None if stopped before.

        The steps are random; with a ``pretrained`` policy, half of the rollouts follow it.
        """
        ...

    def advance(self, moment: Moment, stop: Stop) -> RoundReport | None:
        """Do what is due before the agent's next iteration. Return the new report, if any."""
        ...

    def newest_reward(self) -> dict[str, Array]:
        """Return the newest version of the reward model (`RewardEnsemble.state`)."""
        ...

    def metrics(self) -> dict[str, Any]:
        """Return the ring's current metrics."""
        ...

    def check(self) -> None:
        """Raise the error of a stage that failed outside of a call, if any."""
        ...

    def save(self, folder: Path) -> None:
        """Write the ring's checkpoint to the folders ``ring`` and ``preferences`` in ``folder``."""
        ...

    def load(self, folder: Path, *, replace: bool = False) -> None:
        """Restore what `save` wrote. Adds its labels to the ring's own, or replaces those with ``replace``."""
        ...

    def abandon(self) -> None:
        """Abort `begin` after an interruption. `save` and `close` may follow."""
        ...

    def close(self) -> None:
        """Stop everything the ring started."""
        ...


def check_horizon(lengths: Sequence[int], preferences: PreferenceSettings) -> None:
    """Check that training on episodes of these lengths (ascending) is allowed.

    Raises:
        SettingError: the lengths differ, and `allow_variable_horizon` is off.
    """
    if len(lengths) > 1 and not preferences.allow_variable_horizon:
        raise SettingError(
            f"preferences.allow_variable_horizon is False, but episodes of {lengths[0]} to {lengths[-1]} steps were seen. The end "
            "of an episode leaks information about the reward, so the agent can learn the task from episode lengths instead of "
            "comparisons. Use an environment with a fixed episode length (fixed/ID wraps the gymnasium environment ID), or set "
            "preferences.allow_variable_horizon to True to accept the leak."
        )


def check_labels(
    labels: Comparisons,
    fragments: ResolvedFragments,
    observation_space: gym.spaces.Box,
    action_space: gym.Space[Any],
    where: str,
) -> None:
    """Check that stored labels can be fitted together with those of a ring with these settings and spaces.

    Raises:
        SettingError: their fragments come from another environment or have another length.
    """
    check_clips(labels, observation_space, action_space, where)
    length = labels.pairs.left.length
    if length != fragments.length:
        raise SettingError(
            f"fragments.length is {fragments.length}, but the fragments in {where} have {length} steps, and a reward model needs "
            f"fragments of one length: set fragments.length to {length}."
        )


@dataclasses.dataclass(frozen=True)
class RingSettings:
    """Settings of a ring.

    Attributes:
        fragments, preferences, reward_model: the settings groups.
        observation_space, action_space: the environment's spaces, as the reward model sees them.
        store: folder of the preference store on this process's node, or its URL.
        seed: seeds all of the ring's random draws.
        total_env_steps: step budget of the training.
    """

    fragments: ResolvedFragments
    preferences: PreferenceSettings
    reward_model: RewardModelSettings
    observation_space: gym.spaces.Box
    action_space: gym.Space[Any]
    store: Path | str
    seed: int
    total_env_steps: int


class Members:
    """The ring's actors, except those that make fragments, and the operations that involve several of them.

    Args:
        settings: the ring's settings.
        executor: starts the actors.
        fits_apart: whether other work (of the ring or annotators) continues during a fit, which then needs its own process.
    """

    def __init__(self, settings: RingSettings, executor: Executor, *, fits_apart: bool = True):
        of = self.settings = settings
        self.executor = executor
        spaces = (of.observation_space, of.action_space)
        self.store = executor.start(PreferenceStore, "store", of.store, shares=True)
        pooling = (of.fragments, of.preferences, of.reward_model, *spaces, of.seed)
        self.pool = executor.start(ClipPool, "pool", *pooling, shares=True)
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
        self.gatherers: list[Askings] = []
        self.asked = 0
        """Number of the next query batch. A number never stands for other pairs."""
        self.version = 0
        """Version of the reward model; 0 before the first fit."""
        self.read = 0
        """Number of the last store event that the reward model was fitted to."""
        self.reward: Any = None
        """Reference of the newest version of the reward model."""
        self.extended = False
        """Whether the training that is resumed had another total of environment steps, so that its progress went back."""
        self._answered: dict[str, int] = {}
        """Answers by annotator, as last counted."""
        self.suspect: Callable[[Suspicions], None] = lambda suspicions: None
        """Called with the answers that each fit finds more likely wrong than right, and with those of a checkpoint."""
        self.error_rates: dict[str, ErrorRate] = {}
        """Each annotator's error rate, by the newest fit or by a checkpoint's."""
        self._state: Any = None
        """Reference of the reward trainer's state."""

    def start_scripted(self) -> None:
        """Start the configured gatherer for the share of questions that people don't get."""
        of = self.settings
        share = 1.0 - of.preferences.people_share
        if share == 0.0:
            return
        make = MakeGatherer(of.preferences, of.seed)
        executor = self.executor
        arguments = (make, executor.find("store"), executor.get, of.preferences.gatherer)
        actor = executor.start(GathererActor, "gatherer", *arguments, shares=True)
        self.gatherers.append(Askings(actor, "answering", share=share, most=of.preferences.max_open_questions))

    async def ask(self, askings: Askings, count: int) -> int:
        """Select ``count`` pairs and send them to a gatherer. Return how many: fewer if no more pairs are possible."""
        number = self.asked
        found, pairs = self.pool.propose.options(num_returns=2).remote(count, number, self.reward, self._answered)
        chosen: int = await found
        if chosen:
            self.asked += 1
            await askings.ask(number, pairs, chosen)
        return chosen

    def renumber(self) -> None:
        """Give the next query batches numbers that none before had: this ring may follow a killed one, which asked about others.

        The time in milliseconds: it grows faster than anybody asks.
        """
        self.asked = max(self.asked, time.time_ns() // 1_000_000)

    @property
    def open(self) -> int:
        """Number of unanswered questions."""
        return sum(askings.open for askings in self.gatherers)

    async def tally(self, until: int | None = None) -> Tally:
        """Count the store's active comparisons (`PreferenceStore.tally`)."""
        tally: Tally = await self.store.tally.remote(until)
        self._answered = dict(tally.by_annotator)
        return tally

    async def fit(self, updates: int, until: int | None = None, progress: float = 0.0) -> FitReport | None:
        """Fit to the store's labels up to event ``until``. Return the report, or None if there was nothing to fit to."""
        fit = self.trainer.fit.options(num_returns=3)
        changes = self.store.since.remote(self.read, until)
        wanted = unlabelled_pairs(self.settings.reward_model)
        unlabelled = self.pool.unlabelled.remote(wanted, self.version + 1) if wanted else None
        result = fit.remote(updates, self.version + 1, changes, unlabelled, progress)
        try:
            made = await result[0]
        except StateLostError:
            await self._restore()
            result = fit.remote(updates, self.version + 1, changes, unlabelled, progress)
            made = await result[0]
        self.read = made.last
        _, self.reward, self._state = result
        self.executor.keep(self._state)  # in case the trainer's node is lost
        self.version, self.error_rates = made.report.version, made.report.error_rates
        self.suspect(made.report.suspicions)
        return made.report if made.report.gradient_steps else None

    async def _restore(self) -> None:
        """Give the reward trainer its last state and the matching comparisons."""
        if self._state is not None:
            await self.trainer.load_state.remote(self._state, self.store.since.remote(0, self.read))

    def newest_reward(self) -> dict[str, Array]:
        """Return the newest version of the reward model.

        Raises:
            ValueError: there is none before the first fit.
        """
        if self.version == 0:
            raise ValueError("There is no reward model yet: the first fit needs comparisons.")
        version: dict[str, Array] = self.executor.get(self.reward)
        return version

    async def save(self, folder: Path) -> dict[str, Any]:
        """Write the pool and the labels to ``folder``. Return the rest of the state, for `write_nested`."""
        (folder / STATE).mkdir(exist_ok=True)
        # Take references at one moment: stages may continue during the waits. Labels stored meanwhile count.
        open_pairs = [askings.pairs for askings in self.gatherers]
        kept: dict[str, Any] = {"asked": self.asked, "version": self.version, "read": self.read}
        kept["total_env_steps"] = self.settings.total_env_steps
        trainer, pool, store = (
            self._state,
            self.pool.save.remote(folder / STATE),
            self.store.copy_to.remote(folder / LABELS),
        )
        await pool
        await store
        kept["trainer"] = None if trainer is None else await trainer
        kept["open"] = [await open_questions(pairs) for pairs in open_pairs]
        return kept

    async def load(self, folder: Path, state: dict[str, Any], *, replace: bool) -> None:
        """Restore what `save` kept. Adds the labels to the stored ones, or replaces those with ``replace``."""
        self.asked, self.version, self.read = state["asked"], state["version"], state["read"]
        self.extended = state.get("total_env_steps", self.settings.total_env_steps) != self.settings.total_env_steps
        if replace:
            await self.store.replace_with.remote(folder / LABELS)
        elif await self.store.import_from.remote(folder / LABELS):
            self.read = (await self.tally()).last  # event numbers differ between stores
        await self.pool.load.remote(folder / STATE)
        if state["trainer"] is not None:
            self._state = self.executor.put(state["trainer"])
            self.reward = self.executor.put(state["trainer"]["ensemble"])
            await self._restore()
            estimates = Estimates.from_state(state["trainer"])
            self.error_rates = estimates.error_rates
            self.suspect(estimates.suspicions)
        for askings, kept in zip(self.gatherers, state["open"], strict=False):
            await askings.ask_again(kept, self.executor.put)

    async def adopt(self, store: Path | str) -> int:
        """Import the labels of the preference store ``store``: they count as answered and contribute to the first fit.

        Their pairs are not asked about again, should the same fragments be cut again.

        Returns:
            The number of labels.

        Raises:
            SettingError: there are none, or they can't be fitted together with this ring's.
        """
        labels = PreferenceStore(store, create=False).load()
        if labels is None:
            raise SettingError(f"Training starts from the labels in {store}, but it has no active label.")
        of = self.settings
        check_labels(labels, of.fragments, of.observation_space, of.action_space, str(store))
        await self.store.import_from.remote(store)
        await self.pool.exclude.remote(self.store.pairs.remote())
        return len(labels)

    def check(self, report: PoolReport) -> PoolReport:
        """Check that training on the pool's episodes is allowed, and return the report.

        Raises:
            SettingError: episode lengths differ, and `allow_variable_horizon` is off.
        """
        check_horizon(report.episode_lengths, self.settings.preferences)
        return report

    def close(self) -> None:
        """Stop the actors."""
        for actor in (self.pool, *(askings.actor for askings in self.gatherers), self.trainer, self.store):
            self.executor.stop(actor)
