"""The synchronous ring: collect, ask, answer, fit, in sequence, once per round. Deterministic given the seed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rlhf_ray.actors.clip_source import ClipSource
from rlhf_ray.actors.first_clips import questions
from rlhf_ray.actors.people import People
from rlhf_ray.actors.ring import STATE, Members, Moment, Pretrained, RoundReport, Stop
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.queries.skips import Skips
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.store import Tally

FIRST_FIT = "fitting the reward model to the first answers"

_T = TypeVar("_T")


class SynchronousRing:
    """Does its work inside the calls of the training.

    Args:
        members: the ring's actors.
        schedule: when how many labels are due.
        source: makes fragments other than those from the agent's own rollouts.
        people: the human annotators; None without.
        fits: whether to fit the reward model; otherwise it only collects preferences.
    """

    def __init__(
        self,
        members: Members,
        schedule: LabelSchedule,
        source: ClipSource,
        people: People | None = None,
        *,
        fits: bool = True,
    ):
        self.members, self.schedule, self.source, self.people = members, schedule, source, people
        self.fits, self.collecting = fits, True
        self.answered = 0
        self.skipped = 0
        """Number of pairs that were skipped so far."""
        self._skips = Skips(members.settings.preferences)
        self.round_number = -1
        """The last round held; -1 before the first."""
        self.say: Callable[[str], None] = lambda what: None
        """Called with status messages before the first iteration."""
        source.say = lambda what: self.say(what)
        self.begun_after: int | None = None
        self._adopted = 0
        """Number of labels that existed before the first round."""
        self._loop = asyncio.new_event_loop()

    @property
    def env_steps(self) -> int:
        """See `Ring.env_steps`."""
        return self.source.env_steps

    @property
    def version(self) -> int:
        """See `Ring.version`."""
        return self.members.version

    @property
    def rounds_held(self) -> int:
        """See `Ring.rounds_held`."""
        return self.round_number + 1

    # A round.

    def begin(
        self, env_steps: int, stop: Stop = lambda: False, pretrained: Pretrained | None = None
    ) -> RoundReport | None:
        """See `Ring.begin`. Only the wait for people can be stopped; their answers so far count.

        Raises:
            SettingError: the initial fragments show that the settings don't fit the environment.
        """
        self.source.pretrained = pretrained
        return self._run(self._begin(env_steps, stop))

    async def _begin(self, env_steps: int, stop: Stop) -> RoundReport:
        tally = await self.members.tally(self.begun_after if self.people is None else None)
        self._adopted = self._skips.used(tally)
        self.schedule.begin(self._adopted, tally.ties)
        if self.people is None:
            await self.source.first(env_steps, lambda: None)
        else:
            await self._ask_meanwhile(env_steps, stop)
        return await self._hold_round(0, stop)

    async def _ask_meanwhile(self, env_steps: int, stop: Stop) -> None:
        """Collect the initial fragments, and meanwhile ask people about those already made."""
        assert self.people is not None
        page, more = self.people.askings, asyncio.Event()
        gathering = asyncio.ensure_future(self.source.first(env_steps, more.set))
        wanted = self.schedule.allowed(0.0, self._adopted, 0, training=False) - self._adopted
        while not gathering.done() and not stop():
            taken = round(self.source.share * self.source.env_steps)
            self.people.tell(taken, self.version, self.answered)
            missing = questions(wanted, self.source.share, self.source.share > 0) - page.asked
            if missing > 0:
                await self.members.ask(page, missing)
            await page.listen()
        await gathering

    def advance(self, moment: Moment, stop: Stop = lambda: False) -> RoundReport | None:
        """See `Ring.advance`: hold the round that is due, after making fragments for it. While paused, rounds are put off."""
        due = self.schedule.round_at(moment.progress)
        if self.members.extended:
            self.round_number, self.members.extended = min(self.round_number, due), False
        held = due > self.round_number and self.collecting
        return self._run(self._turn(moment, due, stop)) if held else self._run(self._look_after())

    async def _turn(self, moment: Moment, number: int, stop: Stop) -> RoundReport:
        self.source.offer(moment, number, wait=True)
        if self.source.waiting():
            await self.source.make()
        return await self._hold_round(number, stop)

    async def _hold_round(self, number: int, stop: Stop) -> RoundReport:
        """Request the labels due by round ``number``, and fit the reward model to all answers."""
        before, due = self.answered, self.schedule.due_in_round(number)
        used = self._skips.used(Tally(held=self.answered, skipped=self.skipped))
        of = self.members.settings.reward_model
        tally = await self._ask(number, stop)
        if self.version == 0 and self.people is None and self.fits:
            self._skips.check_first(tally)
        updates = of.updates
        if self.version == 0:
            # Include the gradient steps of rounds that existing labels make unnecessary.
            updates = of.first_updates(tally.held) + self.schedule.rounds_covered(self._adopted) * of.updates
        fit: FitReport | None = None
        if self.fits and tally.last > self.members.read:
            if self.version == 0:
                self.say(FIRST_FIT)
            fit = await self.members.fit(updates, tally.last, number / max(1, self.schedule.rounds))
        self.answered, self.skipped, self.round_number = tally.held, tally.skipped, number
        if fit is not None and self.people is not None:
            self.people.error_rates = fit.error_rates
            self.people.tell(self.source.env_steps, self.version, self.answered)
        spent = self._skips.used(tally) - tally.held - (used - before)  # on skips in this round
        wanted = max(0, due - used - spent) - self.schedule.held_back
        return RoundReport(number, wanted, self.answered - before, self.answered, fit, fit is not None)

    async def _ask(self, number: int, stop: Stop) -> Tally:
        """Request what is due, or less while answers are ties (`LabelSchedule`). Return the store's counts afterwards.

        Asks other pairs in place of skipped ones, unless skips use up the budget.
        """
        progress = number / self.schedule.rounds if self.schedule.rounds else 1.0
        tally = await self._tally()
        self._skips.note(tally)
        self._skips.forget()
        while True:
            used, before = self._skips.used(tally), tally
            allowed = self.schedule.allowed(progress, used, tally.ties, training=number > 0)
            asked = 0
            for askings in self.members.gatherers:
                missing = allowed - used
                asked += await self.members.ask(askings, missing - askings.open) if missing > askings.open else 0
            if not asked and not self.members.open:
                if number > 0 or not self.schedule.wants_clips or not self.source.room_for_more() or stop():
                    return tally
                self.schedule.gathered()
                await self.source.more(self.schedule.gatherings)
                continue
            await self._answers(stop, allowed)
            tally = await self._tally()
            self._skips.note(tally)
            replaces = tally.skipped > before.skipped and self._skips.used(tally) < allowed
            answered = (tally.held, tally.skipped) != (before.held, before.skipped)  # else nobody is left to ask
            more = replaces or (self.schedule.watches and number == 0 and answered)
            if stop() or self._skips.hopeless or not more:
                return tally

    async def _answers(self, stop: Stop, wanted: int) -> None:
        """Wait until all questions are answered: ``wanted`` labels in all."""
        if self.people is not None:
            self.people.asks()
        while self.members.open and not stop():
            if self.people is not None:
                self.people.look()
                self.people.waiting(max(0, wanted - self.members.open), wanted)
            for askings in self.members.gatherers:
                await askings.listen()
        if self.people is not None:
            self.people.end_wait()
            self.people.answered(self.source.env_steps, self.version, self.answered)

    async def _tally(self) -> Tally:
        """Return the store's counts up to the last answer.

        The store may be ahead of this ring if a killed run resumes from an earlier checkpoint: then it already has the answers to
        the next questions, and later ones must not count yet.
        """
        last = [askings.last for askings in self.members.gatherers]
        if self.people is not None or None in last:
            until = self.members.read if self.members.asked else self.begun_after
            return await self.members.tally(None if self.people is not None else until)
        return await self.members.tally(max(self.members.read, *(number or 0 for number in last)))

    async def _look_after(self) -> None:
        """Between rounds: reconnect to a restarted page."""
        if self.people is not None:
            await self.people.askings.listen()

    # State and shutdown.

    def newest_reward(self) -> dict[str, Array]:
        """See `Ring.newest_reward`."""
        return self.members.newest_reward()

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`."""
        report = self.members.check(self._run(_wait(self.members.pool.report.remote())))
        return (
            self.schedule.report()
            | {
                "too_short": report.too_short,
                "distinct_clips": report.distinct,
                "clips_policy_version": report.newest_policy,
                "skipped": self.skipped,
            }
            | (self.people.metrics() if self.people is not None else {})
        )

    def check(self) -> None:
        """See `Ring.check`. Everything happens within the calls."""

    def adopt(self, store: Path | str) -> None:
        """See `Members.adopt`."""
        self._run(self.members.adopt(store))

    def save(self, folder: Path) -> None:
        """See `Ring.save`."""
        self._run(self._save(folder))

    async def _save(self, folder: Path) -> None:
        state = await self.members.save(folder) | {
            "env_steps": self.source.env_steps,
            "answered": self.answered,
            "skipped": self.skipped,
            "round_number": self.round_number,
            "adopted": self._adopted,
            "schedule": self.schedule.state(),
        }
        write_nested(state, folder / STATE)

    def load(self, folder: Path, *, replace: bool = False) -> None:
        """See `Ring.load`."""
        state = read_nested(folder / STATE)
        self._run(self.members.load(folder, state, replace=replace))
        self.source.env_steps, self.answered = state["env_steps"], state["answered"]
        self.skipped = state.get("skipped", 0)
        self.round_number, self._adopted = state["round_number"], state["adopted"]
        self.source.share = 1.0
        self.schedule.load_state(state["schedule"])
        if self.people is not None:
            self.people.error_rates = self.members.error_rates
            self.people.tell(self.source.env_steps, self.version, self.answered)

    def abandon(self) -> None:
        """See `Ring.abandon`."""
        self.source.close()
        scripted = (askings.actor for askings in self.members.gatherers if not askings.annotators)
        for actor in (*scripted, self.members.trainer):
            self.members.executor.stop(actor)

    def close(self) -> None:
        """See `Ring.close`."""
        if self.people is not None:
            self.people.farewell("stopped")
        self.source.close()
        self.members.close()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        task = self._loop.create_task(work)
        with self.members.executor.apart():
            try:
                return self._loop.run_until_complete(task)
            except BaseException:
                # The training was interrupted: cancel everything before the ring is saved.
                left = asyncio.all_tasks(self._loop)
                for each in left:
                    each.cancel()
                # It takes their exceptions, which asyncio would otherwise print as never retrieved.
                self._loop.run_until_complete(asyncio.gather(*left, task, return_exceptions=True))
                raise


async def _wait(reference: Any) -> Any:
    return await reference
