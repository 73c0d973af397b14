"""What browser and server exchange: the bodies of requests, a question on a screen, and its lease."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import math
import secrets
import time
from dataclasses import astuple, dataclass, field
from datetime import UTC, datetime
from typing import Annotated

from cryptography.fernet import Fernet, InvalidToken
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from rlhf_ray.data.answers import ANSWERS, answer_of
from rlhf_ray.labelling.films import FilmInfo
from rlhf_ray.labelling.questions import Shown

HOLDING = 36
"""Maximum number of leases in one request: on screen, prefetched, and answered but not stored yet."""
LeaseText = Annotated[str, Field(min_length=1, max_length=400)]
EventId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
PageId = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]
"""Made by each page when it opens: one annotator may have several pages open."""
Count = Annotated[int, Field(ge=0, le=2**31)]


def declared(name: str) -> str:
    """Check that there is such an answer."""
    if name not in ANSWERS:
        raise ValueError(f"the answers are {', '.join(ANSWERS)}")
    return name


def trains(name: str) -> str:
    """Check that fits learn from this answer."""
    if answer_of(name).preference is None:
        raise ValueError(f"{name} trains nothing")
    return name


class Body(BaseModel):
    """A request's JSON. Unknown fields are rejected: they mean a bug in the client."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TokenRequest(Body):
    """``POST /api/session``."""

    token: Annotated[str, Field(min_length=1, max_length=200)]


class QuestionsRequest(Body):
    """``POST /api/questions``: up to ``count`` more, besides those that the page is ``holding``."""

    count: int = Field(3, ge=1, le=8)
    holding: list[LeaseText] = Field([], max_length=HOLDING)
    page: PageId | None = None


class AnswerRequest(Body):
    """``POST /api/answers``.

    Attributes:
        event_id: made by the browser; makes sending an answer idempotent.
        lease: lease of the question.
        answer: the name of an `rlhf_ray.data.answers.AnswerKind`, by screen side.
        view_ms: time the question was visible, in milliseconds.
        hidden_ms: time the page was hidden with this question, in milliseconds.
        loops_left, loops_right: how many times each film played to its end.
        key: the key pressed; None for mouse and touch.
    """

    event_id: EventId
    lease: LeaseText
    answer: Annotated[str, AfterValidator(declared), Field(json_schema_extra={"enum": list(ANSWERS)})]
    view_ms: Count = 0
    hidden_ms: Count = 0
    loops_left: Count = 0
    loops_right: Count = 0
    key: Annotated[str, Field(max_length=32)] | None = None


class UndoRequest(Body):
    """``POST /api/undo``: of the answer with event id ``target``, or the latest."""

    event_id: EventId
    target: EventId | None = None
    page: PageId | None = None


class LeasesRequest(Body):
    """``POST /api/leases/renew`` and ``/release``."""

    leases: list[LeaseText] = Field(max_length=HOLDING)
    page: PageId | None = None


class ReviewRequest(Body):
    """``POST /api/reviews``: ``answer`` by screen side; the same as before keeps the answer ``target``."""

    event_id: EventId
    target: Annotated[str, Field(min_length=1, max_length=200)]
    answer: Annotated[str, AfterValidator(trains)]


class WeightRequest(Body):
    """``POST /api/weights``."""

    annotator: str = Field(min_length=1, max_length=200)
    weight: float = Field(ge=0, le=1, allow_inf_nan=False)


@dataclass(frozen=True)
class ShownQuestion:
    """A question on one annotator's screen.

    Attributes:
        lease: returned with the answer.
        left, right: the films, by screen side.
        fps: frames per second at speed 1.
        expires_in: seconds until another annotator may get the pair.
    """

    lease: str
    left: FilmInfo
    right: FilmInfo
    fps: float
    expires_in: float


GOOD_FOR = 7 * 24 * 3600
"""Seconds for which a lease takes an answer: longer than a laptop stays closed over a long weekend."""

PADDED = 239
"""Bytes of every lease before encryption; the longest content has 230."""


@dataclass(frozen=True)
class Lease:
    """A pair leased to an annotator.

    Attributes:
        annotator: the annotator's name.
        shown: the pair.
        at: when it was leased, in seconds since 1970.
        id: unique id, 16 hex digits.
    """

    annotator: str
    shown: Shown
    at: float
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def time(self) -> datetime:
        """When the pair was leased."""
        return datetime.fromtimestamp(self.at, UTC)


class Leases:
    """Encrypts and decrypts leases, with one key per annotator derived from the server's secret."""

    def __init__(self, secret: bytes):
        self._secret = secret
        self._ciphers: dict[str, Fernet] = {}

    def write(self, lease: Lease) -> str:
        """The lease as encrypted text, which nobody else can read or forge."""
        content = [math.floor(lease.at * 1000) / 1000, lease.id, *astuple(lease.shown)]
        text = json.dumps(content, separators=(",", ":"))
        return self._cipher(lease.annotator).encrypt(text.ljust(PADDED).encode()).decode()

    def read(self, text: str, annotator: str) -> Lease:
        """The inverse of `write`.

        Raises:
            ValueError: the lease is not of this server, not of this annotator, or expired.
        """
        try:
            at, name, *shown = json.loads(self._cipher(annotator).decrypt(text))
        except (InvalidToken, ValueError):
            raise ValueError("This pair belongs to another page or annotator; reload the page.") from None
        if time.time() > at + GOOD_FOR:
            raise ValueError(
                f"This pair was shown more than {GOOD_FOR // 86400} days ago and no longer takes an answer."
            )
        return Lease(annotator, Shown(*shown), at, name)

    def _cipher(self, annotator: str) -> Fernet:
        if annotator not in self._ciphers:
            key = hmac.new(self._secret, annotator.encode(), hashlib.sha256).digest()
            self._ciphers[annotator] = Fernet(base64.urlsafe_b64encode(key))
        return self._ciphers[annotator]
