"""The asynchronous ring: asking, answering, storing and fitting each go at their own pace, and PPO waits for none of them."""

from __future__ import annotations

import contextlib
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import ray

from actors.pipeline import FIRST_FIT, Pipeline, RoundReport
from actors.questions import LOST, Questions
from actors.reward_trainer import StateLostError
from actors.rollout_collector import PolicyFactory
from actors.stages import Stage
from rlhf_ray.failures import cause
from rlhf_ray.fragments import RANDOM_POLICY
from rlhf_ray.reward.trainer import FitReport
from rlhf_ray.schedules import labels_due, rounds_covered
from rlhf_ray.spending import PROBE

logger = logging.getLogger(__name__)

LOOK_EVERY = 0.2
"""Seconds between two looks at whether something can be started that no finished call announces."""

MOST_UNSTORED = 4
"""Batches of answers that wait to be stored, at most: where the store is slow, the teacher waits."""

CALLS_WITHIN = 1.5
"""Seconds that calls under way have to return before the actors are ended. What waits for people at the page takes up to 1."""

STORE_AGAIN_AFTER = 5.0
"""Seconds between two attempts to store answers that could not be."""


class AsynchronousPipeline(Pipeline):
    """Turns the ring in a thread of its own, which moves references and waits; PPO tells it how far it is.

    Labels fall due with PPO's progress, and so do gradient steps: as many per environment step as in the synchronous ring.
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self.rounds = self.preferences.rounds  # of gradient steps, which no iteration has to wait for
        self.stages = {name: Stage() for name in ("storing", *self._starts())}
        self.dropped_explorations = 0
        """Explorations that fell due while the collector was busy with an earlier one."""
        self.lost_questions = 0
        """Questions that went with the node they were on. They are replaced by new ones."""
        self.failed_commits = 0
        """Times that answers could not be stored. They are kept, and stored when it is possible again."""
        self.label_seconds = 0.0
        """From asking to storing, of the labels that were stored last."""
        self._store_again_at = 0.0
        self._progress, self._now, self._advances = 0.0, 0, 0
        self._asked, self._fits = 0, 0
        self._granted = 0 if self.spending.watches else self.preferences.comparisons
        """Labels that may be asked for by now, in all, where `Spending` watches them."""
        self._granted_at = -1
        """The round of the last grant."""
        self._settled = False
        """Whether the last grant was of nothing: what is due is held back."""
        self._ties_at = 0, 0
        """Labels, and ties among them, when `Spending` was told of them last."""
        self._starved_at = -1
        self._checked_at = 0
        self._published_at = 0
        self._reported = 0, 0
        """Labels due and answered when `news` was asked for last."""
        self._questions: deque[Questions] = deque()
        self._unstored: deque[tuple[Questions, int, Any]] = deque()
        self._unfitted: list[Any] = []
        self._exploration: tuple[int, int, PolicyFactory] | None = None
        self._arrived: dict[str, Any] = {"too_short": 0, "distinct_clips": 1.0, "newest_policy": RANDOM_POLICY}
        self._news: FitReport | None = None
        self._failure: BaseException | None = None
        self._stopping = False
        self._changed = threading.Condition()
        """Guards everything above, and is told when a version is published or the ring has failed."""
        self._thread = threading.Thread(target=self._run, name="ring", daemon=True)

    # What PPO calls.

    def begin(self, env_steps: int, stop: Callable[[], bool] = lambda: False) -> RoundReport | None:
        """Gather the first clips with ``env_steps`` random actions, and wait for the first version of the reward model.

        Args:
            env_steps: to take.
            stop: says whether to wait no longer.

        Returns:
            What the first fit came to; None when it was stopped before.

        Raises:
            SettingError: the clips show that the settings do not fit the environment.
        """
        self._collect_first(env_steps)
        self._now = env_steps
        self.start()
        self.wait_for_version(stop)
        return self.news()

    def start(self) -> None:
        """Begin to turn, with the labels that the store holds."""
        self._adopt_stored()
        if self.spending.watches:
            self._ties_at = ray.get(self.store.ties.remote())
        self._thread.start()

    def wait_for_version(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Wait for the first version of the reward model, or until ``stop`` says not to.

        Raises:
            Exception: whatever went wrong in the ring.
        """
        with self._changed:
            while self.version == 0 and not stop():
                self._changed.wait(LOOK_EVERY)
                self._raise_failure()

    @property
    def rounds_held(self) -> int:
        """Rounds of gradient steps taken so far, the first included."""
        return self._fits + 1 if self.version else 0

    def advance(self, progress: float, env_steps: int, stop: Callable[[], bool] = lambda: False) -> None:
        """PPO has come so far; with `PreferenceSettings.max_reward_age`, wait while its reward is older than that.

        Args:
            progress: 0 to 1; at 1 all labels are due.
            env_steps: taken so far, over all.
            stop: says whether to wait no longer.

        Raises:
            Exception: whatever went wrong in the ring.
        """
        with self._changed:
            self._raise_failure()
            self._progress, self._now = progress, env_steps
            self._advances += 1
            self._changed.notify_all()
            limit = self.preferences.max_reward_age
            while limit is not None and self.reward_age >= limit and self._version_to_come() and not stop():
                self._changed.wait(LOOK_EVERY)
                self._raise_failure()

    def explore(self, round_number: int, policy_version: int, make_policy: PolicyFactory) -> None:
        """Have clips of a policy with a share of random actions gathered, as the settings say. Their steps count from now on."""
        with self._changed:
            if self._exploration is not None:
                self.dropped_explorations += 1
                return
            self._exploration = (round_number, policy_version, make_policy)
            self.env_steps += self.fragments.exploration_env_steps

    def news(self) -> RoundReport | None:
        """The newest fit since the last call, and how many labels fell due and were answered since then; None without a fit."""
        with self._changed:
            fit, self._news = self._news, None
            if fit is None:
                return None
            due = self._due()
            report = RoundReport(
                fit.version - 1, due - self._reported[0], self.answered - self._reported[1], self.answered, fit
            )
            self._reported = due, self.answered
            return report

    @property
    def reward_age(self) -> int:
        """Environment steps taken since the newest version of the reward model was published."""
        return self._now - self._published_at

    def report(self) -> dict[str, float]:
        """Of each stage its rate, idle share and queue (`Stage.report`); what was dropped; the reward's age (env steps)."""
        with self._changed:
            values = {
                f"{name}_{what}": value
                for name, queue in self._waiting().items()
                for what, value in self.stages[name].report(queue).items()
            }
            return values | {
                "labels_due": float(self._due()),
                "reward_age": float(self.reward_age),
                "label_seconds": self.label_seconds,
                "explorations_dropped": float(self.dropped_explorations),
                "questions_lost": float(self.lost_questions),
                "commits_failed": float(self.failed_commits),
            }

    def _waiting(self) -> dict[str, int]:
        """What waits for each stage that has something to wait for it."""
        return {
            "asking": max(0, self._due() - self.answered - self._open()),
            "answering": sum(q.count - q.answered for q in self._questions if not q.people),
            "storing": sum(q.answered - q.stored for q in self._questions if not q.people),
            "fitting": len(self._unfitted),
            "exploring": int(self._exploration is not None),
        } | ({"granting": 0} if self.spending.watches else {})

    def arrived(self) -> dict[str, Any]:
        """The fragmenter's last report, without waiting for a newer one."""
        return self._arrived

    def state(self) -> dict[str, Any]:
        """See `Pipeline.state`. Questions whose answers are not stored yet are among it."""
        with self._changed:
            questions = []
            for q in self._questions:
                with contextlib.suppress(*LOST):  # they are asked for anew
                    questions.append(q.state())
            return super().state() | {
                "asked": self._asked,
                "fits": self._fits,
                "published_at": self._published_at,
                "reported": self._reported,
                "questions": questions,
                "granted": self._granted,
                "granted_at": self._granted_at,
            }

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Pipeline.load_state`. Labels that were stored after the state was made count, and are fitted to."""
        super().load_state(state)
        self._reported = tuple(state["reported"])
        self._asked, self._fits, self._published_at = state["asked"], state["fits"], state["published_at"]
        self._questions = deque(map(Questions.of_state, state["questions"]))
        if "granted" in state:  # else the checkpoint is an older version's
            self._granted, self._granted_at = state["granted"], state["granted_at"]
        self.start()

    def abandon(self) -> None:
        """See `Pipeline.abandon`. Once the thread runs, `close` sees to what is under way: answers are among it."""
        if not self._thread.is_alive():
            super().abandon()

    def close(self) -> None:
        """Store the answers that were given, then end the thread and the actors."""
        with self._changed:
            self._stopping, self._store_again_at = True, 0.0
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(60.0)
        if self._unstored:
            logger.error("%d answers could not be stored and are lost.", sum(count for _, count, _ in self._unstored))
        # Ray prints a line for each call whose actor is ended under it.
        calls = [stage.call for stage in self.stages.values() if stage.call is not None]
        if calls:
            ray.wait(calls, num_returns=len(calls), timeout=CALLS_WITHIN, fetch_local=False)
        super().close()

    # The thread.

    def _run(self) -> None:
        try:
            while not (self._stopping and self._all_stored()):
                self._look()
                calls = [stage.call for stage in self.stages.values() if stage.call is not None]
                if calls:
                    ray.wait(calls, timeout=LOOK_EVERY, fetch_local=False)
                else:
                    with self._changed:
                        self._changed.wait(LOOK_EVERY)
        except BaseException as error:
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _look(self) -> None:
        """Take what is ready and start what can be."""
        calls = {stage.call: stage for stage in self.stages.values() if stage.call is not None}
        ready = ray.wait(list(calls), num_returns=len(calls), timeout=0, fetch_local=False)[0] if calls else []
        with self._changed:
            for call in ready:
                calls[call].done()
            if self.stages["storing"].call is None and self._unstored and time.monotonic() >= self._store_again_at:
                self._store()
            if self._stopping:
                return
            for name, start in self._starts().items():
                if self.stages[name].call is None:
                    start()

    def _starts(self) -> dict[str, Callable[[], None]]:
        """What starts each stage but storing, where there is something to do, in the order in which they are looked at."""
        return {
            "answering": self._answer,
            "asking": self._ask,
            "fitting": self._fit,
            "exploring": self._explore,
            "checking": self._check,
        } | ({"granting": self._grant} if self.spending.watches else {})

    def _adopt_stored(self) -> None:
        """Count and fit to what the store holds: labels of before the run was killed, or those it was given."""
        self.answered = ray.get(self.store.__len__.remote())
        if self.answered:
            self._unfitted = [self._all_labels()]  # the trainer leaves out what it has

    def _all_labels(self) -> Any:
        """The reference of all comparisons that hold."""
        return self.store.load.remote()

    def _ask(self) -> None:
        """Have the pairs chosen that are due, as far as there is room for open questions."""
        people, count = self._to_ask()
        if count <= 0 or self._starved_at == self._advances:
            return
        reward = self._trainer_state and ray.put(self.publish())
        number = self._asked
        chosen, pairs = self.fragmenter.propose.options(num_returns=2).remote(count, number, reward)

        def finish() -> int:
            found: int = ray.get(chosen)
            if found:
                self._questions.append(Questions(number, pairs, found, people=people))
                self._asked += 1
            else:
                self._starved_at = self._advances  # no pair to be made: until PPO has made new clips
            return found

        self.stages["asking"].start(chosen, finish)

    def _to_ask(self) -> tuple[bool, int]:
        """Whether people are to be asked next, and how many pairs there is room for."""
        return False, min(self._due() - self.answered, self.preferences.max_open_questions) - self._open()

    def _answer(self) -> None:
        """Have the oldest questions answered: one after the other, or all at once by a teacher who needs no time."""
        questions = next((q for q in self._questions if q.answered < q.count and not q.people), None)
        if self.gatherer is None or questions is None or len(self._unstored) >= MOST_UNSTORED:
            return
        count = 1 if self.preferences.answer_seconds else questions.count - questions.answered
        part = slice(questions.answered, questions.answered + count)
        answers = self.gatherer.gather.remote(questions.pairs, questions.number, part)

        def finish() -> int:
            questions.answered += count
            self._unstored.append((questions, count, answers))
            return count

        self.stages["answering"].start(answers, finish)

    def _store(self) -> None:
        """Have the oldest answers stored."""
        questions, count, answers = self._unstored.popleft()
        committed = self.store.commit.remote(answers, annotator=self.preferences.teacher)
        stored = self.store.__len__.remote()

        def finish() -> int:
            questions.stored += count
            try:
                ray.get(committed)
            except LOST:
                self.lost_questions += count
            except OSError as error:  # a full disk, say: labels are worth waiting for
                questions.stored -= count
                self._unstored.appendleft((questions, count, answers))
                self._store_again_at = time.monotonic() + STORE_AGAIN_AFTER
                self.failed_commits += 1
                logger.error("Answers could not be stored and are kept until they can: %s", cause(error))
                return 0
            else:
                # Counted by the store: what was committed again, after a restart, counts once.
                self.answered = ray.get(stored)
                self.label_seconds = time.monotonic() - questions.asked_at
                self._take_stored(answers)
            if questions.stored == questions.count:
                self._questions.remove(questions)
            return count

        self.stages["storing"].start(stored, finish)

    def _take_stored(self, answers: Any) -> None:
        """These were stored, and can be fitted to."""
        self._unfitted.append(answers)

    def _fit(self) -> None:
        """Have a version made, where gradient steps are due and there are new labels."""
        due = 0
        if self.version == 0:
            if self.answered < self.preferences.first_fit_comparisons and self._answers_to_come():
                return
            # For labels that were there before the first clips, with the gradient steps of the rounds they stand for.
            due = rounds_covered(self.labels, self.answered)
            updates = self.reward_model.initial_updates + due * self.reward_model.updates
        else:
            due = math.floor(self._progress * self.rounds) - self._fits
            late = (
                self._progress == 1.0 and self.answered >= self._due()
            )  # the last labels came after the last round's fit
            if due <= 0 and not late:
                return
            updates = max(due, 1) * self.reward_model.updates
        if self.version == 0 and self._unfitted:
            self.say(FIRST_FIT)
        if not self._unfitted:
            if self._due() <= self.answered:
                # Rounds without labels make no version; the newest one waits for the next label.
                self._fits += max(0, due - 1)
            return
        labels = list(self._unfitted)
        refs = self.trainer.fit.options(num_returns=2).remote(updates, self.version + 1, *labels)

        def finish() -> int:
            try:
                fit = self._take_fit(*refs)
            except StateLostError:
                restored = self._restore_trainer()
                self.stages["fitting"].start(restored, lambda: int(bool(ray.get(restored))))
                return 0
            except LOST:
                self._unfitted = [self._all_labels()]
                return 0
            self._unfitted = self._unfitted[len(labels) :]
            if fit.gradient_steps == 0:  # everything was taken back, so that there is no version to be made
                return 0
            self._news = fit
            self._fits += due
            self._published_at = self._now
            self._changed.notify_all()
            return updates

        self.stages["fitting"].start(refs[0], finish)

    def _explore(self) -> None:
        if self._exploration is None:
            return
        steps = self.fragments.exploration_env_steps
        clips = self.collector.collect.remote(steps, self.rollouts, *self._exploration)

        def finish() -> int:
            self._exploration = None
            return steps

        self._hand_over("exploring", clips, finish)

    def _hand_over(self, stage: str, clips: Any, finish: Callable[[], int]) -> None:
        """Have the fragmenter take ``clips`` once they are made: one that waited for them would do nothing else meanwhile."""

        def take() -> int:
            added = self.fragmenter.add.remote(clips)

            def taken() -> int:
                with contextlib.suppress(*LOST):
                    ray.get(added)
                return finish()

            self.stages[stage].start(added, taken)
            return 0

        self.stages[stage].start(clips, take)

    def _check(self) -> None:
        """Look at what has arrived at the fragmenter, once per step of PPO."""
        if self._checked_at == self._advances:
            return
        self._checked_at = self._advances
        call = self.fragmenter.report.remote()

        def finish() -> int:
            self._arrived = self.check_report(ray.get(call))
            return 1

        self.stages["checking"].start(call, finish)

    def _grant(self) -> None:
        """Look at the ties among the newest answers, and say how many labels may be asked for: all that are due, or fewer."""
        now = math.floor(self._progress * self.rounds)
        if self._granted < self.preferences.comparisons:  # each grant is answered before the next one
            done = self.answered >= self._granted and not self._open() and self.answered < self._scheduled()
            if not done or (self.version and now == self._granted_at) or (not self.version and self._settled):
                return
        elif self.answered < self._ties_at[0] + PROBE:
            return
        call = self.store.ties.remote()

        def finish() -> int:
            answers, ties = ray.get(call)
            before, self._ties_at = self._ties_at, (answers, ties)
            self.spending.look(answers - before[0], ties - before[1])
            if self._first is not None and self.spending.tied:
                return 0  # the other first clips may tell more
            if self.version == 0 and self._wants_clips:
                self._gather_more()
                return 0
            asked = self.answered + self._open()
            granted = self.spending.grant(self._scheduled(), asked, self.rounds - now if self.version else None)
            held = self.spending.tied or self.spending.held_back
            self._granted = asked + granted if held else self.preferences.comparisons
            self._granted_at, self._settled = now, granted == 0
            return granted

        self.stages["granting"].start(call, finish)

    def _gather_more(self) -> None:
        added = self._more_first_clips()

        def finish() -> int:
            ray.get(added)
            return 0

        self.stages["granting"].start(added[0], finish)

    def _due(self) -> int:
        """Labels to have been asked for by now, in all: those due, as far as they are granted."""
        return min(self._scheduled(), self._granted)

    def _scheduled(self) -> int:
        """Labels due by now, in all."""
        of = self.preferences
        due = labels_due(of.comparisons, of.first_comparisons, of.schedule, self._progress, of.steepness)
        return max(due, of.first_fit_comparisons)  # which PPO waits for before it makes any progress

    def _open(self, people: bool | None = None) -> int:
        """Questions whose answers are not stored yet: all, or those that people are asked, or those they are not."""
        return sum(q.count - q.stored for q in self._questions if people in (None, q.people))

    def _answers_to_come(self) -> bool:
        """Before the first fit: whether there will be more answers without PPO going on."""
        return self._open() > 0 or (self._starved_at != self._advances and not self._settled)

    def _all_stored(self) -> bool:
        """Whether nothing is left to store, or nothing can be."""
        return self.stages["storing"].call is None and (not self._unstored or time.monotonic() < self._store_again_at)

    def _version_to_come(self) -> bool:
        """Whether a newer version of the reward model is to be expected without PPO going on."""
        asking = self._due() > self.answered + self._open() and self._starved_at != self._advances
        labels = asking or self._open() > 0 or bool(self._unfitted)
        due = math.floor(self._progress * self.rounds) > self._fits
        return self.stages["fitting"].call is not None or (due and labels)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure
