"""The ring: what a training asks of it, and the actors and verbs that its implementations share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import gymnasium as gym

from rlhf_ray.actors.askings import Askings, open_questions
from rlhf_ray.actors.executor import Executor
from rlhf_ray.actors.gatherer import GathererActor, MakeGatherer
from rlhf_ray.actors.reward_trainer import RewardTrainerActor, StateLostError
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.comparisons import Comparisons
from rlhf_ray.data.errors import SettingError
from rlhf_ray.queries.pool import ClipPool, PoolReport
from rlhf_ray.reward.fitting import check_clips
from rlhf_ray.reward.trainer import FitReport
from rlhf_ray.settings import PreferenceSettings, ResolvedFragments, RewardModelSettings
from rlhf_ray.store import PreferenceStore, Tally

STATE, LABELS = "ring", "preferences"
"""Folders in that of a checkpoint: what the ring keeps, and the labels."""

Stop = Callable[[], bool]
"""Says whether to wait no longer."""


@dataclasses.dataclass(frozen=True)
class RoundReport:
    """What labelling came to since the last report.

    Attributes:
        round_number: 0 for the round before training.
        wanted: comparisons that were due.
        answered: comparisons that were answered and stored; fewer when there were too few fragments to make pairs of.
        comparisons: all stored so far.
        fit: what the fit came to; None when there was nothing new to fit to.
        new_reward: there is a version of the reward model that the agent's learner has not got.
    """

    round_number: int
    wanted: int
    answered: int
    comparisons: int
    fit: FitReport | None
    new_reward: bool


@dataclasses.dataclass(frozen=True)
class Moment:
    """How far the training is.

    Attributes:
        progress: 0 before its first iteration to 1 before its last.
        env_steps: taken so far, over all.
        room: environment steps that the ring may take before the next iteration.
        iteration: that comes next, from 0.
        policy: makes what makes the newest policy, for clips that are not the training's own.
    """

    progress: float
    env_steps: int
    room: int
    iteration: int
    policy: Callable[[], PolicyFactory]


class Ring(Protocol):
    """What a training asks of the ring, whichever way it turns."""

    env_steps: int
    """Environment steps that the ring has taken."""
    answered: int
    """Comparisons answered and stored so far."""
    version: int
    """Of the newest reward; 0 before the first."""
    rounds_held: int
    """Labelling rounds so far, the first included; in the asynchronous ring, rounds of gradient steps."""
    begun_after: int | None
    """Number of the store's last event when a run first began that begins again, since it was killed before its first checkpoint;
    else None. What was stored later is then asked for again, for the run to repeat bit for bit, where scripted teachers are asked
    in the synchronous mode; it counts at once otherwise."""

    def begin(self, env_steps: int, stop: Stop) -> RoundReport | None:
        """Take ``env_steps`` random steps for the first clips, ask, and make the first version; None where stopped before."""
        ...

    def advance(self, moment: Moment, stop: Stop) -> RoundReport | None:
        """Turn as far as is due before the next iteration of the agent; what came of it, where there is a new report."""
        ...

    def newest_reward(self) -> dict[str, Array]:
        """The newest version of the reward model, whole (`RewardEnsemble.state`)."""
        ...

    def metrics(self) -> dict[str, Any]:
        """What is to be known of it now."""
        ...

    def save(self, folder: Path) -> None:
        """Write all that a checkpoint keeps into the folders ``ring`` and ``preferences`` in ``folder``."""
        ...

    def load(self, folder: Path, *, replace: bool = False) -> None:
        """The inverse of `save`. The labels are added to the ring's own, or with ``replace`` take their place."""
        ...

    def abandon(self) -> None:
        """Leave off beginning, which was interrupted. `save` and `close` may follow."""
        ...

    def close(self) -> None:
        """End what was started."""
        ...


