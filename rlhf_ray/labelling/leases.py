"""Leases: encrypted records of what an annotator is shown, so that an answer can be stored even after a restart of the page.

All leases are encrypted and of one length: a lease must not reveal whether its pair is a check, nor the expected answer.
"""

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

from cryptography.fernet import Fernet, InvalidToken

from rlhf_ray.labelling.question import Shown

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
    """Encrypts and decrypts leases, with one key per annotator derived from the secret.

    Args:
        secret: known only to the page's server.
    """

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
