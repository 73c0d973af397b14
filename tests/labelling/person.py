"""A scripted person: labels through the page's HTTP interface as a browser would, by the clips' true returns."""

import secrets
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from rlhf_ray.store import PreferenceStore


class Person:
    """Somebody with a link, who knows the true returns of stored clips."""

    def __init__(self, link: str, store: Path):
        self.base, token = link.split("/#token=")
        self.store = store
        self.acknowledged: list[str] = []
        """The events whose answers were acknowledged."""
        self.client = httpx.Client(base_url=self.base, headers={"origin": self.base}, timeout=30)
        self.post("/api/session", {"token": token})

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        reply = self.client.post(path, json=body)
        reply.raise_for_status()
        values: dict[str, Any] = reply.json()
        return values

    def question(self) -> dict[str, Any] | None:
        """The next question, where there is one."""
        questions = self.post("/api/questions", {"count": 1, "holding": []})["questions"]
        return questions[0] if questions else None

    def better(self, question: dict[str, Any]) -> str:
        """The side of larger true return."""
        _, clips = PreferenceStore(self.store, create=False).fragments(
            [question[side]["id"] for side in ("left", "right")]
        )
        assert clips is not None
        left, right = clips.returns()
        return "left" if left > right else "right" if right > left else "equal"

    def answer(self, question: dict[str, Any], answer: str, event: str | None = None) -> str:
        """Answer, and note the event when it is acknowledged."""
        event = event or secrets.token_hex(16)
        self.post("/api/answers", {"event_id": event, "lease": question["lease"], "answer": answer, "view_ms": 500})
        self.acknowledged.append(event)
        return event

    def label(self, until: Callable[[], bool]) -> None:
        """Answer whatever is asked; what could not be saved is sent again until it is, as the page does."""
        kept: tuple[dict[str, Any], str, str] | None = None
        while not until():
            try:
                if kept is None and (question := self.question()) is not None:
                    kept = question, self.better(question), secrets.token_hex(16)
                if kept is not None:
                    self.answer(*kept)
                    kept = None
                else:
                    time.sleep(0.05)
            except httpx.HTTPError as error:
                if isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 400:
                    kept = None  # refused for good
                time.sleep(0.2)

    def start(self, until: Callable[[], bool]) -> threading.Thread:
        """`label` in a thread of its own."""
        thread = threading.Thread(target=self.label, args=(until,), daemon=True)
        thread.start()
        return thread
