"""The synchronous ring: the method step by step, once per iteration. Deterministic given the seed. And what both rings share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from rlhf_ray.actors.executor import Ref
from rlhf_ray.actors.fragment_source import FragmentSource
from rlhf_ray.actors.gatherer import ChosenPairs
from rlhf_ray.actors.people import People
from rlhf_ray.actors.ring import (
    STATE,
    Fitting,
    Learn,
    Pretrained,
    Progress,
    Ring,
    RoundReport,
    Stop,
    never,
    no_fit,
    no_policy,
)
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.actors.rollout_collector import PolicyFactory
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.data.system import usable_cores
from rlhf_ray.queries.due import FitSchedule, RoundQuestions, Skips, share_of_questions
from rlhf_ray.queries.pool import FragmentPool
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.reward.methods import unlabelled_pairs
from rlhf_ray.store import Tally

FIRST_FIT = "fitting the reward model to the first answers"

_T = TypeVar("_T")


class ActorRing(Ring):
    """What the synchronous and the asynchronous ring share: a ring with actors.

    Args:
        fits: whether to fit the reward model; otherwise it only collects preferences.
    """

    def __init__(
        self,
        actors: RingActors,
        schedule: LabelSchedule,
        source: FragmentSource,
        callbacks: RingCallbacks,
        *,
        fits: bool = True,
    ):
        self.actors, self.schedule, self.source, self.callbacks = actors, schedule, source, callbacks
        self.fits, self.collecting = fits, True

    @property
    def people(self) -> People | None:
        return self.actors.people

    @property
    def env_steps(self) -> int:
        return self.source.env_steps

    @property
    def version(self) -> int:
        return self.actors.version

    def newest_reward(self) -> dict[str, Array]:
        return self.actors.newest_reward()

    def farewell(self, env_steps: int, stop: Stop = never, policy: Callable[[], PolicyFactory] | None = None) -> None:
        """See `Ring.farewell`. Waits for the episode and for the pages, up to two minutes."""
        if self.people is None or self.people.left:
            return
        if policy is not None and self.people.questions.pages and not stop():
            self.source.film_last(policy(), env_steps)
        self.people.farewell("over", stop, env_steps)

    def close(self) -> None:
        """See `Ring.close`. Loses no answers: gatherers commit them themselves."""
        if self.people is not None:
            self.people.farewell("stopped")
        self.end()
        self.source.close()
        self.actors.close()

    def end(self) -> None:
        """End the ring's own work."""
        raise NotImplementedError


