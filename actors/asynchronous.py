"""The asynchronous ring: a coroutine for each stage, each at its own pace. The agent's training waits for none of them."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from rlhf_ray.actors.askings import Askings
from rlhf_ray.actors.clip_source import ClipSource
from rlhf_ray.actors.first_clips import questions
from rlhf_ray.actors.meter import Meter
from rlhf_ray.actors.people import People
from rlhf_ray.actors.ring import STATE, Members, Moment, RoundReport, Stop
from rlhf_ray.actors.synchronous import FIRST_FIT
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.failures import cause
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.queries.pool import PoolReport
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.reward.trainer import FitReport
from rlhf_ray.store import Tally

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.2
"""Seconds between two looks of the training's thread at whether it has to wait on."""

ASK_AGAIN_AFTER = 5.0
"""Seconds between two attempts to ask about pairs whose clips could not be stored."""

CALLS_WITHIN = 1.5
"""Seconds that calls under way have to return before the actors are ended. What waits for people at the page takes up to 1."""

ENDS_WITHIN = 60.0
"""Seconds that the thread has to end."""

_T = TypeVar("_T")


class AsynchronousRing:
    """Turns in a thread of its own, which moves references and waits; the training tells it how far it is.

    Labels fall due with the training's progress, and so do gradient steps: as many per environment step as in the synchronous ring.

    Args:
        members: its actors.
        schedule: how many labels, when.
        source: of clips that the agent's own rollouts don't make.
        people: where people are asked; else None.
        asks: whether questions are asked; else it fits to what the store holds.
        fits: whether the reward model is fitted; else it only collects preferences.
    """

    def __init__(
        self,
        members: Members,
        schedule: LabelSchedule,
        source: ClipSource,
        people: People | None = None,
        *,
        asks: bool = True,
        fits: bool = True,
    ):
        self.members, self.schedule, self.source, self.people = members, schedule, source, people
        self.asks, self.fits = asks, fits
        self.say: Callable[[str], None] = lambda what: None
        """Is told what the run waits for before its first iteration."""
        source.say = lambda what: self.say(what)
        self.meters = {name: Meter() for name in ("asking", "fitting", "exploring", "checking")}
        self.meters |= {askings.name: Meter() for askings in members.gatherers}
        self._tally = Tally()
        self._moment = Moment(0.0, 0, 0, 0, _no_policy)
        self._advances = self._looked_at = 0
        """Iterations of the agent that have begun, and those at which the pool was looked at last."""
        self._fits_held = 0
        """Rounds of gradient steps taken after the first fit."""
        self._published_at = 0
        """Environment steps when the newest version was made."""
        self._starved_at = -1
        """The iteration in which no pair was to be made, which new clips end."""
        self._gathering = False
        """Whether first clips are being made."""
        self._report = PoolReport()
        self._told = (-1, -1, -1)
        """What people were told last."""
        self._reported = 0, 0
        """Labels due and answered at the last report."""
        self._unfitted = False
        """Whether something was stored that no fit has seen."""
        self._labels_before = 0
        """Labels that were there before the first clips."""
        self._due = 0
        """Labels to have been asked for by now, as found last."""
        self._news: FitReport | None = None
        self.begun_after: int | None = None
        self._failure: BaseException | None = None
        self._published = threading.Condition()
        """Is told when there is a new version, or the ring has failed. Nothing is called while it is held."""
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._stages: list[asyncio.Task[None]] = []
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="ring", daemon=True)

    # What the training calls.

    @property
    def env_steps(self) -> int:
        """See `Ring.env_steps`."""
        return self.source.env_steps

    @property
    def answered(self) -> int:
        """See `Ring.answered`."""
        return self._tally.held

    @property
    def version(self) -> int:
        """See `Ring.version`."""
        return self.members.version

    @property
    def rounds_held(self) -> int:
        """See `Ring.rounds_held`."""
        return self._fits_held + 1 if self.version else 0

    def begin(self, env_steps: int, stop: Stop = lambda: False) -> RoundReport | None:
        """See `Ring.begin`.

        Raises:
            SettingError: the clips show that the settings do not fit the environment.
        """
        self.start(env_steps)
        self.wait_for_version(stop)
        return self.take_report()

    def start(self, env_steps: int = 0) -> None:
        """Begin to turn, with ``env_steps`` random actions for the first clips and the labels that the store holds."""
        self._gathering = env_steps > 0
        self._moment = Moment(0.0, env_steps, 0, 0, _no_policy)
        self._thread.start()
        self.call(self._start(env_steps))

    def wait_for_version(self, stop: Stop = lambda: False) -> None:
        """Wait for the first version of the reward model, or until ``stop`` says not to.

        Raises:
            Exception: whatever went wrong in the ring.
        """
        self._wait(lambda: self.version == 0 and not stop())

    def advance(self, moment: Moment, stop: Stop = lambda: False) -> RoundReport | None:
        """See `Ring.advance`; with `PreferenceSettings.max_reward_age`, wait while the reward is older than that.

        Raises:
            Exception: whatever went wrong in the ring.
        """
        self._raise_failure()
        due = self.schedule.round_at(moment.progress)
        if due > self.schedule.round_at(self._moment.progress):
            self.source.offer(moment, due, wait=False)
        if self.people is not None:
            self.people.advanced(moment.progress)
        self._moment, self._advances = moment, self._advances + 1
        self.notify()
        limit = self.members.settings.preferences.max_reward_age
        if limit is not None:
            self._wait(lambda: self.reward_age >= limit and self._version_to_come() and not stop())
        return self.take_report()

    def settle(self) -> tuple[int, int]:
        """Wait for the labels that are due and the fit to them, as far as neither people nor new clips are needed for that.

        Returns:
            How many labels are missing, and how many are due.

        Raises:
            Exception: whatever went wrong in the ring.
        """
        while self._failure is None and self.call(self._unsettled()):
            with self._published:
                self._published.wait(LOOK_EVERY)
        self._raise_failure()
        due = self._due if self.source.share else 0
        return max(0, due - self.answered), due

    async def _unsettled(self) -> bool:
        scripted = [askings for askings in self.members.gatherers if not askings.annotators]
        if any(askings.open or self._to_ask(askings) > 0 for askings in scripted):
            return True
        return self.fits and (self.meters["fitting"].working or self._fit_is_due())

    @property
    def labels_due(self) -> int:
        """Labels to have been asked for by now, in all."""
        return self._due if self.asks and self.source.share == 1.0 else 0

    def newest_reward(self) -> dict[str, Array]:
        """See `Ring.newest_reward`."""
        return self.members.newest_reward()

    @property
    def reward_age(self) -> int:
        """Environment steps taken since the newest version of the reward model was made."""
        return self._moment.env_steps - self._published_at

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`: of each stage its rate, idle share and queue; what was dropped; the reward's age (env steps)."""
        waiting = {
            "asking": max(0, self._due - self.answered - self.members.open),
            "fitting": int(self._unfitted),
            "exploring": int(self.source.waiting()),
        } | {askings.name: askings.open for askings in self.members.gatherers}
        stages = {
            f"{name}_{what}": value
            for name, meter in self.meters.items()
            for what, value in meter.report(waiting.get(name, 0)).items()
        }
        gatherers = self.members.gatherers
        stages |= self.source.metrics() | {
            "labels_due": float(self._due),
            "reward_age": float(self.reward_age),
            "label_seconds": max((askings.seconds for askings in gatherers), default=0.0),
            "questions_lost": float(sum(askings.lost_questions for askings in gatherers)),
            "commits_failed": float(sum(askings.failed_commits for askings in gatherers)),
        }
        return self.schedule.report() | {
            "too_short": self._report.too_short,
            "distinct_clips": self._report.distinct,
            "clips_policy_version": self._report.newest_policy,
            "stages": stages,
        }

    def adopt(self, store: Path | str) -> None:
        """See `Members.adopt`."""
        asyncio.run(self.members.adopt(store))

    def save(self, folder: Path) -> None:
        """See `Ring.save`.

        Raises:
            Exception: whatever went wrong in the ring, which the end of a run would not notice otherwise.
        """
        self._raise_failure()
        self.call(self._save(folder))

    async def _save(self, folder: Path) -> None:
        state = await self.members.save(folder) | {
            "env_steps": self.source.env_steps,
            "fits": self._fits_held,
            "published_at": self._published_at,
            "reported": list(self._reported),
            "schedule": self.schedule.state(),
        }
        await asyncio.to_thread(write_nested, state, folder / STATE)

    def load(self, folder: Path, *, replace: bool = False) -> None:
        """See `Ring.load`. Labels that were stored after the checkpoint count, and are fitted to."""
        state = read_nested(folder / STATE)
        self.source.env_steps, self.source.share = state["env_steps"], 1.0
        self._fits_held, self._published_at = state["fits"], state["published_at"]
        self._reported = state["reported"][0], state["reported"][1]
        self.schedule.load_state(state["schedule"])
        self._gathering = False
        self._thread.start()
        self.call(self.members.load(folder, state, replace=replace))
        self.call(self._start(0))

    def abandon(self) -> None:
        """See `Ring.abandon`."""
        self.source.close()

    def close(self) -> None:
        """See `Ring.close`. What was answered is stored: whoever answers stores it."""
        self._ending = True
        if self._thread.is_alive():
            self.call(self._end())
            self._thread.join(ENDS_WITHIN)
        self.source.close()
        self.members.close()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Have the ring's thread do this, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def notify(self) -> None:
        """Have the stages look whether there is something for them to do."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._notify)

    def _wait(self, go_on: Callable[[], bool]) -> None:
        with self._published:
            while go_on() and self._failure is None:
                self._published.wait(LOOK_EVERY)
        self._raise_failure()

    def take_report(self) -> RoundReport | None:
        """The newest fit since the last report, and how many labels fell due and were answered since; None without a fit."""
        fit, self._news = self._news, None
        if fit is None:
            return None
        due, answered = self._due, self.answered
        report = RoundReport(
            fit.version - 1, due - self._reported[0], answered - self._reported[1], answered, fit, True
        )
        self._reported = due, answered
        return report

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # The stages. Each is a coroutine in the ring's thread.

    async def _ask(self, askings: Askings) -> None:
        """Choose pairs that are due and ask one gatherer about them, as far as it has room for open questions."""
        while await self._until(lambda: self._to_ask(askings) > 0):
            with self.meters["asking"].busy() as done:
                try:
                    done(found := await self.members.ask(askings, self._to_ask(askings)))
                except OSError as error:
                    askings.failed_commits += 1
                    logger.error("Could not store clips; they are asked about when that is possible: %s", cause(error))
                    await asyncio.sleep(ASK_AGAIN_AFTER)
                    continue
            if not found:
                self._starved_at = self._advances  # no pair to be made, until there are new clips
            self._notify()

    async def _listen(self, askings: Askings) -> None:
        """Wait for answers, and read in the store what they came to."""
        always = self.people is not None and askings is self.people.askings  # the page may have to be brought back
        while await self._until(lambda: always or askings.open > 0):
            before = askings.open
            with self.meters[askings.name].busy(if_=askings.open > 0) as done:
                if await askings.listen(self._read):
                    self._unfitted = True
                done(max(0, before - askings.open))
            self._notify()

    async def _read(self) -> None:
        tally = await self.members.tally()
        if tally.last >= self._tally.last:  # of two readings at once the later one counts
            self._tally = tally
        self._notify()

    async def _fit(self) -> None:
        """Make a version, where gradient steps are due and there are new labels."""
        while await self._until(self._fit_is_due):
            rounds = self._rounds_to_fit()
            of = self.members.settings.reward_model
            updates = max(rounds, 1) * of.updates
            if self.version == 0:
                self.say(FIRST_FIT)
                updates = of.initial_updates + rounds * of.updates
            self._unfitted = False
            with self.meters["fitting"].busy() as done:
                fit = await self.members.fit(updates)
                done(updates)
            if fit is None:  # everything was taken back
                await self._read()
                continue
            self._published_at = self._moment.env_steps
            with self._published:
                self._news = fit
                self._fits_held += rounds
                self._published.notify_all()
            self._notify()

    async def _explore(self) -> None:
        """Have clips made that the agent's own rollouts don't make."""
        while await self._until(self.source.waiting):
            with self.meters["exploring"].busy() as done:
                done(await self.source.make())
            self._notify()

    async def _check(self) -> None:
        """Look at what has arrived at the pool, once per iteration of the agent."""
        while await self._until(lambda: self._advances != self._looked_at):
            self._looked_at = self._advances
            taken = self._moment.env_steps
            with self.meters["checking"].busy() as done:
                report = self.members.check(await self.members.pool.report.remote())
                self._report = self.source.check(report, taken)
                done(1)
            if self.version and not self._unfitted and self._allowed() <= self.answered:
                # Rounds without labels make no version; the newest one waits for the next label.
                self._fits_held += max(0, self._rounds_to_fit() - 1)

    async def _hold_back(self) -> None:
        """While nearly all first answers are ties, gather other first clips."""
        while await self._until(self._wants_clips):
            self.schedule.gathered()
            await self.source.more(self.schedule.gatherings)
            self._starved_at = -1
            self._notify()

    async def _tell(self) -> None:
        """Tell people how the training is doing."""
        assert self.people is not None
        while await self._until(lambda: self._situation() != self._told):
            self._told = self._situation()
            self.people.waiting_for = self._waiting_for()
            self.people.tell(*self._told)

    async def _gather_first(self, env_steps: int) -> None:
        def made() -> None:
            self._starved_at = -1
            self._notify()

        await self.source.first(env_steps, made)
        self._gathering = False
        self._notify()

    # When a stage has something to do.

    def _allowed(self) -> int:
        """Labels to have been asked for by now, in all."""
        self._due = self.schedule.allowed(
            self._moment.progress, self._tally.held, self._tally.ties, open=self.members.open, training=self.version > 0
        )
        return self._due

    def _to_ask(self, askings: Askings) -> int:
        """How many pairs to ask a gatherer about now."""
        if not self.asks or self._starved_at == self._advances:
            return 0
        before = self._labels_before
        due = before + questions(self._allowed() - before, self.source.share, self.source.share > 0)
        if askings.share == 1.0:
            missing = due - self._tally.held
        else:
            for_people = round(self.members.settings.preferences.people_share * due)
            mine = for_people if askings.annotators else due - for_people
            missing = mine - self._held_by(askings)
        most = missing if askings.most is None else min(missing, askings.most)
        return most - askings.open

    def _held_by(self, askings: Askings) -> int:
        """Labels that are this gatherer's."""
        people = sum(self._tally.by_annotator.get(name, 0) for one in self.members.gatherers for name in one.annotators)
        return people if askings.annotators else self._tally.held - people

    def _rounds_to_fit(self) -> int:
        """Rounds of gradient steps that are due and were not taken; before the first fit, those of labels that were there."""
        if self.version == 0:
            return self.schedule.rounds_covered(self._tally.held)
        return self.schedule.round_at(self._moment.progress) - self._fits_held

    def _fit_is_due(self) -> bool:
        if not self.fits or not self._unfitted:
            return False
        if self.version == 0:
            enough = self._tally.held >= self.schedule.first_fit
            return self._tally.held > 0 and (enough or not self._answers_to_come())
        # The last labels came after the last round's fit.
        late = self._moment.progress == 1.0 and self.answered >= self._allowed()
        return self._rounds_to_fit() > 0 or late

    def _answers_to_come(self) -> bool:
        """Before the first fit: whether there will be more answers without the agent's training going on."""
        if self._gathering or self.members.open or self._wants_clips() or self.source.to_come():
            return True
        return any(self._to_ask(askings) > 0 for askings in self.members.gatherers)

    def _wants_clips(self) -> bool:
        waiting = self._gathering or self.members.open or self.version
        return not waiting and self.schedule.wants_clips and self.source.room_for_more()

    def _version_to_come(self) -> bool:
        """Whether a newer version of the reward model is to be expected without the agent's training going on."""
        labels = self._unfitted or self.members.open > 0
        asking = any(self._to_ask(askings) > 0 for askings in self.members.gatherers)
        return self.meters["fitting"].working or (self._rounds_to_fit() > 0 and (labels or asking))

    def _situation(self) -> tuple[int, int, int]:
        """How far the training is: environment steps, version, labels."""
        now = round(self.source.share * self.source.env_steps) if self._gathering else self._moment.env_steps
        return now, self.version, self.answered

    def _waiting_for(self) -> str:
        if self._gathering:
            return f"the agent's first clips, of which {self.source.share:.0%} are there"
        if self.version:
            return "the training to go on, over which the questions are spread"
        if self.answered < self.schedule.first_fit:
            return "the agent's first clips"
        return "the reward to be learned from these first answers"

    # The thread.

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    async def _start(self, env_steps: int) -> None:
        await self._read()
        self._unfitted = self._tally.last > self.members.read
        self._labels_before = self._tally.held if self.version == 0 else 0
        if self.version == 0:
            self.schedule.begin(self._tally.held, self._tally.ties)
        work: list[Awaitable[None]] = [self._fit(), self._explore(), self._check(), self._hold_back()]
        for askings in self.members.gatherers:
            work += [self._ask(askings), self._listen(askings)]
        if self.people is not None:
            work.append(self._tell())
        if env_steps:
            work.append(self._gather_first(env_steps))
        for stage in work:
            task = asyncio.ensure_future(stage)
            task.add_done_callback(self._stage_ended)
            self._stages.append(task)

    def _stage_ended(self, task: asyncio.Future[None]) -> None:
        if task.cancelled() or task.exception() is None or self._ending:
            return
        with self._published:
            self._failure = task.exception()
            self._published.notify_all()

    async def _end(self) -> None:
        self._notify()
        if self._stages:  # Ray prints a line for each call whose actor is ended under it
            await asyncio.wait(self._stages, timeout=CALLS_WITHIN)
        for task in self._stages:
            task.cancel()
        self._loop.call_soon(self._loop.stop)

    def _notify(self) -> None:
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def _until(self, ready: Callable[[], bool]) -> bool:
        """Wait until there is something to do. False where the ring is to end."""
        while not self._ending and not ready():
            await self._changed.wait()
        return not self._ending


def _no_policy() -> Any:
    raise RuntimeError("There is no policy before the first iteration.")
