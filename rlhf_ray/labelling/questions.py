"""The question queue: which annotator gets which pair, when, and on which side; leases, second opinions, catch pairs and undo."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from rlhf_ray.data.answers import answer_of
from rlhf_ray.data.comparisons import pair_id, stable_uniform
from rlhf_ray.labelling.question import AskedPair, Catch, GivenAnswer, Hold, Shown

UNDOABLE = 50
"""Number of latest answers per annotator that can be undone."""

ACTIVE = 600.0
"""Seconds without a request after which an annotator counts as gone: no question waits for their second opinion."""

QUIET = 5.0
"""Seconds without a request after which a page counts as gone; an open page sends one every two seconds."""

KNOWN_CLIPS = 200
"""Number of newest clips used for catch pairs of the kind ``known``."""

CATCH_AFTER = 8
"""Minimum number of answers before an annotator's first catch pair, and between a pair and its repetition."""


@dataclass(frozen=True)
class HeldUp:
    """Open questions that an annotator can't get now.

    Attributes:
        saving: their own answer is being stored.
        answered: they have answered, and a second opinion is wanted.
        others: on the screens of other annotators.
    """

    saving: int
    answered: int
    others: int


class QuestionQueue:
    """Hands out questions, each to one annotator at a time, oldest first. Only sides and catch pairs are random.

    Args:
        lease_seconds: how long a question is reserved for an annotator; pages renew their leases.
        overlap_share: fraction of questions put to two annotators, if there are two.
        catch_share: fraction of shown pairs that are catch pairs.
        catch_by_reward: whether catch pairs may be of the kind ``known``.
        seed: seed for sides and catch pairs.
        clock: monotonic clock, in seconds.
    """

    def __init__(
        self,
        *,
        lease_seconds: float = 120.0,
        overlap_share: float = 0.0,
        catch_share: float = 0.0,
        catch_by_reward: bool = False,
        seed: int | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.lease_seconds, self.overlap_share, self.catch_share = lease_seconds, overlap_share, catch_share
        self.catch_by_reward = catch_by_reward
        self._random = random.Random(seed)
        self._clock = clock
        self._questions: dict[str, AskedPair] = {}
        self._numbers: dict[int, list[str]] = {}
        self._returns: dict[str, float] = {}
        """True returns by clip id, where known."""
        self._seen: dict[str, float] = {}
        self._pages: dict[tuple[str, str], tuple[float, float]] = {}
        """First and last time of a request, by annotator and page."""
        self._given: dict[str, deque[GivenAnswer]] = {}
        """Per annotator: the latest answers that were not undone."""
        self._since_catch: dict[str, int] = {}
        self._under_way: set[tuple[str, str]] = set()
        """(annotator, `Shown.held`) of answers received but not stored yet."""
        self._apart: dict[str, AskedPair] = {}
        """Answered questions that were not added: after a restart, answers arrive before their pairs. Nobody gets them."""

    @property
    def numbers(self) -> set[int]:
        """The rounds added so far."""
        return set(self._numbers)

    def add(self, number: int, pairs: Iterable[tuple[str, str]], returns: Mapping[str, float] | None = None) -> None:
        """Add the pairs of round ``number``. Idempotent per round.

        Args:
            number: the round's number.
            pairs: clip ids, (left, right).
            returns: true returns of clips, where known, for catch pairs of the kind ``known``.
        """
        if number in self._numbers:
            return
        self._numbers[number] = []
        for left, right in pairs:
            question = self._asked(left, right)
            self._questions[question.key] = question
            self._apart.pop(question.key, None)
            self._numbers[number].append(question.key)
        self._returns.update({clip: value for clip, value in (returns or {}).items() if not math.isnan(value)})
        for clip in list(self._returns)[:-KNOWN_CLIPS]:
            del self._returns[clip]

    def next(self, annotator: str, count: int, holding: Sequence[str] = (), page: str | None = None) -> list[Shown]:
        """Hold up to ``count`` more pairs to ``annotator`` on this ``page``; renews those in ``holding`` (`Shown.held`).

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
        """Extend the leases of ``annotator`` on this ``page`` to these pairs (`Shown.held`), if they hold or could get them.

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
        """The answer of ``annotator`` to this pair (`Shown.held`) is being stored; `answered` or `not_stored` follows."""
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
        self._under_way.discard((annotator, shown.held))
        self._seen[annotator] = max(self._clock() - age, self._seen.get(annotator, -math.inf))
        answers = self._given.setdefault(annotator, deque(maxlen=UNDOABLE))
        if any(event == known.event for known in answers):
            return
        answers.append(GivenAnswer(event, event, shown, answer))
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
        answers = [one for one in self._given.get(annotator, ()) if event in (None, one.event)]
        return (answers[-1].stands, answers[-1].shown) if answers else None

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
        for one in self._given.get(annotator, ()):
            if one.stands != event:
                continue
            self._given[annotator].remove(one)
            if one.shown.catch is None:
                self._asked(one.shown.left, one.shown.right).said.pop(one.event, None)
            return one.shown
        return None

    def replaced(self, annotator: str, event: str, by: str) -> None:
        """Event ``by`` replaces ``event`` as what stands for an answer of ``annotator``."""
        for one in self._given.get(annotator, ()):
            if one.stands == event:
                one.stands = by

    def done(self, number: int) -> int:
        """Number of answered questions in a round."""
        return len(self._numbers[number]) - self.left(number)

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

    def held_up(self, annotator: str) -> HeldUp:
        """Count the open questions that ``annotator`` can't get now, by the reason."""
        now = self._clock()
        kept = [
            question
            for question in self._questions.values()
            if self._open(question, now) and not self._open_for(question, annotator, now)
        ]
        saving = sum((annotator, question.key) in self._under_way for question in kept)
        answered = sum(annotator in question.answered for question in kept)
        return HeldUp(saving, answered, len(kept) - saving - answered)

    def ready(self, annotator: str) -> bool:
        """Whether `next` has another question for ``annotator``."""
        now = self._clock()
        return any(self._may_ask(question, annotator, now) for question in self._questions.values())

    def _asked(self, left: str, right: str) -> AskedPair:
        """The question about a pair; a new one if there is none."""
        key = pair_id(left, right)
        two = bool(stable_uniform([key], "overlap")[0] < self.overlap_share)
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
        if self._since_catch.get(annotator, 0) < CATCH_AFTER or self._random.random() >= self.catch_share:
            return None
        kinds: list[Catch] = ["same", "repeat", *(("known",) if self.catch_by_reward else ())]
        self._random.shuffle(kinds)
        for kind in kinds:
            shown: Shown | None = {"same": self._same, "repeat": self._repeat, "known": self._known}[kind](annotator)
            if shown is not None and shown.held not in holding:
                self._since_catch[annotator] = 0
                return shown
        return None

    def _same(self, annotator: str) -> Shown | None:
        now = self._clock()
        clips = [question.left for question in self._questions.values() if self._open(question, now)]
        clip = self._random.choice(clips) if clips else None
        return None if clip is None else Shown(clip, clip, False, "same", 0.5)

    def _repeat(self, annotator: str) -> Shown | None:
        answers = list(self._given.get(annotator, ()))
        repeated = {one.shown.repeats for one in answers}
        for one in answers[:-CATCH_AFTER]:
            here = one.shown.key in self._questions  # else its films may be lost
            if here and one.answer in ("left", "right") and one.shown.catch is None and one.event not in repeated:
                shown, expected = one.shown, one.shown.preference(one.answer)
                return Shown(shown.left, shown.right, not shown.swapped, "repeat", expected, one.event)
        return None

    def _known(self, annotator: str) -> Shown | None:
        clips = sorted(self._returns, key=lambda clip: self._returns[clip])
        fifth = len(clips) // 5
        if fifth == 0:
            return None
        worse, better = self._random.choice(clips[:fifth]), self._random.choice(clips[-fifth:])
        if self._returns[worse] == self._returns[better]:
            return None
        return Shown(better, worse, self._random.random() < 0.5, "known", 1.0)
