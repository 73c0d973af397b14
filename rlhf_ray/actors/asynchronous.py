"""The asynchronous ring: one coroutine per stage, each at its own pace. The agent's training waits for none of them."""

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
from rlhf_ray.actors.ring import STATE, Members, Moment, Pretrained, RoundReport, Stop
from rlhf_ray.actors.synchronous import FIRST_FIT
from rlhf_ray.data.arrays import Array
from rlhf_ray.data.failures import cause
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.queries.pool import PoolReport
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.queries.skips import Skips
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.store import Tally

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.2
"""Polling interval in seconds of the training's thread while it waits."""

ASK_AGAIN_AFTER = 5.0
"""Seconds before the next attempt to ask about pairs whose fragments could not be stored."""

CALLS_WITHIN = 1.5
"""Seconds for pending calls to return before the actors are stopped. A wait for people at the page takes up to 1."""

ENDS_WITHIN = 60.0
"""Seconds for the ring's thread to end."""

_T = TypeVar("_T")


class AsynchronousRing:
    """Runs in its own thread, which moves references and waits; the training reports its progress to it.

    Labels fall due with the training's progress, and so do gradient steps: as many per environment step as in the synchronous ring.

    Args:
        members: the ring's actors.
        schedule: when how many labels are due.
        source: makes fragments other than those from the agent's own rollouts.
        people: the human annotators; None without.
        asks: whether to ask questions; otherwise it fits to the labels in the store.
        fits: whether to fit the reward model; otherwise it only collects preferences.
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
        self.asks, self.fits, self.collecting = asks, fits, True
        self.say: Callable[[str], None] = lambda what: None
        """Called with status messages before the first iteration."""
        source.say = lambda what: self.say(what)
        self.meters = {name: Meter() for name in ("asking", "fitting", "exploring", "checking")}
        self.meters |= {askings.name: Meter() for askings in members.gatherers}
        self._tally = Tally()
        self._skips = Skips(members.settings.preferences)
        self._moment = Moment(0.0, 0, 0, 0, _no_policy)
        self._advances = self._looked_at = 0
        """Number of iterations started by the agent, and that number at the last check of the pool."""
        self._fits_held = 0
        """Rounds of gradient steps after the first fit."""
        self._published_at = 0
        """Environment steps when the newest version was made."""
        self._starved_at = -1
        """Iteration in which no pair was possible; new fragments end this."""
        self._deserted_at = -1
        """Iteration in which all scripted annotators had left; another one looks again."""
        self._gathering = False
        """Whether initial fragments are being collected."""
        self._report = PoolReport()
        self._told = (-1, -1, -1)
        """The situation last shown to people."""
        self._reported = 0, 0
        """Labels due and answered at the last report."""
        self._unfitted = False
        """Whether the store has changes that no fit has seen."""
        self._labels_before = 0
        """Number of labels that existed before the initial fragments."""
        self._due = 0
        """Total number of labels to request by now, as last computed."""
        self._news: FitReport | None = None
        self.begun_after: int | None = None
        self._failure: BaseException | None = None
        self._published = threading.Condition()
        """Notified of each new version and of the ring's failure. Held without calling anything."""
        self._loop = asyncio.new_event_loop()
        self._changed = asyncio.Event()
        self._stages: list[asyncio.Task[None]] = []
        self._ending = False
        self._thread = threading.Thread(target=self._run, name="ring", daemon=True)

    # Called by the training.

    @property
    def env_steps(self) -> int:
        """See `Ring.env_steps`."""
        return self.source.env_steps

    @property
    def answered(self) -> int:
        """See `Ring.answered`."""
        return self._tally.held

    @property
    def skipped(self) -> int:
        """Number of pairs that were skipped so far."""
        return self._tally.skipped

    @property
    def version(self) -> int:
        """See `Ring.version`."""
        return self.members.version

    @property
    def rounds_held(self) -> int:
        """See `Ring.rounds_held`."""
        return self._fits_held + 1 if self.version else 0

    def begin(
        self, env_steps: int, stop: Stop = lambda: False, pretrained: Pretrained | None = None
    ) -> RoundReport | None:
        """See `Ring.begin`.

        Raises:
            SettingError: the initial fragments show that the settings don't fit the environment.
        """
        self.source.pretrained = pretrained
        self.start(env_steps)
        self.wait_for_version(stop)
        return self.take_report()

    def start(self, env_steps: int = 0) -> None:
        """Start, with ``env_steps`` random actions for the initial fragments and the labels that the store holds."""
        self._gathering = env_steps > 0
        self._moment = Moment(0.0, env_steps, 0, 0, _no_policy)
        if self.begun_after is not None:
            self.members.renumber()
        self._thread.start()
        self.call(self._start(env_steps))

    def wait_for_version(self, stop: Stop = lambda: False) -> None:
        """Wait for the first version of the reward model, or until ``stop`` returns True.

        Raises:
            Exception: the ring failed with it.
        """
        self._wait(lambda: self.version == 0 and not stop())

    def advance(self, moment: Moment, stop: Stop = lambda: False) -> RoundReport | None:
        """See `Ring.advance`. With `PreferenceSettings.max_reward_age`, wait while the reward is older than that.

        Raises:
            Exception: the ring failed with it.
        """
        self.check()
        due = self.schedule.round_at(moment.progress)
        if self.members.extended:
            self._fits_held, self.members.extended = min(self._fits_held, due), False
        if due > self.schedule.round_at(self._moment.progress) and self.collecting:
            self.source.offer(moment, due, wait=False)
        if self.people is not None:
            self.people.advanced(moment.progress)
        self._moment, self._advances = moment, self._advances + 1
        self._skips.forget()
        self.notify()
        limit = self.members.settings.preferences.max_reward_age
        if limit is not None:
            self._wait(lambda: self.reward_age >= limit and self._version_to_come() and not stop())
        return self.take_report()

    def settle(self) -> tuple[int, int]:
        """Wait for due labels and their fit, as far as these need neither people nor new fragments.

        Returns:
            The number of missing labels and the number of due ones.

        Raises:
            Exception: the ring failed with it.
        """
        while self._failure is None and self.call(self._unsettled()):
            with self._published:
                self._published.wait(LOOK_EVERY)
        self.check()
        due = self._due if self.source.share else 0
        return max(0, due - self._used), due

    async def _unsettled(self) -> bool:
        scripted = [askings for askings in self.members.gatherers if not askings.annotators]
        if any(askings.open or self._to_ask(askings) > 0 for askings in scripted):
            return True
        return self.fits and (self.meters["fitting"].working or self._fit_is_due())

    @property
    def labels_due(self) -> int:
        """Total number of labels to request by now."""
        return self._due if self.asks and self.source.share == 1.0 else 0

    def newest_reward(self) -> dict[str, Array]:
        """See `Ring.newest_reward`."""
        return self.members.newest_reward()

    @property
    def reward_age(self) -> int:
        """Environment steps since the newest version of the reward model was made."""
        return self._moment.env_steps - self._published_at

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`: each stage's rate, idle share and queue; losses; and the reward's age (env steps)."""
        waiting = {
            "asking": max(0, self._due - self._used - self.members.open),
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
            "labels_due": float(self._due - self._used + self.answered),
            "reward_age": float(self.reward_age),
            "label_seconds": max((askings.seconds for askings in gatherers), default=0.0),
            "questions_lost": float(sum(askings.lost_questions for askings in gatherers)),
            "commits_failed": float(sum(askings.failed_commits for askings in gatherers)),
        }
        return (
            self.schedule.report()
            | {
                "too_short": self._report.too_short,
                "distinct_clips": self._report.distinct,
                "clips_policy_version": self._report.newest_policy,
                "skipped": self.skipped,
                "stages": stages,
            }
            | (self.people.metrics() if self.people is not None else {})
        )

    def adopt(self, store: Path | str) -> None:
        """See `Members.adopt`."""
        asyncio.run(self.members.adopt(store))

    def save(self, folder: Path) -> None:
        """See `Ring.save`. A ring that failed (`check`) is saved too: the open questions will be asked again."""
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
        """See `Ring.load`. Labels stored after the checkpoint count and are fitted to."""
        state = read_nested(folder / STATE)
        self.source.env_steps, self.source.share = state["env_steps"], 1.0
        self._fits_held, self._published_at = state["fits"], state["published_at"]
        self._reported = state["reported"][0], state["reported"][1]
        self.schedule.load_state(state["schedule"])
        self._gathering = False
        self._thread.start()
        self.call(self.members.load(folder, state, replace=replace))
        if self.people is not None:
            self.people.error_rates = self.members.error_rates
        self.members.renumber()
        self.call(self._start(0))

    def abandon(self) -> None:
        """See `Ring.abandon`."""
        self.source.close()

    def close(self) -> None:
        """See `Ring.close`. Loses no answers: gatherers commit them themselves."""
        if self.people is not None:
            self.people.farewell("stopped")
        self._ending = True
        if self._thread.is_alive():
            self.call(self._end())
            self._thread.join(ENDS_WITHIN)
        self.source.close()
        self.members.close()

    def call(self, work: Coroutine[Any, Any, _T]) -> _T:
        """Run ``work`` in the ring's thread and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def notify(self) -> None:
        """Wake the stages, so that each checks for work."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._notify)

    def _wait(self, go_on: Callable[[], bool]) -> None:
        while go_on() and self._failure is None:
            with self._published:
                self._published.wait(LOOK_EVERY)
            if self.people is not None and self.people.askings.open:
                wanted = self._due if self.version else self.schedule.first_fit
                self.people.waiting(min(self._used, wanted), wanted)
        if self.people is not None:
            self.people.end_wait()
        self.check()

    def take_report(self) -> RoundReport | None:
        """Return a report of the newest fit, with the labels due and answered since the last report; None without a fit."""
        fit, self._news = self._news, None
        if fit is None:
            return None
        due, answered = self._due - self._used + self.answered, self.answered
        report = RoundReport(
            fit.version - 1, due - self._reported[0], answered - self._reported[1], answered, fit, True
        )
        self._reported = due, answered
        return report

    def check(self) -> None:
        """See `Ring.check`."""
        if self._failure is not None:
            raise self._failure

    # The stages. Each is a coroutine in the ring's thread.

    async def _ask(self, askings: Askings) -> None:
        """Select pairs that are due and send them to one gatherer, up to its limit of open questions."""
        while await self._until(lambda: self._to_ask(askings) > 0):
            with self.meters["asking"].busy() as done:
                try:
                    done(found := await self.members.ask(askings, self._to_ask(askings)))
                except OSError as error:
                    askings.failed_commits += 1
                    logger.error("Can't store fragments; their pairs will be asked about later: %s", cause(error))
                    await asyncio.sleep(ASK_AGAIN_AFTER)
                    continue
            if not found:
                self._starved_at = self._advances  # no pair possible until there are new fragments
                if not (self._gathering or self.members.open or self.source.to_come()):
                    self._check_first()
            self._notify()

    async def _listen(self, askings: Askings) -> None:
        """Wait for answers, then read the store's new counts."""
        always = self.people is not None and askings is self.people.askings  # the page may need a restart
        while await self._until(lambda: always or askings.open > 0):
            before = askings.open
            with self.meters[askings.name].busy(if_=askings.open > 0) as done:
                if await askings.listen(self._read):
                    self._unfitted = True
                if askings.deserted:
                    self._deserted_at = self._advances
                done(max(0, before - askings.open))
            if always and self.people is not None:
                self.people.look()
            self._notify()

    async def _read(self) -> None:
        tally = await self.members.tally()
        if tally.last >= self._tally.last:  # of two concurrent reads, the later one counts
            self._tally = tally
            self._skips.note(tally)
            if self._skips.hopeless or self._used >= self.schedule.due(0.0):
                self._check_first()
        self._notify()

    def _check_first(self) -> None:
        """Fail if there is no answer for the first fit because a scripted teacher skipped everything."""
        if self.version == 0 and self.people is None and self.fits:
            self._skips.check_first(self._tally)

    async def _fit(self) -> None:
        """Fit a new version when gradient steps are due and there are new labels."""
        while await self._until(self._fit_is_due):
            rounds = self._rounds_to_fit()
            of = self.members.settings.reward_model
            updates = max(rounds, 1) * of.updates
            if self.version == 0:
                self.say(FIRST_FIT)
                updates = of.first_updates(self._tally.held) + rounds * of.updates
            self._unfitted = False
            with self.meters["fitting"].busy() as done:
                fit = await self.members.fit(updates, progress=self._moment.progress)
                done(updates)
            if fit is None:  # all labels were withdrawn
                await self._read()
                continue
            self._published_at = self._moment.env_steps
            if self.people is not None:
                self.people.error_rates = fit.error_rates
            with self._published:
                self._news = fit
                self._fits_held += rounds
                self._published.notify_all()
            self._notify()

    async def _explore(self) -> None:
        """Make fragments beyond those from the agent's own rollouts."""
        while await self._until(self.source.waiting):
            with self.meters["exploring"].busy() as done:
                done(await self.source.make())
            self._notify()

    async def _check(self) -> None:
        """Check the pool once per iteration of the agent."""
        while await self._until(lambda: self._advances != self._looked_at):
            self._looked_at = self._advances
            taken = self._moment.env_steps
            with self.meters["checking"].busy() as done:
                report = self.members.check(await self.members.pool.report.remote())
                self._report = self.source.check(report, taken)
                done(1)
            if self.version and not self._unfitted and self._allowed() <= self._used:
                # Rounds without labels make no version; the newest round waits for the next label.
                self._fits_held += max(0, self._rounds_to_fit() - 1)

    async def _hold_back(self) -> None:
        """Collect other initial fragments while nearly all first answers are ties."""
        while await self._until(self._wants_clips):
            self.schedule.gathered()
            await self.source.more(self.schedule.gatherings)
            self._starved_at = -1
            self._notify()

    async def _tell(self) -> None:
        """Show people the training's progress."""
        assert self.people is not None
        while await self._until(lambda: self._situation() != self._told):
            self._told = self._situation()
            self.people.waiting_for = self._waiting_for()
            self.people.gathered = self.source.share if self._gathering else None
            self.people.tell(*self._told)

    async def _gather_first(self, env_steps: int) -> None:
        def made() -> None:
            self._starved_at = -1
            self._notify()

        await self.source.first(env_steps, made)
        self._gathering = False
        self._notify()

    # Conditions for work.

    @property
    def _used(self) -> int:
        """How much of the label budget is used up."""
        return self._skips.used(self._tally)

    def _allowed(self) -> int:
        """Return the total number of labels to request by now."""
        self._due = self.schedule.allowed(
            self._moment.progress, self._used, self._tally.ties, open=self.members.open, training=self.version > 0
        )
        return self._due

    def _to_ask(self, askings: Askings) -> int:
        """Return the number of pairs to send to a gatherer now."""
        if not self.asks or not self.collecting or self._starved_at == self._advances or self._skips.hopeless:
            return 0
        if askings.deserted and self._deserted_at == self._advances:
            return 0
        before = self._labels_before
        due = before + questions(self._allowed() - before, self.source.share, self.source.share > 0)
        if askings.share == 1.0:
            missing = due - self._used
        else:
            for_people = round(self.members.settings.preferences.people_share * due)
            mine = for_people if askings.annotators else due - for_people
            missing = mine - self._held_by(askings)
        most = missing if askings.most is None else min(missing, askings.most)
        return most - askings.open

    def _held_by(self, askings: Askings) -> int:
        """Return the number of labels from this gatherer."""
        people = sum(self._tally.by_annotator.get(name, 0) for one in self.members.gatherers for name in one.annotators)
        return people if askings.annotators else self._used - people

    def _rounds_to_fit(self) -> int:
        """Return the rounds of gradient steps due but not taken; before the first fit, those covered by existing labels."""
        if self.version == 0:
            return self.schedule.rounds_covered(self._tally.held)
        return self.schedule.round_at(self._moment.progress) - self._fits_held

    def _fit_is_due(self) -> bool:
        if not self.fits or not self._unfitted:
            return False
        if self.version == 0:
            enough = self._used >= self.schedule.first_fit
            return self._tally.held > 0 and (enough or not self._answers_to_come())
        # The last labels may arrive after the last round's fit.
        late = self._moment.progress == 1.0 and self._used >= self._allowed()
        return self._rounds_to_fit() > 0 or late

    def _answers_to_come(self) -> bool:
        """Before the first fit: return whether more answers will arrive while the agent's training waits."""
        if self._gathering or self.members.open or self._wants_clips() or self.source.to_come():
            return True
        return any(self._to_ask(askings) > 0 for askings in self.members.gatherers)

    def _wants_clips(self) -> bool:
        waiting = self._gathering or self.members.open or self.version
        return not waiting and self.schedule.wants_clips and self.source.room_for_more()

    def _version_to_come(self) -> bool:
        """Return whether a newer version of the reward model will be made while the agent's training waits."""
        labels = self._unfitted or self.members.open > 0
        asking = any(self._to_ask(askings) > 0 for askings in self.members.gatherers)
        return self.meters["fitting"].working or (self._rounds_to_fit() > 0 and (labels or asking))

    def _situation(self) -> tuple[int, int, int]:
        """Return the training's progress: environment steps, version, labels."""
        now = round(self.source.share * self.source.env_steps) if self._gathering else self._moment.env_steps
        return now, self.version, self.answered

    def _waiting_for(self) -> str:
        if self._gathering:
            return "the agent's first clips"
        if self.version:
            return "the training to continue (questions are spread over it)"
        if self.answered < self.schedule.first_fit:
            return "the agent's first clips"
        return "the reward model to learn from these first answers"

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
        self._labels_before = self._used if self.version == 0 else 0
        if self.version == 0:
            self.schedule.begin(self._used, self._tally.ties)
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
        if self._stages:  # Ray prints a line for each pending call of a stopped actor
            await asyncio.wait(self._stages, timeout=CALLS_WITHIN)
        for task in self._stages:
            task.cancel()
        self._loop.call_soon(self._loop.stop)

    def _notify(self) -> None:
        before, self._changed = self._changed, asyncio.Event()
        before.set()

    async def _until(self, ready: Callable[[], bool]) -> bool:
        """Wait until there is work. Return False if the ring is ending."""
        while not self._ending and not ready():
            await self._changed.wait()
        return not self._ending


def _no_policy() -> Any:
    raise RuntimeError("There is no policy before the first iteration.")
