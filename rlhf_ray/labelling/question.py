"""One question of the queue: how it is shown, what was said, and who holds it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import hmac
import json
import math
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Literal

from cryptography.fernet import Fernet, InvalidToken

from rlhf_ray.data.answers import AnswerKind, answer_of
from rlhf_ray.data.comparisons import pair_id

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
        content = [math.floor(lease.at * 1000) / 1000, lease.id, *dataclasses.astuple(lease.shown)]
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
