"""People: the human annotators of a run, their questions and the progress they see."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Mapping

from rlhf_ray.actors.gatherer import OpenQuestions
from rlhf_ray.actors.page_handle import PageHandle
from rlhf_ray.actors.ring_callbacks import RingCallbacks
from rlhf_ray.labelling.situation import OPEN_FOR, Ending, Situation
from rlhf_ray.labelling.waiting import Waiting
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.queries.schedule import LabelSchedule
from rlhf_ray.store.answers import Suspicions

STOPPED_WITHIN = 3.0
"""Seconds in which open pages are told that the run was stopped: those in the foreground ask every two seconds."""

PACE_OF = 20
"""Number of newest iterations of the agent used to estimate the pace of the next ones."""

OPEN_PER_PERSON = 8
"""Maximum number of open questions per person. Few, so that questions are about the agent's current behaviour."""


class People:
    """The human annotators at the page.

    Args:
        page: the page where they answer.
        schedule: decides when labels fall due.
        total_env_steps: step budget of the training.
        callbacks: told about once a second while the training waits for them.
        share: their share of the questions.
        limit: maximum number of open questions; None in the synchronous mode, where all questions of a round are open.
        annotators: their names.
    """

    def __init__(
        self,
        page: PageHandle,
        schedule: LabelSchedule,
        total_env_steps: int,
        callbacks: RingCallbacks,
        *,
        share: float,
        limit: int | None,
        annotators: tuple[str, ...],
    ):
        self.page, self.schedule, self.total_env_steps = page, schedule, total_env_steps
        if limit is not None:
            limit = min(limit, OPEN_PER_PERSON * max(1, len(page.links)))
        self.questions = OpenQuestions(
            page.actor, "people", share=share, limit=limit, annotators=annotators, sees_films=True, serve=page.serve
        )
        self._pace: deque[tuple[float, float]] = deque(maxlen=PACE_OF)
        """Time (seconds since 1970) and training progress (0 to 1) at recent iterations."""
        self._between: float | None = None
        """In the synchronous mode: seconds between the last answer of a round and the next question."""
        self._answered_at: float | None = None
        self.waiting_for = "the agent's first clips"
        """What the page waits for before the next questions, in words."""
        self.error_rates: Mapping[str, ErrorRate] = {}
        """Each annotator's error rate, by the newest fit."""
        self.gathered: float | None = None
        """Share of the first clips that are made, while the page waits for these."""
        self._waiting = Waiting(callbacks.on_wait)
        self._ending: Ending | None = None
        self._heard = 0, time.monotonic()
        """The page's number of changes, and when it last changed or no question was open."""
        self._unanswered = 0.0

    def look(self) -> None:
        """Measure for how long nobody has answered. Called about once a second."""
        now, changes = time.monotonic(), self.questions.changes
        if not self.questions.open or changes != self._heard[0]:
            self._heard = changes, now
        self._unanswered = max(self._unanswered, now - self._heard[1])

    def waiting(self, answered: int, wanted: int) -> None:
        """Note that the training waits for ``wanted`` answers, of which ``answered`` are given; `end_wait` follows."""
        self._waiting.look(answered, wanted, self.questions.pages)

    def end_wait(self) -> None:
        """Note that the training waits no longer."""
        self._waiting.end()

    def metrics(self) -> dict[str, float]:
        """Return `unanswered_seconds` since the last call."""
        longest, self._unanswered = self._unanswered, 0.0
        return {"unanswered_seconds": longest}

    @property
    def left(self) -> bool:
        """Whether they were told that labelling is over."""
        return self._ending is not None

    def farewell(
        self,
        ending: Ending,
        stop: Callable[[], bool] = lambda: False,
        env_steps: int | None = None,
    ) -> None:
        """Tell open pages that labelling is over, once. Wait until each knows: up to a minute, or shorter if the run was stopped.

        Args:
            ending: why.
            stop: polled; True ends the wait.
            env_steps: the training's environment steps at its end; None: as told last.
        """
        if self.left:
            return
        self._ending = ending
        within = STOPPED_WITHIN if ending == "stopped" else OPEN_FOR
        self.page.farewell(ending, within, stop, env_steps)

    def advanced(self, progress: float) -> None:
        """Record the training's progress, 0 to 1."""
        self._pace.append((time.time(), progress))

    def tell(self, env_steps: int, version: int, answered: int) -> None:
        """Send the training's progress to the page if it has changed."""
        preferences = self.schedule.preferences
        self.page.tell(
            Situation(
                preferences.comparisons,
                env_steps,
                self.total_env_steps,
                waiting_for=self.waiting_for,
                gathered=self.gathered,
                first_labels=None if version else self.schedule.first_fit,
                next_question=self._next_question(answered) if version else None,
                ending=self._ending,
                error_rates=self.error_rates,
            )
        )

    def tell_while_training(self, env_steps: int, version: int, answered: int, *, gathered: float | None) -> None:
        """Send the training's progress to the page, and what it waits for before the next questions.

        Args:
            env_steps: environment steps so far.
            version: version of the reward model.
            answered: number of labels.
            gathered: share of the first clips that are made, while these are being made; else None.
        """
        self.gathered = gathered
        if gathered is None and version:
            self.waiting_for = "the training to continue (questions are spread over it)"
        elif gathered is None and answered >= self.schedule.first_fit:
            self.waiting_for = "the reward model to learn from these first answers"
        else:
            self.waiting_for = "the agent's first clips"
        self.tell(env_steps, version, answered)

    def suspect(self, suspicions: Suspicions) -> None:
        """Show people the answers that the newest fit finds more likely wrong than right."""
        self.page.suspect(suspicions)

    def asks(self) -> None:
        """Note that a round starts and waits for answers."""
        self._between = None if self._answered_at is None else time.time() - self._answered_at

    def has_answered(self, env_steps: int, version: int, answered: int) -> None:
        """Note that all questions of a round are answered."""
        self._answered_at = time.time()
        self.waiting_for = "the agent to learn from this round"
        self.tell(env_steps, version, answered)

    def _next_question(self, answered: int) -> float | None:
        """Estimate the time of the next question, in seconds since 1970; None if unknown."""
        preferences = self.schedule.preferences
        if preferences.mode == "synchronous":
            return None if self._between is None or self._answered_at is None else self._answered_at + self._between
        label = answered + self.questions.open + 1
        if self.questions.share < 1.0:
            label = math.ceil(label / self.questions.share)
        pace = list(self._pace)
        if label > preferences.comparisons or len(pace) < 2 or pace[-1][1] <= pace[0][1]:
            return None
        (began, first), (ended, last) = pace[0], pace[-1]
        iterations = len(pace) - 1
        # Questions come between two iterations of the agent, at the earliest after the next one.
        ahead = max(1, math.ceil((self.schedule.progress_due(label) - last) * iterations / (last - first)))
        return ended + ahead * (ended - began) / iterations
