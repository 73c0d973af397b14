"""Leases: what somebody is being shown, encrypted, so that the answer can be told from it even if the page was restarted since.

Encrypted, and of one length: a lease must not tell whether its pair is a check of the person, nor what the right answer is.
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

from rlhf_ray.labelling.questions import Shown

GOOD_FOR = 7 * 24 * 3600
"""Seconds in which a lease takes an answer: long enough for a laptop that was closed over a long weekend."""

PADDED = 239
"""Bytes of any lease before encryption: the longest has 230."""


@dataclass(frozen=True)
class Lease:
    """A pair that was handed out.

    Attributes:
        annotator: who is shown it.
        shown: the pair.
        at: when it was handed out, in seconds since 1970.
        id: 16 hex digits, another for each.
    """

    annotator: str
    shown: Shown
    at: float
    id: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def time(self) -> datetime:
        """When it was handed out."""
        return datetime.fromtimestamp(self.at, UTC)


class Leases:
    """Writes and reads leases. Each person's have a key of their own, made of the secret.

    Args:
        secret: known to the page's server alone.
    """

    def __init__(self, secret: bytes):
        self._secret = secret
        self._ciphers: dict[str, Fernet] = {}

    def write(self, lease: Lease) -> str:
        """The lease as a text that nobody else can read or make."""
        content = [math.floor(lease.at * 1000) / 1000, lease.id, *dataclasses.astuple(lease.shown)]
        text = json.dumps(content, separators=(",", ":"))
        return self._cipher(lease.annotator).encrypt(text.ljust(PADDED).encode()).decode()

    def read(self, text: str, annotator: str) -> Lease:
        """The inverse of `write`.

        Raises:
            ValueError: it is not of this server, not of this person, or too old.
        """
        try:
            at, name, *shown = json.loads(self._cipher(annotator).decrypt(text))
        except (InvalidToken, ValueError):
            raise ValueError(
                "The lease is not one of this page's, or it is somebody else's: reload the page."
            ) from None
        if time.time() > at + GOOD_FOR:
            raise ValueError(f"The pair was shown more than {GOOD_FOR // 86400} days ago.")
        return Lease(annotator, Shown(*shown), at, name)

    def _cipher(self, annotator: str) -> Fernet:
        if annotator not in self._ciphers:
            key = hmac.new(self._secret, annotator.encode(), hashlib.sha256).digest()
            self._ciphers[annotator] = Fernet(base64.urlsafe_b64encode(key))
        return self._ciphers[annotator]
