"""The training's situation as annotators see it: progress, why nothing is to label now or any more; and which pages know that."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from rlhf_ray.labelling.questions import Blocked, QuestionQueue
from rlhf_ray.labelling.texts import IN_ENGLISH, Texts
from rlhf_ray.measure.error_rates import ErrorRate

Ending = Literal["complete", "over", "stopped"]
"""Why no more questions come: all labels are in, the training is over, or the run was stopped and may continue later."""

ENDINGS: dict[Ending, str] = {
    "complete": "All labels are in: nothing is left to label. Thank you! You can close this page.",
    "over": "The training is over and needs no more answers. Thank you! You can close this page.",
    "stopped": "The run was stopped, and your answers are saved. This page works again once the run continues.",
}

BLOCKED: dict[Blocked | None, str] = {
    "others": "All open pairs are with other annotators or already answered by you. More will come.",
    "saving": "Your answers are being saved. More pairs will come.",
    "answered": "You have answered all open pairs; some wait for someone else's second opinion. More will come.",
}


OPEN_FOR = 75.0
"""Seconds without a request after which a page counts as closed. Browsers let a page in the background run once a minute."""


@dataclass(frozen=True)
class Situation:
    """Training progress as shown to annotators. None for values that don't exist, as without training.

    Attributes:
        wanted: total number of labels.
        env_steps, total_env_steps: environment steps so far and in total.
        ending: why no more questions will come; None as long as some may.
        waiting_for: what the next questions wait for, as text.
        gathered: share of the first clips that are made, while these are waited for.
        first_labels: number of labels after which training starts; None once it has started.
        next_question: estimated time of the next question, in seconds since 1970; None if unknown.
        error_rates: each annotator's error rate, by the newest fit.
    """

    wanted: int | None = None
    env_steps: int | None = None
    total_env_steps: int | None = None
    ending: Ending | None = None
    waiting_for: str = "the agent's first clips"
    gathered: float | None = None
    first_labels: int | None = None
    next_question: float | None = None
    error_rates: Mapping[str, ErrorRate] = field(default_factory=dict)

    def over(self, labels: int, texts: Texts = IN_ENGLISH) -> str | None:
        """What pages say if no more questions come, with ``labels`` in the store; None if some may come."""
        if self.ending is not None:
            return texts(ENDINGS[self.ending])
        if self.wanted is None or labels < self.wanted:
            return None
        if self.env_steps is None:
            return texts(ENDINGS["complete"])
        return texts(
            "All {number} labels are in, and training continues with them. Thank you! You can close this page.",
            number=self.wanted,
        )


def about(seconds: float, texts: Texts = IN_ENGLISH) -> str:
    """Format an estimated duration, such as "about 2 min"."""
    if seconds < 15:
        return texts("a few seconds")
    if seconds < 50:
        return texts("about {number} s", number=10 * round(seconds / 10))
    minutes = round(seconds / 60)
    if minutes < 90:
        return texts("about {number} min", number=minutes)
    return texts("about {number} h", number=round(minutes / 60))


def why_nothing(queue: QuestionQueue, annotator: str, situation: Situation, texts: Texts = IN_ENGLISH) -> str:
    """Say why ``annotator`` gets no question now, and when the next may come."""
    if queue.open(annotator):
        return texts(
            "The remaining pairs are on another page of yours, or your answers are being saved. "
            "If a page crashed, reload this one."
        )
    reason = BLOCKED.get(queue.blocked(annotator))
    if reason is None:
        what = texts(situation.waiting_for)
        if situation.gathered is not None:
            what = texts("{what} ({share} done)", what=what, share=f"{situation.gathered:.0%}")
        reason = texts("Nothing to label right now: waiting for {what}.", what=what)
    else:
        reason = texts(reason)
    seconds = 0.0 if situation.next_question is None else situation.next_question - time.time()
    # Drop an estimate once it has passed.
    return f"{reason} {texts('Next pair in {time}.', time=about(seconds, texts))}" if seconds > 0 else reason


@dataclass
class _Page:
    heard: float
    """Time of its last request."""
    told: bool = False
    """Whether it shows that labelling is over."""
    saw: str = ""
    """Id of the newest film of an episode that it fetched."""


class OpenPages:
    """Pages by the ids that they send, so that the server can stay until each has shown that labelling is over."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._pages: dict[str, _Page] = {}
        self.episode = ""
        """Id of the film of the agent's latest episode."""

    def heard(self, page: str | None, *, told: bool) -> None:
        """Note a request of ``page``; ``told``: the response says that labelling is over. Clients without an id don't count."""
        if page is not None:
            known = self._pages.setdefault(page, _Page(0.0))
            known.heard, known.told = self._clock(), told

    def saw(self, page: str | None, film: str) -> None:
        """Note that ``page`` fetched the ``film`` of an episode."""
        if page in self._pages:
            self._pages[page].saw = film

    def closed(self, page: str | None) -> None:
        """Note that ``page`` was closed."""
        self._pages.pop(page or "", None)

    def _open(self) -> list[_Page]:
        now = self._clock()
        self._pages = {name: page for name, page in self._pages.items() if now - page.heard <= OPEN_FOR}
        return list(self._pages.values())

    @property
    def open(self) -> int:
        """Number of open pages."""
        return len(self._open())

    @property
    def uninformed(self) -> int:
        """Number of open pages that don't know yet that labelling is over, or lack the latest episode."""
        return sum(not page.told or page.saw != self.episode for page in self._open())
