"""Sessions: the annotators, their tokens, and the signed session that a token is exchanged for.

An annotator's link carries the token after ``#``, so browsers never send it to servers, logs or referrers; the page posts it once
and gets a session. The session holds the name, the time of issue and a signature, so a restarted page recognizes its annotators
from one small file. Each tab keeps its own session and sends it as the header `HEADER`, so two people may label in two tabs of one
browser. A cookie with the session that was opened last lets new tabs in. A running page reloads the file when it changes (`rlhf-ray
links`).
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
from rlhf_ray.data.places import in_job, run_path

LONGEST_NAME = 64
"""Maximum number of characters of an annotator's name."""
LASTS_S = 30 * 24 * 3600.0
"""Lifetime of a link and of a session, in seconds."""
HEADER = "x-rlhf-ray-session"
"""The header with the session of the page that sends a request. It takes precedence over the cookie, also where it is empty."""


@dataclass(frozen=True)
class Person:
    """An annotator with a link.

    Attributes:
        name: the name stored with their answers.
        token: the secret in their link; it identifies the annotator.
        owner: whether they may also see everyone's statistics and set weights.
        until: when the link expires, in seconds since 1970; 0: revoked, and the current token was never given out.

    Raises:
        ValueError: the name is empty, too long or not printable.
    """

    name: str
    token: str
    owner: bool = False
    until: float = field(default=math.inf, compare=False)

    def __post_init__(self) -> None:
        if not self.name or len(self.name) > LONGEST_NAME or not self.name.isprintable():
            raise ValueError(f"annotator {self.name!r} is invalid; a name has 1 to {LONGEST_NAME} printable characters")


class Sessions:
    """The annotators of a run, and the secret that signs their sessions.

    Args:
        secret: at least 32 random bytes.
        people: the annotators by name.

    Raises:
        ValueError: the secret is too short, or two annotators share a token.
    """

    def __init__(self, secret: bytes, people: Mapping[str, Person]):
        if len(secret) < 32:
            raise ValueError(f"the sessions' secret has {len(secret)} bytes; use 32 random bytes (secrets.token_bytes)")
        if len({person.token for person in people.values()}) < len(people):
            raise ValueError("two annotators have the same token; give each a different one")
        self._secret = secret
        self._everybody = dict(people)
        self.url: str | None = None
        """The page's last URL."""
        self._file: tuple[Path, tuple[int, ...]] | None = None
        """The file last read or written, and its stamp at that time."""
        self._names: Sequence[str] | None = None
        """The names allowed in, of those in the file; None: all."""

    @property
    def people(self) -> Mapping[str, Person]:
        """The annotators allowed in, by name."""
        names = self._everybody if self._names is None else self._names
        return {name: self._everybody[name] for name in names if name in self._everybody}

    @classmethod
    def create(cls, names: Sequence[str]) -> Sessions:
        """Create annotators with new tokens. The first is the owner."""
        sessions = cls(secrets.token_bytes(32), {})
        sessions._admit(names)
        return sessions

    @classmethod
    def keep(cls, path: str | os.PathLike[str], names: Sequence[str]) -> Sessions:
        """Load the annotators ``names`` from the file at ``path``, keep their valid links, and add new names to the file.

        Annotators in the file that are not in ``names`` can't sign in; their links work again once they are named again.

        Raises:
            ValueError: ``names`` is empty or has duplicates.
            SettingError: the file is not a file of annotators.
        """
        try:
            sessions = cls.load(path)
        except FileNotFoundError:
            sessions = cls(secrets.token_bytes(32), {})
        sessions._admit(names)
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        sessions.save(path)
        return sessions

    def _admit(self, names: Sequence[str]) -> None:
        """Let ``names`` in and nobody else, with new links where theirs have expired; the first is the owner."""
        if not names or len(set(names)) < len(names):
            raise ValueError(f"annotators {list(names)} is invalid; give at least one name, each only once")
        for name in names:
            if name not in self._everybody or 0 < self._everybody[name].until < time.time():
                self.renew(name)
        self._everybody = {name: replace(person, owner=name == names[0]) for name, person in self._everybody.items()}
        self._names = names

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Sessions:
        """Read what `save` wrote.

        Raises:
            FileNotFoundError: the file does not exist.
            SettingError: the file is not a file of annotators.
        """
        path = Path(path)
        stamp = _stamp(path)
        try:
            kept = json.loads(path.read_text("utf-8"))
            people = {
                name: Person(name, str(values["token"]), bool(values["owner"]), float(values["until"]))
                for name, values in kept["people"].items()
            }
            sessions = cls(bytes.fromhex(kept["secret"]), people)
            sessions.url, sessions._file = kept.get("url"), (path, stamp)
            return sessions
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise SettingError(f"{path} is not a file of annotators ({error}); delete it to make new links") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write secret and tokens as JSON, atomically, readable by the file's owner only (mode 0600)."""
        path = Path(path)
        people = {
            name: {"token": person.token, "owner": person.owner, "until": person.until}
            for name, person in self._everybody.items()
        }
        text = json.dumps({"secret": self._secret.hex(), "url": self.url, "people": people}, indent=2)
        write_text(path, text + "\n", mode=0o600)
        self._file = (path, _stamp(path))

    def renew(self, name: str) -> None:
        """Give `name` a new link. Ends the old link and its sessions."""
        self._change(name, time.time() + LASTS_S)

    def revoke(self, name: str) -> None:
        """Revoke the link and the sessions of `name` until `renew`."""
        self._change(name, 0.0)

    def _change(self, name: str, until: float) -> None:
        owner = name in self._everybody and self._everybody[name].owner
        self._everybody[name] = Person(name, secrets.token_urlsafe(24), owner, until)

    def served_at(self, url: str) -> None:
        """Remember the page's URL, also in the file if there is one."""
        self._look()
        if self.url != url:
            self.url = url
            if self._file is not None:
                self.save(self._file[0])

    def link(self, name: str, url: str) -> str:
        """The link of `name`; `url` is the page's address, like ``http://127.0.0.1:8000``."""
        return f"{url.rstrip('/')}/#token={self.people[name].token}"

    def key(self, purpose: str) -> bytes:
        """A key for another `purpose`, derived from the secret."""
        return hmac.new(self._secret, purpose.encode(), hashlib.sha256).digest()

    @property
    def cookie_name(self) -> str:
        """The cookie's name, unique per run: browsers share a host's cookies among all its ports."""
        return "rlhf_ray_" + hashlib.sha256(self._secret).hexdigest()[:8]

    def exchange(self, token: str) -> Person | None:
        """The annotator with this token; None if it is wrong or expired. Takes the same time for every wrong token."""
        self._look()
        match = None
        for person in self.people.values():
            if hmac.compare_digest(person.token.encode(), token.encode("utf-8", "replace")):
                match = person
        return match if match and time.time() < match.until else None

    def sign(self, person: Person) -> str:
        """A session of `person`, valid for `LASTS_S`. A new token invalidates old sessions."""
        return self._signer(person).sign(base64_encode(person.name)).decode()

    def who(self, session: str | None) -> Person | None:
        """The annotator with this session; None if it is missing, broken, forged or expired."""
        self._look()
        session = session or ""
        try:
            person = self.people[base64_decode(session.partition(".")[0]).decode()]
            _, issued = self._signer(person).unsign(session, return_timestamp=True)
        except (KeyError, BadData, ValueError):
            return None
        # Not `max_age`, which rejects sessions from the future: a clock that is set back must sign nobody out.
        return person if time.time() - issued.timestamp() <= LASTS_S else None

    def _signer(self, person: Person) -> TimestampSigner:
        return TimestampSigner(self._secret, salt=person.token, key_derivation="hmac", digest_method=hashlib.sha256)

    def _look(self) -> None:
        """Reload the file if it has changed. A missing or broken file changes nothing."""
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


