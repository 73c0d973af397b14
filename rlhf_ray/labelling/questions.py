"""The queue of questions: who is shown which pair, when, on which side; leases, second opinions, catch pairs and undo."""

from __future__ import annotations

import math
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from rlhf_ray.data.comparisons import pair_id, stable_uniform

Answer = Literal["left", "right", "equal", "incomparable", "skip", "flag"]
Catch = Literal["same", "repeat", "known"]

UNDOABLE = 50
"""Answers of each person that can be taken back, the latest first."""

ACTIVE = 600.0
"""Seconds after which somebody who asked for nothing is taken to have left: no question waits for their opinion."""

QUIET = 5.0
"""Seconds after which a page that says nothing is taken to be gone: an open one says something every two seconds."""

KNOWN_CLIPS = 200
"""Newest clips that catch pairs of the kind ``known`` are made of."""

CATCH_AFTER = 8
"""Answers that somebody gives before the first catch pair, and between a pair and its repetition."""


@dataclass(frozen=True)
class Shown:
    """A pair as one person is shown it.

    Attributes:
        left, right: the clips' ids, in the pair's own order.
        swapped: whether the left one is shown on the right.
        catch: what kind of check of the person it is; None for a question. ``same``: a clip beside itself. ``repeat``: a pair the
            person has decided before, the other way round. ``known``: clips whose true returns are far apart, where people teach
            what the environment rewards.
        expected: of a check: the preference for the left clip that is expected.
        repeats: the event of the first answer.
        overlap: whether it is a second opinion.
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

    def preference(self, answer: Answer) -> float | None:
        """What an answer, given as shown, says of the left clip of the pair; None where it prefers nothing."""
        if answer == "equal":
            return 0.5
        if answer not in ("left", "right"):
            return None
        return float((answer == "left") != self.swapped)


@dataclass
class _Lease:
    until: float
    """By the clock."""
    page: str | None
    """Which page of theirs shows it; None where a client names none."""


@dataclass
class _Question:
    key: str
    left: str
    right: str
    number: int
    two: bool
    """Whether a second opinion is wanted, where there is a second person."""
    closed: bool = False
    answered: set[str] = field(default_factory=set)
    skipped: dict[str, int] = field(default_factory=dict)
    leases: dict[str, _Lease] = field(default_factory=dict)
    """Who is being shown it."""


class QuestionQueue:
    """Hands questions out, each to one person at a time, the oldest first. Nothing here is random but sides and catch pairs.

    Args:
        lease_seconds: how long a question that somebody was given is kept for them, unless they ask for more time.
        overlap_share: share of the questions that two people are asked, where there are two.
        catch_share: share of what is shown that are catch pairs.
        catch_by_reward: whether catch pairs may be of the kind ``known``.
        seed: of sides and catch pairs.
        clock: seconds that never go back.
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
        self._questions: dict[str, _Question] = {}
        self._numbers: dict[int, list[str]] = {}
        self._returns: dict[str, float] = {}
        """True returns of clips, where they are known."""
        self._seen: dict[str, float] = {}
        self._pages: dict[tuple[str, str], tuple[float, float]] = {}
        """When each page was heard first and last."""
        self._given: dict[str, deque[tuple[str, Shown, Answer]]] = {}
        """Of each person: the latest answers that were not taken back, with their events."""
        self._since_catch: dict[str, int] = {}
        self._under_way: set[tuple[str, str]] = set()
        """Who is answering which pair: the answer is here, but not stored yet."""
        self._early: dict[str, dict[str, tuple[str, Shown, Answer]]] = {}
        """Answers to pairs that were not asked yet, by pair and event: a restarted page hears of the answer first."""

    @property
    def numbers(self) -> set[int]:
        """The askings there were."""
        return set(self._numbers)

    def add(self, number: int, pairs: Iterable[tuple[str, str]], returns: Mapping[str, float] | None = None) -> None:
        """Take in the pairs (ids of left and right clips) of asking ``number``, which changes nothing the second time.

        Args:
            number: of the asking.
            pairs: to ask about.
            returns: the true returns of clips, as far as they are known, for catch pairs of the kind ``known``.
        """
        if number in self._numbers:
            return
        self._numbers[number] = []
        for left, right in pairs:
            key = pair_id(left, right)
            two = bool(stable_uniform([key], "overlap")[0] < self.overlap_share)
            self._questions.setdefault(key, _Question(key, left, right, number, two))
            self._numbers[number].append(key)
            for event, (annotator, shown, answer) in self._early.pop(key, {}).items():
                self.answered(annotator, shown, answer, event)
        self._returns.update({clip: value for clip, value in (returns or {}).items() if not math.isnan(value)})
        for clip in list(self._returns)[:-KNOWN_CLIPS]:
            del self._returns[clip]

    def next(self, annotator: str, count: int, holding: Sequence[str] = (), page: str | None = None) -> list[Shown]:
        """Up to ``count`` further pairs for ``annotator``, who keeps those in ``holding`` (keys) too, on this ``page``.

        Nobody is dealt a pair twice that they hold, here or on another page of theirs, or whose answer is under way. What a page
        of theirs held that is gone (its browser crashed, say) is dealt to the page they open next.
        """
        now = self._clock()
        self.renew(annotator, holding, page)
        shown: list[Shown] = []
        taken = set(holding)
        while len(shown) < count:
            one = self._catch(annotator, taken) or self._question(annotator, taken, now, page)
            if one is None:
                break
            taken.add(one.key)
            shown.append(one)
        return shown

    def renew(self, annotator: str, keys: Iterable[str], page: str | None = None) -> list[str]:
        """Keep these for ``annotator`` on this ``page`` for longer, as far as they are theirs or free.

        Returns:
            Those that they are not to answer here: they have answered them, or another page of theirs shows them.
        """
        now = self._clock()
        self._seen[annotator] = now
        self._hear(annotator, page, now)
        done = []
        for key in keys:
            question = self._questions.get(key)
            if question is None:
                continue
            under_way = (annotator, key) in self._under_way
            if under_way or annotator in question.answered or self._elsewhere(question, annotator, page, now):
                done.append(key)
            elif self._free(question, annotator, now):
                question.leases[annotator] = _Lease(now + self.lease_seconds, page)
        return done

    def release(self, annotator: str, keys: Iterable[str]) -> None:
        """``annotator`` is no longer shown these."""
        for key in keys:
            if key in self._questions:
                self._questions[key].leases.pop(annotator, None)

    def answering(self, annotator: str, key: str) -> None:
        """``annotator`` has answered this pair, and the answer is being stored: `answered` or `not_stored` follows."""
        self._under_way.add((annotator, key))

    def not_stored(self, annotator: str, key: str) -> None:
        """The answer could not be stored. Whoever gave it keeps it and sends it again: the pair stays theirs for a while."""
        self._under_way.discard((annotator, key))
        lease = self._questions[key].leases.get(annotator) if key in self._questions else None
        self.renew(annotator, [key], lease.page if lease else None)

    def answered(self, annotator: str, shown: Shown, answer: Answer, event: str) -> None:
        """``annotator`` has given an answer, which is stored. It counts also when the lease had ended."""
        self._under_way.discard((annotator, shown.key))
        if shown.catch is None and shown.key not in self._questions:
            self._early.setdefault(shown.key, {})[event] = (annotator, shown, answer)
            return
        now = self._seen[annotator] = self._clock()
        given = self._given.setdefault(annotator, deque(maxlen=UNDOABLE))
        if any(event == known for known, _, _ in given):
            return
        given.append((event, shown, answer))
        if shown.catch is not None:
            self._since_catch[annotator] = 0
            return
        self._since_catch[annotator] = self._since_catch.get(annotator, 0) + 1
        question = self._questions[shown.key]
        question.leases.pop(annotator, None)
        if answer == "skip":
            question.skipped[annotator] = question.skipped.get(annotator, 0) + 1
            return
        question.answered.add(annotator)
        others = any(now - seen < ACTIVE for name, seen in self._seen.items() if name not in question.answered)
        question.closed = answer == "flag" or len(question.answered) > 1 or not (question.two and others)

    def latest(self, annotator: str, event: str | None = None) -> tuple[str, Shown] | None:
        """The answer of ``annotator`` that would be taken back: their latest, or that of ``event``; None where there is none."""
        given = [one for one in self._given.get(annotator, ()) if event in (None, one[0])]
        return (given[-1][0], given[-1][1]) if given else None

    def undone(self, annotator: str, event: str, page: str | None = None) -> Shown | None:
        """The answer of ``annotator`` that ``event`` stored was taken back; what is to be shown to them again, on this ``page``."""
        for one in list(self._given.get(annotator, ())):
            if one[0] != event:
                continue
            self._given[annotator].remove(one)
            shown = one[1]
            question = self._questions.get(shown.key)
            if question is not None and shown.catch is None:
                question.answered.discard(annotator)
                question.closed = False
                question.leases[annotator] = _Lease(self._clock() + self.lease_seconds, page)
            return shown
        return None

    def done(self, number: int) -> int:
        """How many questions of an asking have an answer."""
        questions = [self._questions[key] for key in self._numbers[number]]
        return sum(question.closed or bool(question.answered) for question in questions)

    def left(self, number: int) -> int:
        """How many questions of an asking have no answer."""
        return len(self._numbers[number]) - self.done(number)

    def open(self, annotator: str | None = None) -> int:
        """How many questions are open; of those, as many as ``annotator`` is or could be asked now."""
        now = self._clock()
        return sum(
            not question.closed and (annotator is None or self._free(question, annotator, now))
            for question in self._questions.values()
        )

    def ready(self, annotator: str) -> bool:
        """Whether `next` has a question for ``annotator``, who may hold others."""
        now = self._clock()
        return any(self._may_ask(question, annotator, now) for question in self._questions.values())

    def _may_ask(self, question: _Question, annotator: str, now: float, page: str | None = None) -> bool:
        """Whether ``annotator`` may be shown the question on this ``page``, and does not have it."""
        lease = question.leases.get(annotator)
        has = lease is not None and lease.until > now and not self._gone(annotator, lease.page, page, now)
        return not has and self._free(question, annotator, now)

    def _elsewhere(self, question: _Question, annotator: str, page: str | None, now: float) -> bool:
        """Whether another page of ``annotator`` shows the question."""
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
            if now - last > max(self.lease_seconds, QUIET):  # its leases have ended
                del self._pages[known]

    def _gone(self, annotator: str, page: str | None, newer: str | None, now: float) -> bool:
        """Whether ``page`` is no more, so that ``newer`` has what it held.

        Only a page that was opened later has: two that were open together fall silent together when the network does.
        """
        if page is None or newer is None or page == newer:
            return False
        last = self._pages.get((annotator, page), (now, -math.inf))[1]
        return now - last > QUIET and self._pages[annotator, newer][0] > last

    def _free(self, question: _Question, annotator: str, now: float) -> bool:
        """Whether ``annotator`` may be shown the question."""
        if (annotator, question.key) in self._under_way:
            return False
        others = sum(lease.until > now for name, lease in question.leases.items() if name != annotator)
        wanted = 1 + question.two
        return not question.closed and annotator not in question.answered and len(question.answered) + others < wanted

    def _question(self, annotator: str, taken: set[str], now: float, page: str | None) -> Shown | None:
        """The oldest question that ``annotator`` may be shown; what they skipped comes last."""
        free = [
            (question.skipped.get(annotator, 0), key)
            for key, question in self._questions.items()
            if key not in taken and self._may_ask(question, annotator, now, page)
        ]
        if not free:
            return None
        key = min(free, key=lambda one: one[0])[1]  # the first of the least skipped: askings are added in order
        question = self._questions[key]
        question.leases[annotator] = _Lease(now + self.lease_seconds, page)
        return Shown(question.left, question.right, self._random.random() < 0.5, overlap=bool(question.answered))

    def _catch(self, annotator: str, taken: set[str]) -> Shown | None:
        """A catch pair, when it is time for one."""
        if self._since_catch.get(annotator, 0) < CATCH_AFTER or self._random.random() >= self.catch_share:
            return None
        kinds: list[Catch] = ["same", "repeat", *(("known",) if self.catch_by_reward else ())]
        self._random.shuffle(kinds)
        for kind in kinds:
            shown: Shown | None = {"same": self._same, "repeat": self._repeat, "known": self._known}[kind](annotator)
            if shown is not None and shown.key not in taken:
                self._since_catch[annotator] = 0
                return shown
        return None

    def _same(self, annotator: str) -> Shown | None:
        clips = [question.left for question in self._questions.values() if not question.closed]
        clip = self._random.choice(clips) if clips else None
        return None if clip is None else Shown(clip, clip, False, "same", 0.5)

    def _repeat(self, annotator: str) -> Shown | None:
        given = self._given.get(annotator, ())
        repeated = {shown.repeats for _, shown, _ in given}
        for event, shown, answer in list(given)[:-CATCH_AFTER]:
            if answer in ("left", "right") and shown.catch is None and event not in repeated:
                expected = shown.preference(answer)
                return Shown(shown.left, shown.right, not shown.swapped, "repeat", expected, event)
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
