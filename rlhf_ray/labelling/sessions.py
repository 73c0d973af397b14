"""Who may label: people, their tokens, and the signed cookie a token is exchanged for.

A person's link carries the token behind ``#``, where browsers keep it from servers, logs and referrers; the page posts it once and
gets a cookie. The cookie is the name, when it was given, and a signature, so a page that is restarted knows its people from one
small file. A page that is running reads that file again when somebody has changed it (`rlhf-ray links`).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from itsdangerous import BadData, TimestampSigner
from itsdangerous.encoding import base64_decode, base64_encode

from rlhf_ray.data.atomic import write_text
from rlhf_ray.data.errors import SettingError

LONGEST_NAME = 64
"""Characters of a person's name."""
LASTS_S = 30 * 24 * 3600.0
"""Seconds for which a link can be exchanged for a session, and a session lasts."""


@dataclass(frozen=True)
class Person:
    """Somebody with a link.

    Attributes:
        name: what their answers are stored under.
        token: what their link carries; who has it is this person.
        owner: may also set what others' labels count for.
        until: when the link ends, in seconds since 1970; 0: it was revoked, and nobody was told the token.
    """

    name: str
    token: str
    owner: bool = False
    until: float = field(default=math.inf, compare=False)


class Sessions:
    """The people of a run, and the secret that signs their cookies.

    Args:
        secret: at least 32 random bytes.
        people: by name.

    Raises:
        ValueError: a short secret, a name that is empty, too long or not printable, or two people with one token.
    """

    def __init__(self, secret: bytes, people: Mapping[str, Person]):
        if len(secret) < 32:
            raise ValueError(
                f"the secret of the sessions has {len(secret)} bytes; it needs 32 random ones (secrets.token_bytes)"
            )
        for name, person in people.items():
            if not name or len(name) > LONGEST_NAME or not name.isprintable() or name != person.name:
                raise ValueError(f"annotator {name!r}: a name is 1 to {LONGEST_NAME} printable characters")
        if len({person.token for person in people.values()}) < len(people):
            raise ValueError(
                "two annotators have the same token, so nobody could tell who answers: give each their own"
            )
        self._secret = secret
        self._everybody = dict(people)
        self.url: str | None = None
        """Where the page was served last."""
        self._file: tuple[Path, tuple[int, ...]] | None = None
        """What these were read from or written to, and its stamp then."""
        self._names: Sequence[str] | None = None
        """Who is let in of those in the file; None: all are."""

    @property
    def people(self) -> Mapping[str, Person]:
        """Who is let in, by name."""
        names = self._everybody if self._names is None else self._names
        return {name: self._everybody[name] for name in names if name in self._everybody}

    @classmethod
    def create(cls, names: Sequence[str]) -> Sessions:
        """New people with new tokens. The first is the owner."""
        if not names or len(set(names)) < len(names):
            raise ValueError(f"annotators {list(names)}: at least one name, each once")
        sessions = cls(
            secrets.token_bytes(32), {name: Person(name, _token(), owner=name == names[0]) for name in names}
        )
        for name in names:
            sessions.renew(name)
        return sessions

    @classmethod
    def keep(cls, path: str | os.PathLike[str], names: Sequence[str]) -> Sessions:
        """Those of these names. Who has a link in the file at ``path`` keeps it until it ends; new people are added to the file.

        Those in the file who are not named are not let in, and their links are good again when they are.

        Raises:
            ValueError: no names.
            SettingError: the file holds something else.
        """
        new = cls.create(names)
        try:
            sessions = cls.load(path)
        except FileNotFoundError:
            sessions = new
        everybody = {name: replace(person, owner=False) for name, person in sessions.people.items()}
        for name in names:
            everybody[name] = replace(everybody.get(name, new.people[name]), owner=name == names[0])
        sessions._everybody = everybody
        for name in names:
            if 0 < everybody[name].until < time.time():
                sessions.renew(name)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        sessions.save(path)
        sessions._names = names
        return sessions

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sessions:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            SettingError: it is not such a file.
        """
        path = Path(path)
        stamp = _stamp(path)
        try:
            kept = json.loads(path.read_text("utf-8"))
            new = time.time() + LASTS_S  # of files from before links ended
            people = {
                name: Person(name, str(of["token"]), bool(of["owner"]), float(of.get("until", new)))
                for name, of in kept["people"].items()
            }
            sessions = cls(bytes.fromhex(kept["secret"]), people)
            sessions.url, sessions._file = kept.get("url"), (path, stamp)
            return sessions
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SettingError(
                f"{path} does not hold the annotators of a run ({error}); delete it to make new links"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write secret and tokens as JSON, for the owner of the file alone (mode 0600), whole or not at all."""
        path = Path(path)
        people = {
            name: {"token": person.token, "owner": person.owner, "until": person.until}
            for name, person in self._everybody.items()
        }
        text = json.dumps({"secret": self._secret.hex(), "url": self.url, "people": people}, indent=2)
        write_text(path, text + "\n", mode=0o600)
        self._file = (path, _stamp(path))

    def renew(self, name: str) -> None:
        """Give `name` a new link. The old one and all sessions made from it end."""
        self._everybody[name] = replace(self._everybody[name], token=_token(), until=time.time() + LASTS_S)

    def revoke(self, name: str) -> None:
        """Shut `name` out until they get a new link."""
        self._everybody[name] = replace(self._everybody[name], token=_token(), until=0.0)

    def served_at(self, url: str) -> None:
        """Remember where the page is served, in the file too where there is one."""
        self._look()
        if self.url != url:
            self.url = url
            if self._file is not None:
                self.save(self._file[0])

    def link(self, name: str, url: str) -> str:
        """The link to give to `name`; `url` is where the page is, like ``http://127.0.0.1:8000``."""
        return f"{url.rstrip('/')}/#token={self.people[name].token}"

    def key(self, purpose: str) -> bytes:
        """A key for something else that has to be signed, made of the secret."""
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).digest()

    @property
    def cookie_name(self) -> str:
        """The cookie's name, another for each run: browsers share one host's cookies among all its ports."""
        return "rlhf_ray_" + hashlib.sha256(self._secret).hexdigest()[:8]

    def exchange(self, token: str) -> Person | None:
        """Whose token this is, unless it has ended. Takes the same time for every wrong one."""
        self._look()
        found = None
        for person in self.people.values():
            if hmac.compare_digest(person.token.encode(), token.encode("utf-8", "replace")):
                found = person
        return found if found and time.time() < found.until else None

    def cookie(self, person: Person) -> str:
        """What the browser of `person` sends with each request, for `LASTS_S`. A new token makes old cookies void."""
        return self._signer(person).sign(base64_encode(person.name)).decode()

    def who(self, cookie: str | None) -> Person | None:
        """Whose cookie this is; None for one that is missing, broken, forged, or has ended."""
        self._look()
        cookie = cookie or ""
        try:
            person = self.people[base64_decode(cookie.partition(".")[0]).decode()]
            self._signer(person).unsign(cookie, max_age=int(LASTS_S))
        except (KeyError, BadData, ValueError):
            return None
        return person

    def _signer(self, person: Person) -> TimestampSigner:
        return TimestampSigner(self._secret, salt=person.token, key_derivation="hmac", digest_method=hashlib.sha256)

    def _look(self) -> None:
        """Take over what was changed in the file since. One that is gone or broken changes nothing."""
        if self._file is None:
            return
        path, seen = self._file
        try:
            if _stamp(path) == seen:
                return
            kept = Sessions.load(path)
        except (OSError, ValueError):
            return
        if kept._secret == self._secret:
            self._everybody, self._file, self.url = kept._everybody, kept._file, kept.url


def _token() -> str:
    return secrets.token_urlsafe(24)


def _stamp(path: Path) -> tuple[int, ...]:
    """What changes when the file is written anew."""
    about = path.stat()
    return about.st_ino, about.st_mtime_ns, about.st_size
