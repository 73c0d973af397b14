"""A desk in memory with real small films: coloured squares that move. And the app around it, served by uvicorn in a thread."""

import hashlib
import re
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from importlib.resources import files
from typing import Any

import numpy as np
import uvicorn
from fastapi import FastAPI, Response
from starlette.types import Receive, Scope, Send

from rlhf_ray.data.comparisons import Side
from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.films import FilmInfo, film
from rlhf_ray.labelling.messages import AnswerRequest, ShownQuestion
from rlhf_ray.labelling.second_looks import Doubt
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.labelling.texts import IN_ENGLISH, Texts
from rlhf_ray.settings import LabellingSettings

LEASE_S = 60.0
TOO_SOON_MS = 50
"""In the place of the page's own, which tests would wait for at each pair. Still longer than between two presses of one moment."""


def square_frames(number: int, frames: int = 24, size: int = 32, seed: int = 0) -> np.ndarray:
    """``[frames, size, size, 3]`` bytes: a square whose colour and path come from `number`; each frame is another."""
    rng = np.random.default_rng([seed, number])
    colour, ground = rng.integers(120, 256, 3), rng.integers(0, 60, 3)
    picture = np.broadcast_to(ground.astype(np.uint8), (frames, size, size, 3)).copy()
    start, speed, side = rng.uniform(0, size, 2), rng.uniform(-2, 2, 2), max(4, size // 5)
    for k in range(frames):
        row, column = (int(at) for at in np.abs((start + k * speed) % (2 * (size - side)) - (size - side)))
        picture[k, row : row + side, column : column + side] = colour
        picture[k, 0, 0] = (k, number % 256, 7)  # so that a test sees which frame of which film it is
    return picture


COLUMNS = (
    *("name", "labels", "seconds_per_label", "left_share", "catch_accuracy", "agreement"),
    *("error_rate", "error_rate_low", "error_rate_high", "error_rate_kind"),
)
ANNOTATORS = (
    ("ada", 128, 2.4, 0.49, 0.96, 0.91, 0.02, 0.0, 0.05, "few"),
    ("grace", 96, 3.1, 0.53, 0.92, 0.88, 0.12, 0.08, 0.17, "some"),
    ("hurried", 210, 0.7, 0.81, 0.55, 0.57, 0.47, 0.36, 0.58, "guesses"),
    ("new", 2, 5.0, 0.5, None, 1.0, None, None, None, None),
)


@dataclass
class Leased:
    annotator: str
    question: ShownQuestion
    pair: int
    until: float


@dataclass
class FakeDesk:
    """Keeps everything in public attributes, for tests to look at and to break: the next `fail_answers` answers raise OSError,
    and `progress` tells what is in `told` over what it would.
    """

    pairs: int = 200
    fail_answers: int = 0
    episode_ended: bool = True
    size: int = 32
    zoom: int | None = None
    told: dict[str, Any] = field(default_factory=dict)
    answers: list[tuple[str, AnswerRequest, int]] = field(default_factory=list)
    undone: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)
    renewed: list[str] = field(default_factory=list)
    weights: dict[str, float] = field(default_factory=dict)
    leases: dict[str, Leased] = field(default_factory=dict)
    sheets: dict[str, bytes] = field(default_factory=dict)
    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    ended: bool = False
    closed: list[str] = field(default_factory=list)
    heard_the_end: set[str | None] = field(default_factory=set)
    calls: int = 0
    texts: Texts = IN_ENGLISH
    doubted: list[Doubt] = field(default_factory=list)
    reviews: list[tuple[str, str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.open = deque(range(self.pairs))
        self.started = time.monotonic()

    def make_film(self, number: int, frames: int) -> FilmInfo:
        picture = square_frames(number, frames, self.size)
        made = film(hashlib.sha256(picture.tobytes()).hexdigest(), picture, pixelated=True)
        self.sheets[made.info.id], self.arrays[made.info.id] = made.sheet, picture
        return replace(made.info, zoom=self.zoom)

    def show(self, annotator: str, pair: int) -> ShownQuestion:
        films = self.make_film(2 * pair, 24), self.make_film(2 * pair + 1, 24 if pair % 3 else 18)
        question = ShownQuestion(secrets.token_urlsafe(24), *films, fps=15.0, expires_in=LEASE_S)
        self.leases[question.lease] = Leased(annotator, question, pair, time.monotonic() + LEASE_S)
        return question

    async def next(
        self, annotator: str, count: int, holding: Sequence[str], page: str | None = None
    ) -> list[ShownQuestion]:
        self.calls += 1
        await self.renew(annotator, holding)
        most = 0 if self.ended else min(count, len(self.open))
        return [self.show(annotator, self.open.popleft()) for _ in range(most)]

    async def answer(self, annotator: str, given: AnswerRequest) -> None:
        if self.fail_answers:
            self.fail_answers -= 1
            raise OSError("disk full")
        if any(given.event_id == earlier.event_id for _, earlier, _ in self.answers):
            return
        leased = self.leases.pop(given.lease, None)
        if leased is None or leased.annotator != annotator:
            raise ValueError("this question is not on loan to you")
        self.answers.append((annotator, given, leased.pair))
        if given.answer == "skip":
            self.open.append(leased.pair)

    async def undo(
        self, annotator: str, event_id: str, target: str | None, page: str | None = None
    ) -> ShownQuestion | None:
        for k in range(len(self.answers) - 1, -1, -1):
            name, given, pair = self.answers[k]
            if name == annotator and target in (None, given.event_id):
                del self.answers[k]
                self.undone.append(given.event_id)
                if pair in self.open:
                    self.open.remove(pair)
                return self.show(annotator, pair)
        return None

    async def renew(self, annotator: str, leases: Sequence[str], page: str | None = None) -> list[str]:
        self.renewed.extend(leases)
        return []

    async def release(self, annotator: str, leases: Sequence[str], page: str | None = None) -> None:
        self.released.extend(leases)
        if page is not None:
            self.closed.append(page)
        for lease in leases:
            if (leased := self.leases.get(lease)) and leased.annotator == annotator:
                self.open.appendleft(self.leases.pop(lease).pair)

    def doubt(self, number: int, annotator: str, answer: Side) -> Doubt:
        """Add an answer to look at again."""
        films = self.make_film(2 * number, 24), self.make_film(2 * number + 1, 24)
        self.doubted.append(Doubt(f"{number:032x}", annotator, answer, 0.9 - number / 100, *films, fps=15.0))
        return self.doubted[-1]

    async def doubts(self) -> list[Doubt]:
        return self.doubted

    async def review(self, owner: str, event_id: str, target: str, answer: Side) -> None:
        if self.fail_answers:
            self.fail_answers -= 1
            raise OSError("disk full")
        if target not in {one.event_id for one in self.doubted} | {event for _, event, _ in self.reviews}:
            raise ValueError("This answer was changed meanwhile, or is no longer in doubt.")
        self.doubted = [one for one in self.doubted if one.event_id != target]
        self.reviews.append((target, event_id, answer))

    async def film(self, film_id: str, page: str | None = None) -> bytes | None:
        return self.sheets.get(film_id)

    async def episode(self) -> dict[str, Any] | None:
        return {
            "film": asdict(self.make_film(7777, 90)),
            "fps": 15.0,
            "env_steps": 12_288,
            "policy_version": 6,
            "steps": 90,
            "ended": self.episode_ended,
            "age_seconds": 4.2,
        }

    async def progress(self, annotator: str) -> dict[str, Any]:
        labels = [name for name, given, _ in self.answers if given.answer in ("left", "right", "equal")]
        own = labels.count(annotator)
        minutes = (time.monotonic() - self.started) / 60
        return {
            "labels": len(labels),
            "wanted": self.pairs,
            "own": own,
            "per_minute": round(own / max(minutes, 0.2), 1),
            "queue": len(self.open),
            "env_steps": 12_288,
            "total_env_steps": 100_000,
            "first_labels": None,
            "reason": None if self.open else "All clips so far are compared: the agent is recording new ones.",
        } | self.told

    async def over(self, page: str | None = None, holding: int = 0) -> dict[str, Any]:
        if self.ended:
            self.heard_the_end.add(page)
        return {"ended": self.ended, "over": "Done. Thank you! You can close this page." if self.ended else None}

    async def statistics(self) -> dict[str, Any]:
        rows: list[dict[str, Any]] = [dict(zip(COLUMNS, values, strict=True)) for values in ANNOTATORS]
        for one in rows:
            caught = one["catch_accuracy"] is not None
            one |= {"catches": 12 * caught, "catch_accuracy_of": 9 * caught, "self_consistency_of": 3 * caught}
            one |= {"ties": 0.08, "self_consistency": 0.9 if caught else None, "agreement_of": 14}
            one |= {"skips": one["labels"] // 20, "incomparable": one["labels"] // 40, "mostly_equal": False}
            one |= {"one_sided": one["left_share"] > 0.7, "weight": self.weights.get(one["name"], 1.0)}
        shared = {"shared_pairs": 40, "alpha": 0.71, "alpha_words": "good enough for tentative conclusions"}
        return {"labels": 436, **shared, "raw_agreement": 0.86, "chance_agreement": 0.52, "annotators": rows}

    async def knows(self, annotator: str) -> bool:
        return annotator in ("ada", "grace", "hurried", "new")

    async def weigh(self, annotator: str, weight: float) -> None:
        self.weights[annotator] = weight


@dataclass
class Served:
    """The page on its port. What stands between browser and server, `proxy`, says something instead, by path; None for nothing."""

    url: str
    desk: FakeDesk
    sessions: Sessions
    proxy: Callable[[str], Any] = lambda path: None

    def link(self, name: str = "ada") -> str:
        return self.sessions.link(name, self.url)


def changed(name: str, constant: str, value: int) -> Response:
    """A script of the page with another value of a constant."""
    file = files("rlhf_ray.labelling").joinpath("static", name).read_text()
    text, count = re.subn(rf"const {constant} = \d+;", f"const {constant} = {value};", file)
    assert count == 1
    return Response(text, media_type="text/javascript", headers={"cache-control": "no-cache"})


def in_front_of(app: FastAPI, site: Served) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """The app for who sees a new pair sooner than people do; behind the site's proxy."""
    scripts = {"/static/watch.js": changed("watch.js", "TOO_SOON_MS", TOO_SOON_MS)}

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        await (scripts.get(path) or site.proxy(path) or app)(scope, receive, send)

    return answer


@contextmanager
def served(desk: FakeDesk, texts: Texts = IN_ENGLISH) -> Iterator[Served]:
    """The page on a free port, until the block ends."""
    sessions = Sessions.create(["ada", "grace"])
    desk.texts = texts
    told = "Prefer the clip whose square stays nearer to the middle. <b>Colour does not matter.</b>"
    app = create_app(desk, sessions, LabellingSettings(instructions=told), "Moving squares")
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    site = Served(f"http://127.0.0.1:{listening.getsockname()[1]}", desk, sessions)
    server = uvicorn.Server(
        uvicorn.Config(in_front_of(app, site), log_level="warning", access_log=False, lifespan="off")
    )
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield site
    server.should_exit = server.force_exit = True
    thread.join(10)
