"""People: the page they answer at, and what they are told about the training."""

from __future__ import annotations

import math
import time
from collections import deque

from rlhf_ray.actors.askings import Askings
from rlhf_ray.actors.page_handle import PageHandle
from rlhf_ray.labelling.desk import Situation
from rlhf_ray.queries.schedule import LabelSchedule

PACE_OF = 20
"""Newest iterations of the agent's training whose pace is taken for that of the next ones."""

OPEN_PER_PERSON = 8
"""Questions open at a time for each person, of which the page holds some: later ones are about what the agent does by then."""


class People:
    """Who is asked at the page.

    Args:
        page: where they answer.
        schedule: when labels fall due.
        total_env_steps: of the training.
        share: of the questions that they are asked.
        most: questions open at a time, at most; in the synchronous ring all of a round are.
        annotators: their names.
    """

    def __init__(
        self,
        page: PageHandle,
        schedule: LabelSchedule,
        total_env_steps: int,
        *,
        share: float,
        most: int | None,
        annotators: tuple[str, ...],
    ):
        self.page, self.schedule, self.total_env_steps = page, schedule, total_env_steps
        limit = most if most is None else min(most, OPEN_PER_PERSON * max(1, len(page.links)))
        self.askings = Askings(page.actor, "people", share=share, most=limit, annotators=annotators, serve=page.serve)
        self._pace: deque[tuple[float, float]] = deque(maxlen=PACE_OF)
        """When the training was how far: seconds since 1970, and 0 to 1."""
        self._between: float | None = None
        """Seconds between the answers to the last round and its questions, in the synchronous ring."""
        self._answered_at: float | None = None
        self.waiting_for = "the agent's first clips"
        """What has to happen before there are further questions, in words."""

    def advanced(self, progress: float) -> None:
        """The training is so far, 0 to 1."""
        self._pace.append((time.time(), progress))

    def tell(self, env_steps: int, version: int, answered: int) -> None:
        """Tell the page how the training is doing, where that has changed."""
        of = self.schedule.preferences
        self.page.tell(
            Situation(
                of.comparisons,
                env_steps,
                self.total_env_steps,
                waiting_for=self.waiting_for,
                first_labels=None if version else self.schedule.first_fit,
                next_question=self._next_question(answered) if version else None,
            )
        )

    def asks(self) -> None:
        """A round begins, which waits for the answers."""
        self._between = None if self._answered_at is None else time.time() - self._answered_at

    def answered(self, env_steps: int, version: int, answered: int) -> None:
        """They have answered all questions of a round."""
        self._answered_at = time.time()
        self.waiting_for = "the agent to learn from this round"
        self.tell(env_steps, version, answered)

    def _next_question(self, answered: int) -> float | None:
        """When people are likely to be asked next, in seconds since 1970; None where that is not known."""
        of = self.schedule.preferences
        if of.mode == "synchronous":
            return None if self._between is None or self._answered_at is None else self._answered_at + self._between
        label = answered + self.askings.open + 1
        if self.askings.share < 1.0:
            label = math.ceil(label / self.askings.share)
        pace = list(self._pace)
        if label > of.comparisons or len(pace) < 2 or pace[-1][1] <= pace[0][1]:
            return None
        (began, first), (ended, last) = pace[0], pace[-1]
        iterations = len(pace) - 1
        # Questions come between two iterations of the agent, and after the next one at the earliest.
        ahead = max(1, math.ceil((self.schedule.progress_due(label) - last) * iterations / (last - first)))
        return ended + ahead * (ended - began) / iterations
