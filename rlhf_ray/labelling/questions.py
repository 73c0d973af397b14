"""The question queue: which annotator gets which pair, when, and on which side; leases, second opinions, catch pairs and undo."""

from __future__ import annotations

import math
import random
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from rlhf_ray.data.answers import AnswerKind, answer_of
from rlhf_ray.data.comparisons import pair_id, stable_uniform
from rlhf_ray.settings import LabellingSettings

UNDOABLE = 50
"""Number of latest answers per annotator that can be undone."""

ACTIVE = 600.0
"""Seconds without a request after which an annotator counts as gone: no question waits for their second opinion."""

QUIET = 5.0
"""Seconds without a request after which a page counts as gone; an open page sends one every two seconds."""

CATCH_AFTER = 8
"""Minimum number of answers before an annotator's first catch pair, and between a pair and its repetition."""

Catch = Literal["same", "repeat"]


@dataclass(frozen=True)
class Shown:
    """A pair as shown to one annotator.

    Attributes:
        left, right: the clips' ids, in the pair's own order.
        swapped: whether the left one is shown on the right.
        catch: the kind of catch pair; None for a normal question. ``same``: a clip beside itself. ``repeat``: a pair the
            annotator has already decided, with swapped sides. (Stores of earlier versions have others.)
        expected: for a catch pair, the expected preference for the left clip.
        repeats: for ``repeat``, the event id of the first answer.
        overlap: whether this asks for a second opinion.
    """

    left: str
    right: str
    swapped: bool
    catch: Catch | None = None
    expected: float | None = None
    repeats: str | None = None
    overlap: bool = False

    @property
    def key(self) -> str:
        """The pair's id."""
        return pair_id(self.left, self.right)

    @property
    def lease_key(self) -> str:
        """What a page holds: the question, by the pair's id; or a catch pair, which is no question, also if its pair is one."""
        return self.key if self.catch is None else f"{self.catch} {self.key}"

    def preference(self, answer: str) -> float | None:
        """Convert an answer by screen side into a preference for the pair's left clip; None without a preference."""
        return answer_of(answer).left_preference(self.swapped)


@dataclass
class Hold:
    """That a page shows a pair."""

    until: float
    """In seconds of the queue's clock."""
    page: str | None
    """Id of the page that shows the pair; None if the client sends none."""


@dataclass
class StoredAnswer:
    """An answer that its annotator may take back."""

    event: str
    """The event of the annotator's own answer, which their page knows."""
    stands: str
    """The event that stands for it: its own, or that of the owner's second look."""
    shown: Shown
    answer: str
    at: float
    """When it was given, in seconds of the queue's clock."""


@dataclass
class AskedPair:
    """A question: a pair that one or two annotators are asked about."""

    key: str
    left: str
    right: str
    two: bool
    """Whether to ask a second annotator, if there is one."""
    said: dict[str, tuple[str, AnswerKind]] = field(default_factory=dict)
    """Annotator and answer of each event that was not taken back."""
    leases: dict[str, Hold] = field(default_factory=dict)
    """The leases, by annotator."""

    @property
    def answered(self) -> set[str]:
        """Who has answered; a skipped pair may be shown again."""
        return {who for who, kind in self.said.values() if not kind.returns}

    @property
    def lacks(self) -> int:
        """Number of further annotators whose answers are wanted."""
        if any(kind.broken for _, kind in self.said.values()):
            return 0
        return max(0, 1 + self.two - len(self.answered))

    def skipped(self, annotator: str) -> int:
        """How often ``annotator`` has skipped it."""
        return sum(who == annotator and kind.returns for who, kind in self.said.values())

    def holders(self, now: float) -> set[str]:
        """Who holds it."""
        return {name for name, lease in self.leases.items() if lease.until > now}


Blocked = Literal["others", "saving", "answered"]
"""Why an annotator can't get any of the open questions: on others' screens, or their own answer is being stored, or is stored and a
second opinion is wanted."""


