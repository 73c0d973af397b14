"""Answers of people at the page: stored in groups, read from the store again after a restart, and their statistics.

Statistics are agreement, catch pairs, side bias, pace.
"""

from __future__ import annotations

import asyncio
import json
import math
import statistics as numbers
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import pyarrow as pa

from rlhf_ray.data.answers import ANSWERS, POSTPONED
from rlhf_ray.data.comparisons import side_of
from rlhf_ray.labelling.questions import QuestionQueue, Shown
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.store import Event, PreferenceStore
from rlhf_ray.store.answers import REVIEWED_BY, Presses, agreement_in, count_presses, own_preference
from rlhf_ray.store.schema import holding

P = ParamSpec("P")
T = TypeVar("T")


class Store(Protocol):
    """A `PreferenceStore` in another thread or process: ``await store.call(PreferenceStore.record, events)``."""

    def call(
        self, method: Callable[Concatenate[PreferenceStore, P], T], *arguments: P.args, **keywords: P.kwargs
    ) -> Awaitable[T]:
        """Call a method of the store there."""


class GroupCommit:
    """Stores events, one batch at a time."""

    def __init__(self, store: Store):
        self._store = store
        self._waiting: list[tuple[Event, asyncio.Future[None]]] = []
        self._task: asyncio.Task[None] | None = None

    async def store(self, event: Event) -> None:
        """Store the event; returns when it is durable.

        Raises:
            OSError: the event could not be stored; retry.
            ValueError: the store rejects the event.
        """
        stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, stored))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        await asyncio.shield(stored)

    async def _run(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting, []
            await self._write(batch)

    async def _write(self, batch: list[tuple[Event, asyncio.Future[None]]]) -> None:
        try:
            await self._store.call(PreferenceStore.record, [event for event, _ in batch])
        except Exception as error:
            if len(batch) > 1 and isinstance(error, ValueError):  # one of them is bad: find it by storing one by one
                for one in batch:
                    await self._write([one])
                return
            for _, stored in batch:
                stored.set_exception(error)
                stored.exception()  # mark as retrieved, in case the waiter is gone
        else:
            for _, stored in batch:
                stored.set_result(None)


USED_ID = "This answer is not saved: its event id belongs to another event. Reload the page and answer again."

ANSWERED = ("label", "check", "skip", "flag")
"""The event kinds that answer a question."""


@dataclass(frozen=True)
class Meaning:
    """What makes two events the same: who said what about which lease, or took which event back."""

    annotator: str
    about: str | None
    said: str


class Past:
    """Knows each event, so that none is stored twice."""

    def __init__(self, store: Store, queue: QuestionQueue):
        self._store, self._queue = store, queue
        self.leases: dict[str, str] = {}
        """The event that answered each lease: a lease takes one answer."""
        self.meanings: dict[str, Meaning] = {}
        """What each stored event says: an id is good for one event."""
        self._recalled = False
        self._recalling = asyncio.Lock()

    async def recall(self) -> None:
        """Repeat, once, what people did before this start of the page: nobody gets those pairs again, and undo goes on."""
        async with self._recalling:
            if not self._recalled:
                self._repeat((await self._store.call(PreferenceStore.events)).to_pylist())
                self._recalled = True

    def knows(self, event: str, meaning: Meaning) -> bool:
        """Whether this event is stored.

        Raises:
            ValueError: another event is, under its id.
        """
        known = self.meanings.get(event)
        if known not in (None, meaning):
            raise ValueError(USED_ID)
        return known is not None

    def _repeat(self, rows: Sequence[dict[str, Any]]) -> None:
        now = datetime.now(UTC)
        for row in rows:
            extra, annotator, event = json.loads(row["extra"] or "{}"), row["annotator"], row["event_id"]
            answer = "undo" if row["kind"] == "retract" else extra.get("answer", "")
            about = row["target"] or extra.get("lease")
            self.meanings.setdefault(event, Meaning(extra.get(REVIEWED_BY, annotator), about, answer))
            if row["annotator_type"] != "human":
                continue
            if "lease" in extra:
                self.leases[extra["lease"]] = event
            answer = answer if answer in ANSWERS else "equal"
            if row["kind"] in ANSWERED:
                how = {name: extra[name] for name in ("catch", "expected", "repeats", "overlap") if name in extra}
                shown = Shown(row["left_id"], row["right_id"], bool(row["presented_swapped"]), **how)
                when = row["t_answered"]
                # An event from before this start that is later than now: the clock was set back.
                age = math.inf if when is None or when > now else (now - when).total_seconds()
                self._queue.answered(annotator, shown, answer, event, age)
            elif row["kind"] == "supersede":
                self._queue.replaced(annotator, row["target"], event)
            elif row["kind"] == "retract":
                self._queue.taken_back(annotator, row["target"])


_COLUMNS = (
    *("event_id", "kind", "target", "annotator", "annotator_type", "left_id", "right_id", "preference"),
    *("presented_swapped", "view_ms", "extra"),
)
_Row = dict[str, Any]


def statistics(
    events: pa.Table, weights: Mapping[str, float], error_rates: Mapping[str, ErrorRate] | None = None
) -> dict[str, Any]:
    """Compute all statistics as JSON values; None for values without data. Only valid answers count.

    Agreement is among people; scripted teachers appear only in ``agreement_with_scripted``. Excluded annotators (weight 0) are
    compared with the others, but the others are not compared with them. The order of a pair's clips does not matter. Answers that
    somebody looked at again count as their annotators gave them (`rlhf_ray.store.answers.own_preference`).

    Args:
        events: `PreferenceStore.events`.
        weights: `PreferenceStore.weights`.
        error_rates: each annotator's error rate, by the run's newest fit.

    Returns:
        ``labels``: number of valid labels. Over pairs with labels of several people, of which there are ``shared_pairs``:
        ``alpha``, Krippendorff's, nominal, with the categories left, right and equal of a pair; ``alpha_words``, what it means;
        ``raw_agreement``, the fraction of equal answers among pairs of people's answers to one pair; ``chance_agreement``, what
        independent answers would reach. ``annotators``: a list sorted by name, with

        - ``labels``, and the counts that `rlhf_ray.data.answers.ANSWERS` declares (``skips``, ``incomparable``);
        - ``seconds_per_label``: median time a pair was visible;
        - ``left_share``: fraction of answers for the clip *shown* on the left, ties excluded; ``one_sided``: whether that is too
          far from one half for random sides;
        - ``ties``: fraction of labels that are ties; ``mostly_equal``: whether nearly all of them are;
        - ``catches``: number of answers to catch pairs; ``catch_accuracy``: fraction correct where the answer is known;
          ``self_consistency``: fraction of repeated pairs with the same answer as before;
        - ``agreement``, ``agreement_with_scripted``: fraction of others' answers to the same pairs that are equal;
        - each of these shares with the ending ``_of``: the number of answers behind it;
        - ``error_rate``, ``error_rate_low``, ``error_rate_high``: share of answers that are wrong by the reward model, with a 95 %
          interval; ``error_rate_kind``: see `ErrorRate.kind`;
        - ``weight``.
    """
    everyone, agreed = _Answers(events, weights), agreement_in(events, weights)
    return {
        "labels": len(everyone.labels),
        "shared_pairs": agreed.units,
        "alpha": agreed.alpha,
        "alpha_words": agreed.words,
        "raw_agreement": agreed.raw,
        "chance_agreement": agreed.chance,
        "annotators": [everyone.of(name, (error_rates or {}).get(name)) for name in sorted(everyone.names)],
    }


class _Answers:
    """All answers, and what each annotator's tell."""

    def __init__(self, events: pa.Table, weights: Mapping[str, float]):
        rows: list[_Row] = events.select(_COLUMNS).to_pylist()
        cancelled = {row["target"] for row in rows if row["target"] is not None}
        self._weights = weights
        self._active = {row["event_id"]: row for row in rows if row["event_id"] not in cancelled}
        self.names = {row["annotator"] for row in rows}
        self.labels = [_own(rows[row]) for row in sorted(holding(events).values())]
        self._pairs: dict[frozenset[str], dict[str, str]] = defaultdict(dict)
        """Answers per pair, by annotator."""
        for label in self.labels:
            self._pairs[_pair(label)][label["annotator"]] = _answer(label)
        self._scripted = {row["annotator"] for row in rows if row["annotator_type"] == "scripted"}
        left_out = {name for name, weight in weights.items() if weight == 0}
        self._people = {row["annotator"] for row in self.labels} - self._scripted - left_out

    def of(self, name: str, error_rate: ErrorRate | None) -> dict[str, Any]:
        """The values of one annotator."""
        there = [row for row in self._active.values() if row["annotator"] == name]
        mine = [label for label in self.labels if label["annotator"] == name]
        checks = [row for row in there if row["kind"] == "check"]
        shown = (side_of(row["preference"], row["presented_swapped"]) for row in mine + checks)
        pressed = count_presses((name, side) for side in shown).get(name, Presses())
        answers = Counter(_said(row) for row in [*mine, *(row for row in there if row["kind"] in ("skip", "flag"))])
        looked = [row["view_ms"] / 1000 for row in mine + checks if row["view_ms"] is not None]
        return {
            "name": name,
            "labels": len(mine),
            **{kind.counted: answers[kind.name] for kind in ANSWERS.values() if kind.counted},
            "seconds_per_label": numbers.median(looked) if looked else None,
            "left_share": pressed.left / pressed.decided if pressed.decided else None,
            "one_sided": pressed.one_sided is not None,
            "ties": _share(_answer(row) == TIE for row in mine),
            "mostly_equal": pressed.mostly_equal,
            "catches": len(checks),
            **_share_of("catch_accuracy", _known(checks)),
            **_share_of("self_consistency", self._repeated(checks, name)),
            **_share_of("agreement", self._agreeing(name, self._people)),
            **_share_of("agreement_with_scripted", self._agreeing(name, self._scripted)),
            "error_rate": error_rate and error_rate.rate,
            "error_rate_low": error_rate and error_rate.low,
            "error_rate_high": error_rate and error_rate.high,
            "error_rate_kind": error_rate and error_rate.kind,
            "weight": self._weights.get(name, 1.0),
        }

    def _agreeing(self, name: str, others: Iterable[str]) -> list[bool]:
        """Whether the answers of ``others`` to the same pairs are equal."""
        compared = set(others) - {name}
        shared = [answers for answers in self._pairs.values() if name in answers]
        return [answers[name] == answers[other] for answers in shared for other in compared & answers.keys()]

    def _repeated(self, checks: Iterable[_Row], name: str) -> list[bool]:
        """Whether repeated pairs got the same answer as before, or as the answer that replaced that."""
        pairs = []
        for row in checks:
            extra = json.loads(row["extra"] or "{}")
            if extra.get("catch") != "repeat":
                continue
            first = self._active.get(extra.get("repeats"))
            known = first is not None and first["preference"] is not None
            before = _answer(first) if first is not None and known else self._pairs.get(_pair(row), {}).get(name)
            if before is not None:
                pairs.append(_answer(row) == before)
        return pairs


def _own(label: _Row) -> _Row:
    """The answer as its annotator gave it."""
    return label | {"preference": own_preference(label["preference"], label["presented_swapped"], label["extra"])}


def _known(checks: Iterable[_Row]) -> list[bool]:
    """Whether the answers to catch pairs are right, where the right one is known."""
    extras = [(row, json.loads(row["extra"] or "{}")) for row in checks]
    return [
        side_of(row["preference"]) == side_of(extra["expected"])
        for row, extra in extras
        if extra.get("catch") != "repeat" and extra.get("expected") is not None
    ]


def _share_of(name: str, values: list[bool]) -> dict[str, Any]:
    """A share, and the number of answers behind it."""
    return {name: _share(values), f"{name}_of": len(values)}


def of_one(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The part of `statistics` that one annotator may see: their own values, nothing about the others' quality."""
    own = [one for one in values["annotators"] if one["name"] == name]
    return dict.fromkeys(values) | {"labels": values["labels"], "shared_pairs": 0, "annotators": own}


TIE = "equal"


def _answer(row: _Row) -> str:
    """The id of the preferred clip, or `TIE`; independent of the order of the clips."""
    side = side_of(row["preference"])
    return TIE if side == TIE else str(row[f"{side}_id"])


def _said(row: _Row) -> str | None:
    """The name of an answer; a skip that has none postpones its pair."""
    name: str | None = json.loads(row["extra"] or "{}").get("answer")
    return POSTPONED if row["kind"] == "skip" and name not in ANSWERS else name


def _pair(row: _Row) -> frozenset[str]:
    return frozenset((row["left_id"], row["right_id"]))


def _share(values: Iterable[bool]) -> float | None:
    """The fraction of true values; None if there are none."""
    taken = list(values)
    return sum(taken) / len(taken) if taken else None
