"""Leases: what somebody is being shown, signed, so that the answer can be told from it even if the page was restarted since."""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import json
import math
import secrets
from dataclasses import dataclass
from datetime import UTC, datetime

from rlhf_ray.labelling.questions import Shown

SIGNATURE = 16
"""Bytes of the signature."""


@dataclass(frozen=True)
class Lease:
    """A pair that was handed out.

    Attributes:
        annotator: who is shown it.
        shown: the pair.
        at: when it was handed out, in seconds since 1970.
    """

    annotator: str
    shown: Shown
    at: float

    @property
    def time(self) -> datetime:
        """When it was handed out."""
        return datetime.fromtimestamp(self.at, UTC)


class Leases:
    """Writes and reads leases.

    Args:
        secret: known to the page's server alone.
    """

    def __init__(self, secret: bytes):
        self._secret = secret

    def write(self, lease: Lease) -> str:
        """The lease as a text that nobody can guess or make."""
        shown = {name: value for name, value in dataclasses.asdict(lease.shown).items() if value not in (None, False)}
        content = json.dumps(
            [lease.annotator, math.floor(lease.at * 1000) / 1000, secrets.token_hex(4), shown], separators=(",", ":")
        )
        return base64.urlsafe_b64encode(self._signature(content.encode()) + content.encode()).decode()

    def read(self, text: str, annotator: str) -> Lease:
        """The inverse of `write`.

        Raises:
            ValueError: it is not of this server, or not of this person.
        """
        try:
            content = base64.b64decode(text.encode(), altchars=b"-_", validate=True)
        except (binascii.Error, ValueError):
            content = b""
        signature, body = content[:SIGNATURE], content[SIGNATURE:]
        if not hmac.compare_digest(signature, self._signature(body)):
            raise ValueError("The lease is not one of this page's: reload the page.")
        owner, at, _, shown = json.loads(body)
        if owner != annotator:
            raise ValueError("The lease is somebody else's.")
        return Lease(owner, Shown(**({"swapped": False} | shown)), at)

    def _signature(self, content: bytes) -> bytes:
        return hmac.new(self._secret, content, hashlib.sha256).digest()[:SIGNATURE]
