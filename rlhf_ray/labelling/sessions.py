"""Who may label: people, their tokens, and the signed cookie a token is exchanged for.

A person's link carries the token behind ``#``, where browsers keep it from servers, logs and referrers; the page posts it once and
gets a cookie. The cookie is the name and a keyed hash, so a page that is restarted knows its people without having kept anything
but one small file.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rlhf_ray.settings import SettingError

LONGEST_NAME = 64
"""Characters of a person's name."""


@dataclass(frozen=True)
class Person:
    """Somebody with a link.

    Attributes:
        name: what their answers are stored under.
        token: what their link carries; who has it is this person.
        owner: may also set what others' labels count for.
    """

    name: str
    token: str
    owner: bool = False


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
        self.people = dict(people)

    @classmethod
    def create(cls, names: Sequence[str]) -> Sessions:
        """New people with new tokens. The first is the owner."""
        if not names or len(set(names)) < len(names):
            raise ValueError(f"annotators {list(names)}: at least one name, each once")
        people = {name: Person(name, secrets.token_urlsafe(24), owner=name == names[0]) for name in names}
        return cls(secrets.token_bytes(32), people)

    @classmethod
    def keep(cls, path: str | os.PathLike[str], names: Sequence[str]) -> Sessions:
        """`create`, but whoever has a link in the file at ``path`` keeps it; new people are added to the file.

        Those in the file who are not named are not let in, and their links are good again when they are.

        Raises:
            ValueError: no names, or the file holds something else.
        """
        new = cls.create(names)
        try:
            old = cls.load(path)
        except FileNotFoundError:
            old = cls(new._secret, {})
        people = {name: replace(old.people.get(name, new.people[name]), owner=name == names[0]) for name in names}
        everybody = {name: replace(person, owner=False) for name, person in old.people.items()} | people
        if everybody != old.people:
            cls(old._secret, everybody).save(path)
        return cls(old._secret, people)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sessions:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: there is no such file.
            SettingError: it is not such a file.
        """
        try:
            kept = json.loads(Path(path).read_text("utf-8"))
            people = {name: Person(name, str(of["token"]), bool(of["owner"])) for name, of in kept["people"].items()}
            return cls(bytes.fromhex(kept["secret"]), people)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SettingError(
                f"{path} does not hold the annotators of a run ({error}); delete it to make new links"
            ) from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write secret and tokens as JSON, for the owner of the file alone (mode 0600), whole or not at all."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        people = {name: {"token": person.token, "owner": person.owner} for name, person in self.people.items()}
        text = json.dumps({"secret": self._secret.hex(), "people": people}, indent=2)
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(
            temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600
        )  # never readable by others, not for a moment
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text + "\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise

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
        """Whose token this is. Takes the same time for every wrong one."""
        found = None
        for person in self.people.values():
            if hmac.compare_digest(person.token.encode(), token.encode("utf-8", "replace")):
                found = person
        return found

    def cookie(self, person: Person) -> str:
        """What the browser of `person` sends with each request. A new token makes old cookies void."""
        name = base64.urlsafe_b64encode(person.name.encode()).decode().rstrip("=")
        return f"{name}.{self._sign(person)}"

    def who(self, cookie: str | None) -> Person | None:
        """Whose cookie this is; None for one that is missing, broken or forged."""
        name, _, signature = (cookie or "").partition(".")
        try:
            known = base64.urlsafe_b64decode(name + "=" * (-len(name) % 4)).decode()
        except (binascii.Error, ValueError):
            return None
        person = self.people.get(known)
        # Bytes, because compare_digest refuses strings that are not ASCII.
        return (
            person
            if person and hmac.compare_digest(self._sign(person).encode(), signature.encode("utf-8", "replace"))
            else None
        )

    def _sign(self, person: Person) -> str:
        return hmac.new(self._secret, f"{person.name}\0{person.token}".encode(), hashlib.sha256).hexdigest()