class SynchronousRing(ActorRing):
    """Does its work inside the calls of the training. Its arguments are those of `ActorRing`."""

    answered: int = 0
    skipped: int = 0

    def __init__(
        self,
        actors: RingActors,
        schedule: LabelSchedule,
        source: FragmentSource,
        callbacks: RingCallbacks,
        *,
        fits: bool = True,
    ):
        super().__init__(actors, schedule, source, callbacks, fits=fits)
        self.round_number = -1
        """The last round held; -1 before the first."""
        self.fit_schedule = FitSchedule(self.schedule, self.actors.settings.reward_model)
        self._skips = Skips(self.actors.settings.preferences)
        self._tally = Tally()
        """The store's counts, as last read."""
        self._at = 0
        """Environment steps at the newest `advance`."""
        self._loop = asyncio.new_event_loop()

    @property
    def rounds_held(self) -> int:
        return self.round_number + 1

    def begin(self, env_steps: int, stop: Stop = never, pretrained: Pretrained | None = None) -> RoundReport | None:
        """Only the wait for people can be stopped; their answers so far count.

        Raises:
            SettingError: the initial fragments show that the settings don't fit the environment.
        """
        return self.advance(Progress(0.0, 0, env_steps, 0, no_policy, pretrained), stop)

    def advance(self, progress: Progress, stop: Stop = never, learn: Learn = lambda fit: None) -> RoundReport | None:
        """Run one iteration of learning from preferences, as in Christiano et al. (2017), section 2.2.

        Labelling rounds fall due with the training's progress; while paused, they are put off. `begin` holds round 0, before the
        agent learns anything.
        """
        number, fitting, self._at = self.due_round(progress), no_fit, progress.env_steps
        if number > self.round_number and (self.collecting or number == 0):
            # Collect fragments: initial ones in round 0, later of the newest policy, if the pool needs more than its rollouts'.
            self.collect(progress, number, stop)

            # Choose pairs of fragments and ask which is better, until the labels due in this round are there.
            questions = RoundQuestions(self.schedule, self._skips, number)
            while (missing := questions.missing(self._tally)) is not None:
                pairs = self.choose_pairs(missing - self.actors.open)
                if pairs is not None:
                    self.ask(pairs)
                if self.actors.open:
                    self.wait_for_answers(questions.allowed, stop)
                elif not self.collect_others(questions):  # no pair is possible, or due
                    break
                if stop():
                    break

            # Fit the reward model to all answers so far. The fit may go on until the policy has acted, which needs no reward.
            fitting = self.fit(number)
        else:
            self.look_after_people()

        # Learn: the policy acts, fragments of its rollouts go to the pool, and it is updated on the fitted reward.
        with self._abandoning():
            learn(fitting)
            return fitting()

    # The steps of an iteration.

    def due_round(self, progress: Progress) -> int:
        """Return the number of the last round that is due."""
        number = self.schedule.round_at(progress.share)
        if self.actors.extended:  # the training got a larger budget, so that its progress went back
            self.round_number, self.actors.extended = min(self.round_number, number), False
            self.fit_schedule.rounds = min(self.fit_schedule.rounds, number)
        return number

    def collect(self, progress: Progress, number: int, stop: Stop) -> None:
        """Collect the initial fragments for round 0, or some of the newest policy if the settings ask for it."""
        self._run(self._collect_initial(progress, stop) if number == 0 else self._explore(progress, number))

    def choose_pairs(self, count: int) -> ChosenPairs | None:
        """Choose up to ``count`` pairs of fragments; None if there is nobody to ask, or no pair is possible."""
        return self._run(self.actors.choose_pairs(count)) if self.actors.gatherers else None

    def ask(self, pairs: ChosenPairs) -> None:
        """Ask about ``pairs``. In this mode, either people or the scripted gatherer answer."""
        (questions,) = self.actors.gatherers
        self._run(questions.ask(pairs))

    def wait_for_answers(self, wanted: int, stop: Stop) -> None:
        """Wait until all questions are answered: ``wanted`` labels in all."""
        self._run(self._wait_for_answers(wanted, stop))

    def collect_others(self, questions: RoundQuestions) -> bool:
        """Replace the initial fragments if nearly all answers about them are ties. Return whether it did."""
        replaces = questions.wants_fragments() and self.source.room_for_more()
        if replaces:
            self._run(self.source.more(questions.gathered()))
        return replaces

    def fit(self, number: int) -> Fitting:
        """Fit the reward model to all answers, with the gradient steps that are due by round ``number``: here, or begin to."""
        task = self._loop.create_task(self._fit(number))
        fitting = functools.cache(functools.partial(self._run, task))
        if self._fits_beside:
            self._run(asyncio.sleep(0))  # starts it
        if not self._fits_beside or task.done():
            fitting()
        return fitting

    @property
    def _fits_beside(self) -> bool:
        """Whether a fit may go on while the policy acts: on another core, and without the pool, to which fragments go meanwhile.

        In this process, both would share Python's interpreter lock, and take longer than one after the other.
        """
        actors = self.actors
        return not actors.executor.here and usable_cores() > 1 and not unlabelled_pairs(actors.settings.reward_model)

    def look_after_people(self) -> None:
        """Between rounds: show the training's progress, and reconnect to a restarted page."""
        if self.people is not None:
            self.people.tell(self._taken, self.version, self.answered)
            self._run(self.people.questions.listen())

    @property
    def _taken(self) -> int:
        """Environment steps of the training so far, the agent's included."""
        return max(self._at, self.source.env_steps)

    # How they are done.

    async def _collect_initial(self, progress: Progress, stop: Stop) -> None:
        tally = await self.actors.tally(self.actors.settings.begun_after if self.people is None else None)
        before = self._skips.used(tally)
        self.schedule.begin(before, tally.ties)
        if self.people is None:
            await self.source.first(progress.room, lambda: None, progress.pretrained)
        else:
            await self._ask_meanwhile(self.people, progress, before, stop)
        self._tally = await self._count()

    async def _ask_meanwhile(self, people: People, progress: Progress, before: int, stop: Stop) -> None:
        """Collect the initial fragments, and meanwhile ask people about those already made."""
        more = asyncio.Event()
        gathering = asyncio.ensure_future(self.source.first(progress.room, more.set, progress.pretrained))
        wanted = self.schedule.allowed(0.0, before, 0, training=False) - before
        while not gathering.done() and not stop():
            taken = round(self.source.share * self.source.env_steps)
            people.tell(taken, self.version, self.answered)
            share = self.source.share
            pairs = await self.actors.choose_pairs(
                share_of_questions(wanted, share, share > 0) - people.questions.asked
            )
            if pairs is not None:
                await people.questions.ask(pairs)
            await people.questions.listen()
        await gathering

    async def _explore(self, progress: Progress, number: int) -> None:
        self.source.offer(progress, number, wait=True)
        if self.source.waiting():
            await self.source.make()
        self._tally = await self._count()

    async def _wait_for_answers(self, wanted: int, stop: Stop) -> None:
        if self.people is not None:
            self.people.asks()
        while self.actors.open and not stop():
            if self.people is not None:
                self.people.look()
                self.people.waiting(max(0, wanted - self.actors.open), wanted)
            for questions in self.actors.gatherers:
                await questions.listen()
        if self.people is not None:
            self.people.end_wait()
            self.people.has_answered(self._taken, self.version, self.answered)
        self._tally = await self._count()

    async def _fit(self, number: int) -> RoundReport:
        tally = self._tally
        if self.people is None and self.fits:
            if self.version == 0:
                self._skips.check_first(tally)
            self._skips.check_decided(tally)
        used, before = self._skips.used(tally), Tally(comparisons=self.answered, skipped=self.skipped)
        rounds = self.fit_schedule.rounds_due(self.schedule.progress_of(number), used, self.version)
        steps = self.fit_schedule.gradient_steps(rounds, tally.comparisons, self.version)
        fit: FitReport | None = None
        if self.fits and tally.last > self.actors.read:
            if self.version == 0:
                self.callbacks.on_stage(FIRST_FIT)
            fit = await self.actors.fit(steps, tally.last, self.schedule.progress_of(number))
        if self.version:
            self.fit_schedule.took(rounds)
        self.answered, self.skipped, self.round_number = tally.comparisons, tally.skipped, number
        if fit is not None and self.people is not None:
            self.people.tell(self._taken, self.version, self.answered)
        answered = tally.comparisons - before.comparisons
        spent = used - self._skips.used(before) - answered  # on skips in this round
        wanted = max(0, self.schedule.due_in_round(number) - self._skips.used(before) - spent) - self.schedule.held_back
        return RoundReport(number, wanted, answered, self.answered, fit, fit is not None)

    async def _count(self) -> Tally:
        """Return the store's counts up to the last answer.

        The store may be ahead of this ring if a killed run resumes from an earlier checkpoint: then it already has the answers to
        the next questions, and later ones must not count yet.
        """
        if self.people is not None or not self.fits or not self.actors.gatherers:
            return await self.actors.tally(None)
        last = [questions.last for questions in self.actors.gatherers]
        if None in last:
            return await self.actors.tally(self.actors.read if self.actors.asked else self.actors.settings.begun_after)
        return await self.actors.tally(max(self.actors.read, *(number or 0 for number in last)))

    # State and shutdown.

    def metrics(self) -> dict[str, Any]:
        report = self.actors.check(self._run(_value(self.actors.pool.call(FragmentPool.report))))
        of_people = {} if self.people is None else self.people.metrics()
        return self.schedule.report() | report.metrics() | {"skipped": self.skipped} | of_people

    def adopt(self, store: Path | str) -> None:
        self._run(self.actors.adopt(store))

    def save(self, folder: Path) -> None:
        self._run(self._save(folder))

    async def _save(self, folder: Path) -> None:
        state = await self.actors.save(folder) | {
            "env_steps": self.source.env_steps,
            "answered": self.answered,
            "skipped": self.skipped,
            "round_number": self.round_number,
            "fits": self.fit_schedule.rounds,
            "schedule": self.schedule.state(),
        }
        write_nested(state, folder / STATE)

    def load(self, folder: Path, *, replace: bool = False) -> None:
        state = read_nested(folder / STATE)
        self._run(self.actors.load(folder, state, replace=replace))
        self.source.env_steps, self.answered = state["env_steps"], state["answered"]
        self.skipped = state.get("skipped", 0)
        self.round_number = state["round_number"]
        self.fit_schedule.rounds = state.get("fits", max(0, self.round_number))
        self.source.share = 1.0
        self.schedule.load_state(state["schedule"])
        if self.people is not None:
            self.people.tell(self._taken, self.version, self.answered)

    def abandon(self) -> None:
        self.source.close()
        scripted = (questions.actor for questions in self.actors.gatherers if not questions.annotators)
        for actor in (*scripted, self.actors.trainer):
            self.actors.executor.stop(actor)

    def end(self) -> None:
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T] | asyncio.Task[_T]) -> _T:
        task = work if isinstance(work, asyncio.Task) else self._loop.create_task(work)
        with self.actors.executor.apart(), self._abandoning(task):
            return self._loop.run_until_complete(task)

    @contextlib.contextmanager
    def _abandoning(self, *tasks: asyncio.Task[Any]) -> Iterator[None]:
        """Context manager: if it is left by an exception, cancel everything, before the ring is saved."""
        try:
            yield
        except BaseException:
            left = asyncio.all_tasks(self._loop) | {*tasks}
            for task in left:
                task.cancel()
            if left:  # it takes their exceptions, which asyncio would otherwise print as never retrieved
                self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            raise


async def _value(reference: Ref[_T]) -> _T:
    return await reference
