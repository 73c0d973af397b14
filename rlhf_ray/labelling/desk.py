"""What the web app asks of whoever holds the questions: the desk, and the things handed over it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Answer = Literal["left", "right", "equal", "incomparable", "skip", "flag"]


@dataclass(frozen=True)
class FilmInfo:
    """One clip as shown: a sheet of frames, frame ``k`` at column ``k % columns`` and row ``k // columns``.

    Attributes:
        id: 64 hex digits; the sheet is ``GET /api/films/{id}``.
        frames: how many frames.
        columns: frames in a row of the sheet.
        width, height: of one frame, in pixels.
        pixelated: enlarge by whole pixels (image observations), not smoothly (rendered films).
    """

    id: str
    frames: int
    columns: int
    width: int
    height: int
    pixelated: bool


@dataclass(frozen=True)
class Showing:
    """One question on one person's screen.

    Attributes:
        lease: opaque, signed and unguessable, at most 600 characters; self-contained, so that late answers survive restarts.
        left, right: as shown; the desk has swapped them where it drew so.
        fps: frames per second at speed 1.
        expires_in: seconds for which nobody else is asked.
    """

    lease: str
    left: FilmInfo
    right: FilmInfo
    fps: float
    expires_in: float


@dataclass(frozen=True)
class Given:
    """An answer as the browser sends it.

    Attributes:
        event_id: 32 hex digits made by the browser; sending it again stores nothing twice.
        lease: of the question that is answered.
        answer: as shown: ``left`` is the clip on the left of the screen.
        view_ms: time the question was on a visible screen.
        hidden_ms: time it was on a screen that nobody could see.
        loops_left, loops_right: how often each clip was seen to its end.
        key: the key that was pressed; None for a button or a swipe.
    """

    event_id: str
    lease: str
    answer: Answer
    view_ms: int = 0
    hidden_ms: int = 0
    loops_left: int = 0
    loops_right: int = 0
    key: str | None = None


class Desk(Protocol):
    """Where questions come from and answers go. `annotator` always comes from the session, never from a request's body.

    Every method may raise ValueError (the request is wrong, and the message says how) and OSError (the store is not to be
    had now; the same request may be sent again).
    """

    async def next(self, annotator: str, count: int, holding: Sequence[str]) -> list[Showing]:
        """Up to `count` questions besides those in `holding` (leases the page has fetched ahead), which are renewed."""

    async def answer(self, annotator: str, given: Given) -> None:
        """Store an answer; returns when it is durable. Idempotent by `event_id`."""

    async def undo(self, annotator: str, event_id: str, target: str | None) -> Showing | None:
        """Take back `target`, or the annotator's latest answer. The pair to show again; None where there is none."""

    async def renew(self, annotator: str, leases: Sequence[str]) -> None:
        """Keep the leases for longer."""

    async def release(self, annotator: str, leases: Sequence[str]) -> None:
        """Give questions back that will not be answered."""

    async def film(self, film_id: str) -> bytes | None:
        """The sheet of a clip as WebP; None for an unknown id."""

    async def episode(self) -> dict[str, Any] | None:
        """The agent's latest whole episode: ``film``, ``fps``, ``env_steps``, ``policy_version``, ``steps``, ``age_seconds``."""

    async def progress(self, annotator: str) -> dict[str, Any]:
        """How far labelling is, and in ``reason`` why there is nothing to label (None while there is)."""

    async def statistics(self) -> dict[str, Any]:
        """Who answered what and how well, as JSON."""

    async def weigh(self, annotator: str, weight: float) -> None:
        """What the annotator's labels count for; 0 leaves them out. Nothing is deleted."""
