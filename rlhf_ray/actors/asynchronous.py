"""The asynchronous ring: one coroutine per stage, each at its own pace. The agent's training waits for none of them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from rlhf_ray.actors.fragment_source import FragmentSource
from rlhf_ray.actors.gatherer import OpenQuestions
from rlhf_ray.actors.people import People
from rlhf_ray.actors.ring import STATE, Learn, Pretrained, Progress, RoundReport, Stop, never, no_policy
from rlhf_ray.actors.ring_actors import RingActors
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.actors.stages import Meter, Stages
from rlhf_ray.actors.synchronous import FIRST_FIT, ActorRing
from rlhf_ray.data.failures import cause
from rlhf_ray.data.nested import read_nested, write_nested
from rlhf_ray.queries.due import Due, RingState
from rlhf_ray.queries.pool import FragmentPool, PoolReport
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.reward.fit_report import FitReport
from rlhf_ray.store import Tally

logger = logging.getLogger(__name__)

ASK_AGAIN_AFTER = 5.0
"""Seconds before the next attempt to ask about pairs whose fragments could not be stored."""


class AsynchronousRing(ActorRing):
    """Runs in its own thread, which moves references and waits; the training reports its progress to it.

    Labels fall due with the training's progress, and so do gradient steps: as many per environment step as in the synchronous ring.

    Args:
        asks: whether to ask questions; otherwise it fits to the labels in the store.
    """

    def __init__(
        self,
        actors: RingActors,
        schedule: LabelSchedule,
        source: FragmentSource,
        callbacks: RingCallbacks,
        *,
        asks: bool = True,
        fits: bool = True,
    ):
        super().__init__(actors, schedule, source, callbacks, fits=fits)
        self.due = Due(self.schedule, self.actors.settings.reward_model, asks=asks, fits=self.fits)
        self.meters = {name: Meter() for name in ("asking", "fitting", "exploring", "checking")}
        self.meters |= {questions.name: Meter() for questions in self.actors.gatherers}
        self._stages = Stages()
        self._progress = Progress(0.0, 0, 0, 0, no_policy)
        self._advances = self._checked_in = 0
        """Number of iterations started by the agent, and that number at the last check of the pool."""
        self._tally = Tally()
        self._unfitted = False
        """Whether the store has changes that no fit has seen."""
        self._published_at = 0
        """Environment steps when the newest version was made."""
        self._gathering = False
        """Whether initial fragments are being collected."""
        self._pool = PoolReport()
        self._told = (-1, -1, -1)
        """The situation last shown to people."""
        self._reported = 0, 0
        """Labels due and answered at the last report."""
        self._news: FitReport | None = None

    # Called by the training.

    @property
    def answered(self) -> int:
        return self._tally.comparisons

    @property
    def skipped(self) -> int:
        return self._tally.skipped

    @property
    def rounds_held(self) -> int:
        return self.due.fits.rounds + 1 if self.version else 0

    def begin(self, env_steps: int, stop: Stop = never, pretrained: Pretrained | None = None) -> RoundReport | None:
        """See `Ring.begin`.

        Raises:
            SettingError: the initial fragments show that the settings don't fit the environment.
        """
        self.start(env_steps, pretrained)
        self.wait_for_version(stop)
        return self.take_report()

    def start(self, env_steps: int = 0, pretrained: Pretrained | None = None) -> None:
        """Start, with ``env_steps`` steps for the initial fragments (see `begin`) and the labels that the store holds."""
        self._gathering = env_steps > 0
        self._progress = Progress(0.0, env_steps, env_steps, 0, no_policy, pretrained)
        if self.actors.settings.begun_after is not None:
            self.actors.renumber()
        self._stages.start()
        self._stages.call(self._start())

    def wait_for_version(self, stop: Stop = never) -> None:
        """Wait for the first version of the reward model, or until ``stop`` returns True.

        Raises:
            Exception: the ring failed with it.
        """
        self._wait_while(lambda: self.version == 0 and not stop())

    def advance(self, progress: Progress, stop: Stop = never, learn: Learn = lambda fit: None) -> RoundReport | None:
        """The stages collect, ask and fit meanwhile.

        With `PreferenceSettings.max_reward_age`, the agent waits while its reward is older than that.

        Raises:
            Exception: the ring failed with it.
        """
        self.check()
        due = self.schedule.round_at(progress.share)
        if self.actors.extended:
            self.due.fits.rounds, self.actors.extended = min(self.due.fits.rounds, due), False
        if due > self.schedule.round_at(self._progress.share) and self.collecting:
            self.source.offer(progress, due, wait=False)
        if self.people is not None:
            self.people.advanced(progress.share)
        self._progress, self._advances = progress, self._advances + 1
        self.due.skips.forget()
        self.notify()
        limit = self.actors.settings.preferences.max_reward_age
        if limit is not None:
            self._wait_while(lambda: self.reward_age >= limit and self.due.version_to_come(self._now()) and not stop())
        report = self.take_report()
        learn(lambda: report)
        return report

    def settle(self) -> tuple[int, int]:
        """Wait for due labels and their fit, as far as these need neither people nor new fragments.

        Returns:
            The number of missing labels and the number of due ones.

        Raises:
            Exception: the ring failed with it.
        """

        async def unsettled() -> bool:
            return self.due.unsettled(self._now())

        self._stages.wait_while(lambda: self._stages.call(unsettled()))
        self.check()
        due = self.due.total if self.source.share else 0
        return max(0, due - self.due.used(self._tally)), due

    @property
    def labels_due(self) -> int:
        """Total number of labels to request by now."""
        return self.due.total if self.due.asking and self.source.share == 1.0 else 0

    @property
    def reward_age(self) -> int:
        """Environment steps since the newest version of the reward model was made."""
        return self._progress.env_steps - self._published_at

    def take_report(self) -> RoundReport | None:
        """Return a report of the newest fit, with the labels due and answered since the last report; None without a fit."""
        fit, self._news = self._news, None
        if fit is None:
            return None
        due, answered = self._labels_due, self.answered
        report = RoundReport(
            fit.version - 1, due - self._reported[0], answered - self._reported[1], answered, fit, True
        )
        self._reported = due, answered
        return report

    def check(self) -> None:
        self._stages.check()

    def notify(self) -> None:
        """Wake the stages, so that each checks for work."""
        self._stages.notify()

    @property
    def _labels_due(self) -> int:
        """Number of labels due by now, without what skips use up."""
        return self.due.total - self.due.used(self._tally) + self.answered

    def _wait_while(self, waits: Callable[[], bool]) -> None:
        self._stages.wait_while(waits, self._show_wait)
        if self.people is not None:
            self.people.end_wait()
        self.check()

    def _show_wait(self) -> None:
        if self.people is not None and self.people.questions.open:
            wanted = self.due.total if self.version else self.schedule.first_fit
            self.people.waiting(min(self.due.used(self._tally), wanted), wanted)

    # The stages: the steps of the method, each a coroutine in the ring's thread.

    async def _start(self) -> None:
        await self._read()
        self._unfitted = self._tally.last > self.actors.read
        self.due.begin(self._tally, self.version)
        work: list[Awaitable[None]] = [self._fit(), self._collect(), self._check_pool(), self._collect_others()]
        for questions in self.actors.gatherers:
            work += [self._ask(questions), self._listen(questions)]
        if self.people is not None:
            work.append(self._tell(self.people))
        if self._gathering:
            work.append(self._collect_initial(self._progress))
        self._stages.run(work)

    async def _collect_initial(self, progress: Progress) -> None:
        """Collect the initial fragments. Questions about those that are made are asked meanwhile."""

        def made() -> None:
            self.due.fed()
            self._stages.wake()

        await self.source.first(progress.room, made, progress.pretrained)
        self._gathering = False
        self._stages.wake()

    async def _collect_others(self) -> None:
        """Collect other initial fragments while nearly all first answers are ties."""
        while await self._stages.until(lambda: self.due.wants_fragments(self._now())):
            self.schedule.gathered()
            await self.source.more(self.schedule.gatherings)
            self.due.fed()
            self._stages.wake()

    async def _collect(self) -> None:
        """Collect fragments beyond those of the agent's own rollouts."""
        while await self._stages.until(self.source.waiting):
            with self.meters["exploring"].busy() as done:
                done(await self.source.make())
            self._stages.wake()

    async def _ask(self, questions: OpenQuestions) -> None:
        """Choose pairs that are due and ask one gatherer about them, up to its limit of open questions."""
        while await self._stages.until(lambda: self.due.questions(self._now(), questions) > 0):
            with self.meters["asking"].busy() as done:
                try:
                    pairs = await self.actors.choose_pairs(self.due.questions(self._now(), questions))
                    if pairs is not None:
                        await questions.ask(pairs)
                        done(pairs.count)
                except OSError as error:
                    questions.failed_commits += 1
                    logger.error("Can't store fragments; their pairs will be asked about later: %s", cause(error))
                    await asyncio.sleep(ASK_AGAIN_AFTER)
                    continue
            if pairs is None:
                self.due.starved(self._advances)  # no pair possible until there are new fragments
                if not (self._gathering or self.actors.open or self.source.to_come()):
                    self._check_first()
            self._stages.wake()

    async def _listen(self, questions: OpenQuestions) -> None:
        """Wait for answers, then read the store's new counts."""
        people = self.people if self.people is not None and questions is self.people.questions else None
        while await self._stages.until(lambda: people is not None or questions.open > 0):  # a page may need a restart
            before = questions.open
            with self.meters[questions.name].busy(if_=questions.open > 0) as done:
                if await questions.listen(self._read):
                    self._unfitted = True
                if questions.deserted:
                    self.due.deserted(self._advances)
                done(max(0, before - questions.open))
            if people is not None:
                people.look()
            self._stages.wake()

    async def _fit(self) -> None:
        """Fit a new version of the reward model when gradient steps are due and there are new labels."""
        while await self._stages.until(lambda: self.due.fit(self._now())):
            if self.people is None:
                self.due.skips.check_decided(self._tally)
            rounds = self.due.rounds_to_fit(self._now())
            steps = self.due.fits.gradient_steps(rounds, self._tally.comparisons, self.version)
            if self.version == 0:
                self.callbacks.on_stage(FIRST_FIT)
            self._unfitted = False
            with self.meters["fitting"].busy() as done:
                fit = await self.actors.fit(steps, progress=self._progress.share)
                done(steps)
            if fit is None:  # all labels were withdrawn
                await self._read()
                continue
            self._published_at, self._news = self._progress.env_steps, fit
            self.due.fits.took(rounds)
            self._stages.publish()

    async def _check_pool(self) -> None:
        """Check once per iteration of the agent whether its fragments can be trained on."""
        while await self._stages.until(lambda: self._advances != self._checked_in):
            self._checked_in = self._advances
            env_steps = self._progress.env_steps
            with self.meters["checking"].busy() as done:
                report = self.actors.check(await self.actors.pool.call(FragmentPool.report))
                self._pool = self.source.check(report, env_steps)
                done(1)
            self.due.fits.took(self.due.rounds_without_labels(self._now()))

    async def _tell(self, people: People) -> None:
        """Show people the training's progress."""
        while await self._stages.until(lambda: self._situation() != self._told):
            self._told = self._situation()
            people.tell_while_training(*self._told, gathered=self.source.share if self._gathering else None)

    # What they share.

    async def _read(self) -> None:
        """Read the store's counts."""
        tally = await self.actors.tally()
        if tally.last >= self._tally.last:  # of two concurrent reads, the later one counts
            self._tally = tally
            self.due.skips.note(tally)
            if self.due.skips.hopeless or self.due.used(tally) >= self.schedule.due(0.0):
                self._check_first()
        self._stages.wake()

    def _check_first(self) -> None:
        """Fail if there is no answer for the first fit because a scripted teacher skipped everything."""
        if self.version == 0 and self.people is None and self.due.fitting:
            self.due.skips.check_first(self._tally)

    def _now(self) -> RingState:
        return RingState(
            progress=self._progress.share,
            iteration=self._advances,
            version=self.version,
            tally=self._tally,
            unfitted=self._unfitted,
            fitting=self.meters["fitting"].working,
            collecting=self.collecting,
            gathering=self._gathering,
            made=self.source.share,
            fragments_to_come=self.source.to_come(),
            room=self.source.room_for_more(),
            gatherers=self.actors.gatherers,
        )

    def _situation(self) -> tuple[int, int, int]:
        """Return the training's progress: environment steps, version, labels."""
        now = round(self.source.share * self.source.env_steps) if self._gathering else self._progress.env_steps
        return now, self.version, self.answered

    # State and shutdown.

    def metrics(self) -> dict[str, Any]:
        """See `Ring.metrics`: each stage's rate, idle share and queue; losses; and the reward's age (env steps)."""
        gatherers = self.actors.gatherers
        waiting = {
            "asking": max(0, self.due.total - self.due.used(self._tally) - self.actors.open),
            "fitting": int(self._unfitted),
            "exploring": int(self.source.waiting()),
        } | {questions.name: questions.open for questions in gatherers}
        reports = {name: meter.report(waiting.get(name, 0)) for name, meter in self.meters.items()}
        stages = {f"{name}_{what}": value for name, report in reports.items() for what, value in report.items()}
        stages |= self.source.metrics() | {
            "labels_due": float(self._labels_due),
            "reward_age": float(self.reward_age),
            "label_seconds": max((questions.seconds for questions in gatherers), default=0.0),
            "questions_lost": float(sum(questions.lost_questions for questions in gatherers)),
            "commits_failed": float(sum(questions.failed_commits for questions in gatherers)),
        }
        of_people = {} if self.people is None else self.people.metrics()
        of_ring = {"skipped": self.skipped, "stages": stages}
        return self.schedule.report() | self._pool.metrics() | of_ring | of_people

    def adopt(self, store: Path | str) -> None:
        asyncio.run(self.actors.adopt(store))

    def save(self, folder: Path) -> None:
        """A ring that failed (`check`) is saved too: the open questions will be asked again."""
        self._stages.call(self._save(folder))

    async def _save(self, folder: Path) -> None:
        state = await self.actors.save(folder) | {
            "env_steps": self.source.env_steps,
            "fits": self.due.fits.rounds,
            "published_at": self._published_at,
            "reported": list(self._reported),
            "schedule": self.schedule.state(),
        }
        await asyncio.to_thread(write_nested, state, folder / STATE)

    def load(self, folder: Path, *, replace: bool = False) -> None:
        """Labels stored after the checkpoint count and are fitted to."""
        state = read_nested(folder / STATE)
        self.source.env_steps, self.source.share = state["env_steps"], 1.0
        self.due.fits.rounds, self._published_at = state["fits"], state["published_at"]
        self._reported = state["reported"][0], state["reported"][1]
        self.schedule.load_state(state["schedule"])
        self._stages.start()
        self._stages.call(self.actors.load(folder, state, replace=replace))
        self.actors.renumber()
        self._stages.call(self._start())

    def abandon(self) -> None:
        self.source.close()

    def end(self) -> None:
        self._stages.end()