def _stamp(path: Path) -> tuple[int, ...]:
    """A stamp that changes when the file is rewritten."""
    about = path.stat()
    return about.st_ino, about.st_mtime_ns, about.st_size


FILE = "labelling.json"


def find(folder: Path) -> Path:
    """The file with the annotators' links for the run or store in ``folder``.

    Raises:
        SettingError: there is no such file.
    """
    path = run_path(folder)
    files = [path, path / FILE, path.with_name(f"{path.name}.{FILE}")]
    first = next((file for file in files if file.is_file()), None)
    if first is None:
        raise SettingError(
            f"No links found in or beside {path} ({FILE}): give the folder of a run with --teacher human or a store that "
            "`rlhf-ray label` writes to, on the machine where it runs."
        )
    return first


def table(sessions: Sessions) -> list[str]:
    """One line per annotator."""
    lines = []
    for name, person in sessions.people.items():
        if not person.until:
            lines.append(f"{name}: revoked; --renew {name} makes a new link")
        elif person.until < time.time():
            lines.append(f"{name}: expired (older than {LASTS_S / 86400:.0f} days); --renew {name} makes a new link")
        else:
            day = time.strftime("%Y-%m-%d", time.localtime(person.until))
            lines.append(
                f"label as {name}, until {day}: {sessions.link(name, sessions.url or 'http://127.0.0.1:8765')}"
            )
    return lines


def invitation(links: dict[str, str], folder: Path | str) -> list[str]:
    """The lines a run prints once its page is up: one link per annotator, or in a cluster job one line without tokens."""
    if not in_job():
        return [f"label as {name}: {link}" for name, link in links.items()]
    # Ray stores a job's output and shows it to everyone who has the cluster's token.
    return [
        f"label at {page}; for the links, run `rlhf-ray links {folder}` on this node"
        for page in sorted({link.partition("#")[0] for link in links.values()})
    ]