class QuestionQueue:
    """Hands out questions, each to one annotator at a time, oldest first. Only sides and catch pairs are random (``seed``)."""

    def __init__(
        self, settings: LabellingSettings, seed: int | None = None, clock: Callable[[], float] = time.monotonic
    ):
        self.lease_seconds = settings.lease_seconds
        self._settings = settings
        self._random = random.Random(seed)
        self._clock = clock
        self._questions: dict[str, AskedPair] = {}
        self._numbers: dict[int, list[str]] = {}
        self._seen: dict[str, float] = {}
        self._pages: dict[tuple[str, str], tuple[float, float]] = {}
        """First and last time of a request, by annotator and page."""
        self._answers: dict[str, deque[StoredAnswer]] = {}
        """Per annotator: the latest answers that were not undone."""
        self._totals = Counter[str]()
        """Number of answers that were not undone, by annotator."""
        self._since_catch: dict[str, int] = {}
        self._under_way: set[tuple[str, str]] = set()
        """(annotator, `Shown.lease_key`) of answers received but not stored yet."""
        self._apart: dict[str, AskedPair] = {}
        """Answered questions that were not added: after a restart, answers arrive before their pairs. Nobody gets them."""

    @property
    def numbers(self) -> set[int]:
        """The rounds added so far."""
        return set(self._numbers)

    def add(self, number: int, pairs: Iterable[tuple[str, str]]) -> None:
        """Add the pairs (ids of the left and the right clip) of round ``number``. Idempotent per round."""
        if number in self._numbers:
            return
        self._numbers[number] = []
        for left, right in pairs:
            question = self._asked(left, right)
            self._questions[question.key] = question
            self._apart.pop(question.key, None)
            self._numbers[number].append(question.key)

    def next(self, annotator: str, count: int, holding: Sequence[str] = (), page: str | None = None) -> list[Shown]:
        """Hold up to ``count`` more pairs to ``annotator`` on this ``page``; renews those in ``holding`` (`Shown.lease_key`).

        Annotators never get a pair that they already hold, on any of their pages, or whose answer is being stored. Pairs of a
        page that is gone (its browser crashed, for example) move to the page they open next.
        """
        now = self._clock()
        self.renew(annotator, holding, page)
        shown: list[Shown] = []
        while len(shown) < count:
            # What is leased is no longer free, and one answer or more lies between two catch pairs.
            one = self._catch(annotator, holding) or self._question(annotator, now, page)
            if one is None:
                break
            shown.append(one)
        return shown

    def renew(self, annotator: str, keys: Iterable[str], page: str | None = None) -> list[str]:
        """Extend the leases of ``annotator`` on this ``page`` to these pairs (`Shown.lease_key`), if they hold or could get them.

        Returns:
            The pairs this page has lost: already answered, or shown on another page of theirs.
        """
        now = self._clock()
        self._seen[annotator] = now
        self._hear(annotator, page, now)
        done = []
        for key in keys:
            question = self._questions.get(key)
            if question is None:
                continue
            if self._elsewhere(question, annotator, page, now):
                done.append(key)
            elif self._open_for(question, annotator, now):
                question.leases[annotator] = Hold(now + self.lease_seconds, page)
            elif (annotator, key) in self._under_way or annotator in question.answered:
                done.append(key)
        return done

    def release(self, annotator: str, keys: Iterable[str]) -> None:
        """Release the leases of ``annotator`` on these pairs."""
        for key in keys:
            if key in self._questions:
                self._questions[key].leases.pop(annotator, None)

    def answering(self, annotator: str, key: str) -> None:
        """The answer of ``annotator`` to this pair (`Shown.lease_key`) is being stored; `answered` or `not_stored` follows."""
        self._under_way.add((annotator, key))

    def not_stored(self, annotator: str, key: str) -> None:
        """The answer could not be stored. The page sends it again, so the lease is renewed."""
        self._under_way.discard((annotator, key))
        lease = self._questions[key].leases.get(annotator) if key in self._questions else None
        self.renew(annotator, [key], lease.page if lease else None)

    def stored_before(self, annotator: str, key: str) -> None:
        """The answer was stored earlier and has come again."""
        self._under_way.discard((annotator, key))

    def answered(self, annotator: str, shown: Shown, answer: str, event: str, age: float = 0.0) -> None:
        """The answer of ``annotator`` is stored. Counts even if the lease has expired or the pair is not in the queue yet.

        ``age``: how long ago they answered, in seconds; for answers from before a restart.
        """
        self._under_way.discard((annotator, shown.lease_key))
        at = self._clock() - age
        self._seen[annotator] = max(at, self._seen.get(annotator, -math.inf))
        answers = self._answers.setdefault(annotator, deque(maxlen=UNDOABLE))
        if any(event == known.event for known in answers):
            return
        answers.append(StoredAnswer(event, event, shown, answer, at))
        self._totals[annotator] += 1
        if shown.catch is not None:
            self._since_catch[annotator] = 0
            return
        self._since_catch[annotator] = self._since_catch.get(annotator, 0) + 1
        question = self._asked(shown.left, shown.right)
        if shown.key not in self._questions:
            self._apart[shown.key] = question
        question.leases.pop(annotator, None)
        question.said[event] = annotator, answer_of(answer)

    def latest(self, annotator: str, event: str | None = None) -> tuple[str, Shown] | None:
        """The answer of ``annotator`` to undo: their latest, or that of their ``event``; None if there is none.

        Returns:
            The event that stands for it, which `undone` takes back, and its pair.
        """
        for one in reversed(self._answers.get(annotator, ())):
            if event in (None, one.event):
                return one.stands, one.shown
        return None

    def undone(self, annotator: str, event: str, page: str | None = None) -> Shown | None:
        """Undo the answer of ``annotator`` for which ``event`` stands; returns the pair to show again on this ``page``."""
        shown = self.taken_back(annotator, event)
        if shown is not None and shown.catch is None:
            question = self._asked(shown.left, shown.right)
            self._questions[shown.key] = question
            self._apart.pop(shown.key, None)
            question.leases[annotator] = Hold(self._clock() + self.lease_seconds, page)
        return shown

    def taken_back(self, annotator: str, event: str) -> Shown | None:
        """Undo the answer of ``annotator`` for which ``event`` stands; returns its pair."""
        for one in self._answers.get(annotator, ()):
            if one.stands != event:
                continue
            self._answers[annotator].remove(one)
            self._totals[annotator] -= 1
            if one.shown.catch is None:
                self._asked(one.shown.left, one.shown.right).said.pop(one.event, None)
            return one.shown
        return None

    def replaced(self, annotator: str, event: str, by: str) -> None:
        """Event ``by`` replaces ``event`` as what stands for an answer of ``annotator``."""
        for one in self._answers.get(annotator, ()):
            if one.stands == event:
                one.stands = by

    def total(self, annotator: str) -> int:
        """Number of answers of ``annotator``."""
        return self._totals[annotator]

    def per_minute(self, annotator: str) -> int:
        """Number of answers of ``annotator`` within the last minute, up to `UNDOABLE`."""
        now = self._clock()
        return sum(now - one.at < 60 for one in self._answers.get(annotator, ()))

    def left(self, number: int | None = None) -> int:
        """Number of unanswered questions; with ``number``, only those of this round."""
        keys = self._questions if number is None else self._numbers[number]
        return sum(not self._questions[key].answered for key in keys)

    def open(self, annotator: str | None = None) -> int:
        """Number of questions whose answers may still come; with ``annotator``, of those that they hold or could get now."""
        now = self._clock()
        return sum(
            self._open(question, now) if annotator is None else self._open_for(question, annotator, now)
            for question in self._questions.values()
        )

    def blocked(self, annotator: str) -> Blocked | None:
        """The reason why ``annotator`` gets no open question, of several the first in `Blocked`; None if there is none."""
        now, reasons = self._clock(), set[Blocked]()
        for question in self._questions.values():
            if self._open(question, now) and not self._open_for(question, annotator, now):
                saving = (annotator, question.key) in self._under_way
                reasons.add("saving" if saving else "answered" if annotator in question.answered else "others")
        return next((reason for reason in get_args(Blocked) if reason in reasons), None)

    def ready(self, annotator: str) -> bool:
        """Whether `next` has another question for ``annotator``."""
        now = self._clock()
        return any(self._may_ask(question, annotator, now) for question in self._questions.values())

    def _asked(self, left: str, right: str) -> AskedPair:
        """The question about a pair; a new one if there is none."""
        key = pair_id(left, right)
        two = bool(stable_uniform([key], "overlap")[0] < self._settings.overlap_share)
        return self._questions.get(key) or self._apart.get(key) or AskedPair(key, left, right, two)

    def _open_for(self, question: AskedPair, annotator: str, now: float) -> bool:
        """Whether ``annotator`` holds the question or could get it: more answers are wanted than others may give."""
        if (annotator, question.key) in self._under_way:
            return False
        holders = question.holders(now)
        return annotator in holders or (annotator not in question.answered and len(holders) < question.lacks)

    def _open(self, question: AskedPair, now: float) -> bool:
        """Whether an answer may still come: the first one always, a second opinion from somebody who is there."""
        answered = question.answered
        if not answered or question.holders(now):
            return True
        there = (name for name, seen in self._seen.items() if now - seen < ACTIVE)
        return question.lacks > 0 and any(name not in answered for name in there)

    def _may_ask(self, question: AskedPair, annotator: str, now: float, page: str | None = None) -> bool:
        """Whether ``annotator`` can get the question on this ``page`` and does not hold it yet."""
        lease = question.leases.get(annotator)
        has = lease is not None and lease.until > now and not self._gone(annotator, lease.page, page, now)
        return not has and self._open_for(question, annotator, now)

    def _elsewhere(self, question: AskedPair, annotator: str, page: str | None, now: float) -> bool:
        """Whether another page of ``annotator`` holds the question."""
        lease = question.leases.get(annotator)
        if lease is None or lease.until <= now or None in (page, lease.page) or lease.page == page:
            return False
        return not self._gone(annotator, lease.page, page, now)

    def _hear(self, annotator: str, page: str | None, now: float) -> None:
        if page is None:
            return
        first = self._pages.get((annotator, page), (now, now))[0]
        self._pages[annotator, page] = (first, now)
        for known, (_, last) in list(self._pages.items()):
            if now - last > max(self.lease_seconds, QUIET):  # its leases have expired
                del self._pages[known]

    def _gone(self, annotator: str, page: str | None, newer: str | None, now: float) -> bool:
        """Whether ``page`` is gone, so that ``newer`` takes over its leases.

        True only if ``newer`` opened later: pages open at the same time both fall silent when the network fails.
        """
        if page is None or newer is None or page == newer:
            return False
        last = self._pages.get((annotator, page), (now, -math.inf))[1]
        return now - last > QUIET and self._pages[annotator, newer][0] > last

    def _question(self, annotator: str, now: float, page: str | None) -> Shown | None:
        """Hold the oldest question that ``annotator`` can get; skipped ones come last."""
        free = [
            (question.skipped(annotator), key)
            for key, question in self._questions.items()
            if self._may_ask(question, annotator, now, page)
        ]
        if not free:
            return None
        key = min(free, key=lambda one: one[0])[1]  # the oldest of the least skipped: rounds are added in order
        question = self._questions[key]
        question.leases[annotator] = Hold(now + self.lease_seconds, page)
        return Shown(question.left, question.right, self._random.random() < 0.5, overlap=bool(question.answered))

    def _catch(self, annotator: str, holding: Sequence[str]) -> Shown | None:
        """A catch pair, if one is due."""
        if self._since_catch.get(annotator, 0) < CATCH_AFTER or self._random.random() >= self._settings.catch_share:
            return None
        kinds = [self._same, self._repeat]
        self._random.shuffle(kinds)
        for kind in kinds:
            shown = kind(annotator)
            if shown is not None and shown.lease_key not in holding:
                self._since_catch[annotator] = 0
                return shown
        return None

    def _same(self, annotator: str) -> Shown | None:
        now = self._clock()
        clips = [question.left for question in self._questions.values() if self._open(question, now)]
        clip = self._random.choice(clips) if clips else None
        return None if clip is None else Shown(clip, clip, False, "same", 0.5)

    def _repeat(self, annotator: str) -> Shown | None:
        answers = list(self._answers.get(annotator, ()))
        repeated = {one.shown.repeats for one in answers}
        for one in answers[:-CATCH_AFTER]:
            here = one.shown.key in self._questions  # else its films may be lost
            if here and one.answer in ("left", "right") and one.shown.catch is None and one.event not in repeated:
                shown, expected = one.shown, one.shown.preference(one.answer)
                return Shown(shown.left, shown.right, not shown.swapped, "repeat", expected, one.event)
        return None