def check_horizon(lengths: Sequence[int], preferences: PreferenceSettings) -> None:
    """Check that episodes of these lengths, from the shortest to the longest, may be trained on.

    Raises:
        SettingError: they differ, and `allow_variable_horizon` is off.
    """
    if len(lengths) > 1 and not preferences.allow_variable_horizon:
        raise SettingError(
            f"preferences.allow_variable_horizon is False, and episodes of {lengths[0]} to {lengths[-1]} steps were seen. When "
            "an episode ends tells about the reward, so that an agent can learn the task from episode lengths instead of "
            "comparisons. Use an environment whose episodes all have one length (fixed/ID makes one of the gymnasium environment "
            "ID), or set "
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
        SettingError: their clips are of another environment or length.
    """
    check_clips(labels, observation_space, action_space, where)
    length = labels.pairs.left.length
    if length != fragments.length:
        raise SettingError(
            f"fragments.length is {fragments.length}, and the clips in {where} have {length} steps: clips that a reward model is "
            f"fitted to together have one length, so set fragments.length to {length}."
        )


@dataclasses.dataclass(frozen=True)
class RingSettings:
    """What a ring is made from.

    Attributes:
        fragments, preferences, reward_model: the settings.
        observation_space, action_space: the environment's, as the reward model sees it.
        store: folder of the preference store, on this process's node; or its URL.
        seed: of everything random in the ring.
        total_env_steps: of the training.
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
    """The actors of a ring but for those that make clips, and what is asked of several of them at once.

    Args:
        settings: what they are made from.
        executor: starts them.
        fits_apart: the rest of the ring, or people at the page, don't wait while the reward model is fitted.
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
        """Askings so far: the number of the next one."""
        self.version = 0
        """Of the reward model; 0 before the first fit."""
        self.read = 0
        """The number of the last event of the store that the reward model was fitted to."""
        self.reward: Any = None
        """The reference of the newest version of the reward model."""
        self._state: Any = None
        """The reference of the reward trainer's state."""

    def start_scripted(self) -> None:
        """Have the gatherer that the settings name asked what people are not."""
        of = self.settings
        share = 1.0 - of.preferences.people_share
        if share == 0.0:
            return
        make = MakeGatherer(of.preferences, of.seed)
        executor = self.executor
        actor = executor.start(GathererActor, "gatherer", make, executor.find("store"), executor.get, shares=True)
        self.gatherers.append(Askings(actor, "answering", share=share, most=of.preferences.max_open_questions))

    async def ask(self, askings: Askings, count: int) -> int:
        """Choose ``count`` pairs and ask a gatherer about them. Fewer, or none, where there are no more pairs to be made."""
        number = self.asked
        found, pairs = self.pool.propose.options(num_returns=2).remote(count, number, self.reward)
        chosen: int = await found
        if chosen:
            self.asked += 1
            await askings.ask(number, pairs, chosen)
        return chosen

    @property
    def open(self) -> int:
        """Questions asked and not answered yet."""
        return sum(askings.open for askings in self.gatherers)

    async def tally(self, until: int | None = None) -> Tally:
        """What the store holds (`PreferenceStore.tally`)."""
        tally: Tally = await self.store.tally.remote(until)
        return tally

    async def fit(self, updates: int, until: int | None = None) -> FitReport | None:
        """Fit to what the store holds, up to the event ``until``; None where all answers were taken back, so that nothing was."""
        fit = self.trainer.fit.options(num_returns=3)
        changes = self.store.since.remote(self.read, until)
        result = fit.remote(updates, self.version + 1, changes)
        try:
            made = await result[0]
        except StateLostError:
            await self._restore()
            result = fit.remote(updates, self.version + 1, changes)
            made = await result[0]
        self.read = made.last
        _, self.reward, self._state = result
        self.executor.keep(self._state)  # for when the trainer's node is lost
        self.version = made.report.version
        return made.report if made.report.gradient_steps else None

    async def _restore(self) -> None:
        """Give the reward trainer its last state and the comparisons that it is of."""
        if self._state is not None:
            await self.trainer.load_state.remote(self._state, self.store.since.remote(0, self.read))

    def newest_reward(self) -> dict[str, Array]:
        """The newest version of the reward model, whole.

        Raises:
            ValueError: there is none before the first fit.
        """
        if self.version == 0:
            raise ValueError("There is no reward model yet: the first one comes with the first comparisons.")
        version: dict[str, Array] = self.executor.get(self.reward)
        return version

    async def save(self, folder: Path) -> dict[str, Any]:
        """Write the pool and the labels into ``folder``; what else has to be kept, as `write_nested` takes it."""
        (folder / STATE).mkdir(exist_ok=True)
        # All of one moment: stages may go on while this waits. Labels that are stored meanwhile count.
        open_pairs = [askings.pairs for askings in self.gatherers]
        kept: dict[str, Any] = {"asked": self.asked, "version": self.version, "read": self.read}
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
        """The inverse of `save`. The labels are added to those that are stored, or with ``replace`` take their place."""
        self.asked, self.version, self.read = state["asked"], state["version"], state["read"]
        if replace:
            await self.store.replace_with.remote(folder / LABELS)
        elif await self.store.import_from.remote(folder / LABELS):
            self.read = (await self.tally()).last  # events have other numbers here
        await self.pool.load.remote(folder / STATE)
        if state["trainer"] is not None:
            self._state = self.executor.put(state["trainer"])
            self.reward = self.executor.put(state["trainer"]["ensemble"])
            await self._restore()
        for askings, kept in zip(self.gatherers, state["open"], strict=False):
            await askings.ask_again(kept, self.executor.put)

    async def adopt(self, store: Path | str) -> int:
        """Begin with the labels in the preference store ``store``: they count as answered, and the first fit is to them too.

        Returns:
            How many there are.

        Raises:
            SettingError: they cannot be fitted together with those of this ring.
        """
        labels = PreferenceStore(store, create=False).load()
        if labels is None:
            raise SettingError(f"Training is to start from the labels in {store}, and it holds none.")
        of = self.settings
        check_labels(labels, of.fragments, of.observation_space, of.action_space, str(store))
        await self.store.import_from.remote(store)
        return len(labels)

    def check(self, report: PoolReport) -> PoolReport:
        """Look whether what has arrived at the pool may be trained on, and give it back.

        Raises:
            SettingError: episodes of different lengths were seen, and `allow_variable_horizon` is off.
        """
        check_horizon(report.episode_lengths, self.settings.preferences)
        return report

    def close(self) -> None:
        """End the actors."""
        for actor in (self.pool, *(askings.actor for askings in self.gatherers), self.trainer, self.store):
            self.executor.stop(actor)
