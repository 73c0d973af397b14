"""The asynchronous ring with people in it: they are filmed for and asked, and what they say is read from the store."""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import ray
from ray.actor import ActorHandle

from actors.asynchronous import STORE_AGAIN_AFTER, AsynchronousPipeline
from actors.first_clips import FirstClips, Part
from actors.pipeline import EPISODE_EVERY, FEWEST_FILMS, OPEN_PER_PERSON
from actors.questions import LOST, Questions
from actors.rollout_collector import PolicyFactory
from actors.stages import Stage
from rlhf_ray.failures import cause
from rlhf_ray.schedules import progress_due

logger = logging.getLogger(__name__)

PACE_OF = 20
"""Iterations of PPO whose pace is taken for that of the next ones."""


class PeoplesPipeline(AsynchronousPipeline):
    """Asks people, or people and a scripted teacher.

    The page stores what people say before it acknowledges it. So the ring need not be told: it reads in the store what has
    changed there, be it an answer, one that was taken back, or what an annotator's word weighs.
    """

    def __init__(self, **arguments: Any):
        super().__init__(**arguments)
        self._filming: tuple[int, int, PolicyFactory] | None = None
        self._read, self._to_read = 0, False
        """Up to which event the store was read, and whether there is more."""
        self._page_changes = 0
        self._people_done = 0
        """Questions that people have answered."""
        self._asked_since_film = 0
        """Questions that the page was given since clips were filmed last."""
        self._pace: deque[tuple[float, float]] = deque(maxlen=PACE_OF)
        """When PPO was how far (`advance`), of late: seconds since 1970, and 0 to 1."""
        self._labels_before = 0
        """Labels that were there before the first clips."""

    def state(self) -> dict[str, Any]:
        """See `Pipeline.state`."""
        return super().state() | {"people_done": self._people_done}

    def load_state(self, state: dict[str, Any]) -> None:
        """See `Pipeline.load_state`."""
        self._people_done = state["people_done"]
        super().load_state(state)

    def advance(self, progress: float, env_steps: int, stop: Callable[[], bool] = lambda: False) -> None:
        """See `AsynchronousPipeline.advance`."""
        with self._changed:
            self._pace.append((time.time(), progress))
        super().advance(progress, env_steps, stop)

    def film(self, round_number: int, policy_version: int, make_policy: PolicyFactory) -> None:
        """Have a policy filmed for people, where they have use for it: drawing takes time that the training would have.

        They have for clips when some of the last ones were asked about, and every so often for an episode. The steps count from
        now on.
        """
        with self._changed:
            episode = time.monotonic() - self._filmed_at >= EPISODE_EVERY
            clips = not self.images and self._asked_since_film >= FEWEST_FILMS // 2
            if self._filming is None and (episode or clips):
                self._filming = (round_number, policy_version, make_policy)
                self._asked_since_film = 0
                self.env_steps += self.fragments.filmed_env_steps

    def _collect_first(self, env_steps: int) -> None:
        """Have the first clips made by the stages, part by part; the first pair is asked about as soon as there are two."""
        self._first = self._first_parts(env_steps)
        self.env_steps += env_steps

    def _starts(self) -> dict[str, Callable[[], None]]:
        return super()._starts() | {"filming": self._film_next, "people": self._people, "reading": self._read_store}

    def _waiting(self) -> dict[str, int]:
        return super()._waiting() | {"people": self._open(people=True), "filming": int(self._filming is not None)}

    def _look(self) -> None:
        super()._look()
        with self._changed:
            first = None if self._stopping else self._first
            for i, helper in enumerate(first.helpers if first is not None else ()):
                if self.stages.setdefault(f"helper{i}", Stage()).call is None:
                    self._make_part(f"helper{i}", helper)
        self._tell()

    def _make_part(self, stage: str, collector: ActorHandle[Any]) -> None:
        """Have ``collector`` make the next part of the first clips, if there is one left, and the fragmenter take it."""
        first = self._first
        if first is None or not first.left:
            return
        part, clips = self._start_part(first, collector)

        def take() -> int:
            added, report = self.fragmenter.add.remote(clips), self.fragmenter.report.remote()

            def taken() -> int:
                try:
                    ray.get(added)
                except LOST:
                    first.left.append(part)
                    return 0
                self._took_part(first, part, clips, ray.get(report))
                return part.env_steps

            self.stages[stage].start(report, taken)
            return 0

        self.stages[stage].start(clips, take)

    def _took_part(self, first: FirstClips, part: Part, clips: Any, report: dict[str, Any]) -> None:
        super()._took_part(first, part, clips, report)
        self._starved_at = -1  # there are new pairs to ask about
        if first.done:
            self._first = None

    def _adopt_stored(self) -> None:
        self._to_read = True
        self.answered = self._labels_before = ray.get(self.store.__len__.remote())

    def _all_labels(self) -> Any:
        return self.store.since.remote(0)

    def _take_stored(self, answers: Any) -> None:
        self._to_read = True

    def _to_ask(self) -> tuple[bool, int]:
        """Whether people are to be asked next, and how many pairs."""
        of, due = self.preferences, self._due()
        due = self._labels_before + self._questions_now(due - self._labels_before)
        for_people = round(of.people_share * due)
        if of.people_share == 1.0:
            missing = {True: due - self.answered}
        else:
            missing = {
                True: for_people - self._people_done,
                False: due - for_people - (self.answered - self._people_done),
            }
        limits = {False: of.max_open_questions, True: min(of.max_open_questions, OPEN_PER_PERSON * len(self.links))}
        for people, count in missing.items():
            count = min(count, limits[people]) - self._open(people)
            if count > 0:
                return people, count
        return False, 0

    def _questions_now(self, wanted: int) -> int:
        """How many of ``wanted`` questions to have asked by now: while the first clips are made, so many as there are clips for."""
        return wanted if self._first is None else self._first.questions(wanted)

    def _film_next(self) -> None:
        """Have the next of the first clips made; else the policy filmed that waits for it, and the page told."""
        if self._first is not None:
            self._make_part("filming", self.collector)
            return
        if self._filming is None:
            return
        round_number, policy_version, make_policy = self._filming
        clips, shown = self._film(
            self.fragments.filmed_env_steps, self.films_per_round, round_number, policy_version, make_policy, self._now
        )
        if shown is not None and self.page_handle is not None:
            self.page_handle.show(shown)

        def finish() -> int:
            self._filming = None
            return 1

        self._hand_over("filming", clips, finish)

    def _people(self) -> None:
        """Give the page questions that it has not, or wait for what people say to those it has."""
        assert self.page is not None
        asked = [q for q in self._questions if q.people]
        new = next((q for q in asked if not q.posted), None)
        if new is None:
            self._listen([q.number for q in asked])
        elif time.monotonic() >= self._store_again_at:
            self._post(new)

    def _post(self, questions: Questions) -> None:
        assert self.page is not None
        posted = self.page.ask.remote(questions.number, questions.pairs)

        def finish() -> int:
            try:
                ray.get(posted)
                questions.posted = True
                self._asked_since_film += questions.count
            except LOST:
                self.lost_questions += questions.count
                self._questions.remove(questions)
            except OSError as error:
                self._store_again_at = time.monotonic() + STORE_AGAIN_AFTER
                self.failed_commits += 1
                logger.error(
                    "Clips for people could not be stored; they are asked when it is possible: %s", cause(error)
                )
            return 0

        self.stages["people"].start(posted, finish)

    def _listen(self, numbers: list[int]) -> None:
        assert self.page is not None
        call = self.page.wait.remote(numbers, self._page_changes)

        def finish() -> int:
            progress = ray.get(call)
            if not progress.serving:
                self._serve_again()
            self._to_read |= progress.changes != self._page_changes
            self._page_changes = progress.changes
            before = self._people_done
            for q in [q for q in self._questions if q.people]:
                q.posted = q.posted and q.number not in progress.unknown
                if q.number in progress.done:
                    if progress.done[q.number] > q.answered:
                        self.label_seconds = time.monotonic() - q.asked_at
                    self._people_done += progress.done[q.number] - q.answered
                    q.answered = q.stored = progress.done[q.number]
                if q.stored == q.count:
                    self._questions.remove(q)
            return max(0, self._people_done - before)

        self.stages["people"].start(call, finish)

    def _serve_again(self) -> None:
        """Bring the page back, which was restarted."""
        assert self.page_handle is not None
        started = self.page_handle.serve()

        def finish() -> int:
            assert self.page_handle is not None
            if not self.page_handle.serves(started):
                self._serve_again()
            return 0

        self.stages["people"].start(started, finish)

    def _answers_to_come(self) -> bool:
        return self._first is not None or super()._answers_to_come()

    def _read_store(self) -> None:
        """Count and fit to what is new in the store."""
        if not self._to_read:
            return
        self._to_read = False
        call = self.store.position.remote()

        def finish() -> int:
            last, self.answered = ray.get(call)
            self._unfitted.append(self.store.since.remote(self._read))
            new, self._read = last - self._read, last
            return int(new)

        self.stages["reading"].start(call, finish)

    def _tell(self) -> None:
        """Tell the page how the training is doing, where that has changed."""
        assert self.page_handle is not None
        now = self._now
        if self._first is not None:
            waiting_for, now = self._first.waiting_for, self._first.env_steps
        elif self.version:
            waiting_for = "the training to go on, over which the questions are spread"
        elif self.answered < self.preferences.first_fit_comparisons:
            waiting_for = "the agent's first clips"
        else:
            waiting_for = "the reward to be learned from these first answers"
        self.page_handle.tell(self._situation(now, waiting_for, next_question=self._next_question()))

    def _next_question(self) -> float | None:
        """When people are likely to be asked next, at PPO's pace of late (seconds since 1970); None where that is not known."""
        of = self.preferences
        with self._changed:
            asked, pace = self._open(people=True), list(self._pace)
            # The first label whose falling due makes `_to_ask` ask people.
            if of.people_share == 1.0:
                label = self.answered + asked + 1
            else:
                label = math.ceil((self._people_done + asked + 0.5) / of.people_share)
        if self.version == 0 or label > of.comparisons or len(pace) < 2 or pace[-1][1] <= pace[0][1]:
            return None
        (began, first), (ended, last) = pace[0], pace[-1]
        iterations = len(pace) - 1
        due = progress_due(of.comparisons, of.first_comparisons, of.schedule, label, of.steepness)
        # Questions come between two iterations of PPO, and after the next one at the earliest.
        ahead = max(1, math.ceil((due - last) * iterations / (last - first)))
        return ended + ahead * (ended - began) / iterations
