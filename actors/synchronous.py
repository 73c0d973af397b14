"""The synchronous ring: collect, ask, answer, fit, one after the other, round by round. The same seed gives the same turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rlhf_ray.actors.clip_source import ClipSource
from rlhf_ray.actors.first_clips import questions
from rlhf_ray.actors.people import People
from rlhf_ray.actors.ring import STATE, Members, Moment, RoundReport, Stop
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.reward.trainer import FitReport
from rlhf_ray.store import Tally

FIRST_FIT = "fitting the reward model to the first answers"

_T = TypeVar("_T")


class SynchronousRing:
    """Turns when it is told to, and returns when it has turned.

    Args:
        members: its actors.
        schedule: how many labels, when.
        source: of clips that the agent's own rollouts don't make.
        people: where people are asked; else None.
    """

    def __init__(self, members: Members, schedule: LabelSchedule, source: ClipSource, people: People | None = None):
        self.members, self.schedule, self.source, self.people = members, schedule, source, people
        self.answered = 0
        self.round_number = -1
        """The last round that was held; -1 before the first."""
        self.say: Callable[[str], None] = lambda what: None
        """Is told what the run waits for before its first iteration."""
        source.say = lambda what: self.say(what)
        self.begun_after: int | None = None
        self._adopted = 0
        """Labels that were there before the first round."""
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

    # One turn.

    def begin(self, env_steps: int, stop: Stop = lambda: False) -> RoundReport | None:
        """See `Ring.begin`. Only waiting for people can be stopped; what they have answered until then counts.

        Raises:
            SettingError: the clips show that the settings do not fit the environment.
        """
        return self._run(self._begin(env_steps, stop))

    async def _begin(self, env_steps: int, stop: Stop) -> RoundReport:
        tally = await self.members.tally(self.begun_after if self.people is None else None)
        self._adopted = tally.held
        self.schedule.begin(tally.held, tally.ties)
        if self.people is None:
            await self.source.first(env_steps, lambda: None)
        else:
            await self._ask_meanwhile(env_steps, stop)
        return await self._hold_round(0, stop)

    async def _ask_meanwhile(self, env_steps: int, stop: Stop) -> None:
        """Gather the first clips, and ask people about those there are."""
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
        """See `Ring.advance`: hold the round that is due, after making the clips that it asks about."""
        due = self.schedule.round_at(moment.progress)
        return self._run(self._turn(moment, due, stop)) if due > self.round_number else self._run(self._look_after())

    async def _turn(self, moment: Moment, number: int, stop: Stop) -> RoundReport:
        self.source.offer(moment, number, wait=True)
        if self.source.waiting():
            await self.source.make()
        return await self._hold_round(number, stop)

    async def _hold_round(self, number: int, stop: Stop) -> RoundReport:
        """Ask for what is due by round ``number``, and fit the reward model to all answers."""
        before, due = self.answered, self.schedule.due_in_round(number)
        updates = self.members.settings.reward_model.updates
        if self.version == 0:
            # With the gradient steps of the rounds that need not be held for labels that were there before.
            covered = self.schedule.rounds_covered(self._adopted)
            updates = self.members.settings.reward_model.initial_updates + covered * updates
        tally = await self._ask(number, stop)
        fit: FitReport | None = None
        if tally.last > self.members.read:
            if self.version == 0:
                self.say(FIRST_FIT)
            fit = await self.members.fit(updates, tally.last)
        self.answered, self.round_number = tally.held, number
        wanted = max(0, due - before) - self.schedule.held_back
        return RoundReport(number, wanted, self.answered - before, self.answered, fit, fit is not None)

    async def _ask(self, number: int, stop: Stop) -> Tally:
        """Ask for what is due, as far as answers tell clips apart (`LabelSchedule`); what the store holds then."""
        progress = number / self.schedule.rounds if self.schedule.rounds else 1.0
        tally = await self._tally()
        while True:
            allowed = self.schedule.allowed(progress, tally.held, tally.ties, training=number > 0)
            asked = 0
            for askings in self.members.gatherers:
                missing = allowed - tally.held
                asked += await self.members.ask(askings, missing - askings.open) if missing > askings.open else 0
            if not asked and not self.members.open:
                if number > 0 or not self.schedule.wants_clips or not self.source.room_for_more() or stop():
                    return tally
                self.schedule.gathered()
                await self.source.more(self.schedule.gatherings)
                continue
            await self._answers(stop)
            tally = await self._tally()
            if stop() or not self.schedule.watches or number > 0:
                return tally

    async def _answers(self, stop: Stop) -> None:
        """Wait until all questions have an answer."""
        if self.people is not None:
            self.people.asks()
        while self.members.open and not stop():
            for askings in self.members.gatherers:
                await askings.listen()
        if self.people is not None:
            self.people.answered(self.source.env_steps, self.version, self.answered)

    async def _tally(self) -> Tally:
        """What the store holds, up to the last answer.

        The store may be ahead of this ring, whose run was killed and goes on from an earlier checkpoint: then the answers to what
        it asks are there already, and later ones do not count yet.
        """
        last = [askings.last for askings in self.members.gatherers]
        if self.people is not None or None in last:
            until = self.members.read if self.members.asked else self.begun_after
            return await self.members.tally(None if self.people is not None else until)
        return await self.members.tally(max(self.members.read, *(number or 0 for number in last)))

    async def _look_after(self) -> None:
        """Between rounds: see to a page that was restarted."""
        if self.people is not None:
            await self.people.askings.listen()

    # The rest.

    def newest_reward(self) -> dict[str, Array]:
        """See `Ring.newest_reward`."""
        return self.members.newest_reward()

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`."""
        report = self.members.check(self._run(_wait(self.members.pool.report.remote())))
        return self.schedule.report() | {
            "too_short": report.too_short,
            "distinct_clips": report.distinct,
            "clips_policy_version": report.newest_policy,
        }

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
        self.round_number, self._adopted = state["round_number"], state["adopted"]
        self.source.share = 1.0
        self.schedule.load_state(state["schedule"])

    def abandon(self) -> None:
        """See `Ring.abandon`."""
        self.source.close()
        for actor in (*(askings.actor for askings in self.members.gatherers), self.members.trainer):
            self.members.executor.stop(actor)

    def close(self) -> None:
        """See `Ring.close`."""
        self.source.close()
        self.members.close()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        task = self._loop.create_task(work)
        try:
            return self._loop.run_until_complete(task)
        except BaseException:
            # Somebody stopped it: nothing of it may go on when the ring is saved.
            if left := asyncio.all_tasks(self._loop):
                for each in left:
                    each.cancel()
                self._loop.run_until_complete(asyncio.wait(left))
            raise


async def _wait(reference: Any) -> Any:
    return await reference
