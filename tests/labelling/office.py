"""A real desk with a real store, and made-up pairs to ask about."""

import asyncio
import secrets
from pathlib import Path
from typing import Any

import numpy as np

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.labelling.collect import LocalStore
from rlhf_ray.labelling.desk import Desk
from rlhf_ray.labelling.films import Film, film
from rlhf_ray.labelling.messages import AnswerRequest, ShownQuestion
from rlhf_ray.settings import LabellingSettings
from rlhf_ray.store import PreferenceStore
from tests.made_up import IMAGES, VECTORS, some_fragments

SECRET = b"s" * 32


def pairs_of(count: int, seed: int = 0, *, images: bool = False) -> Pairs:
    fragments = some_fragments(2 * count, 6, observations=IMAGES if images else VECTORS, seed=seed)
    return Pairs.of(fragments, np.arange(2 * count).reshape(count, 2), 3)


def films_of(pairs: Pairs) -> list[Film]:
    """A film of each clip, in one grey each."""
    names = [*pairs.left.ids(), *pairs.right.ids()]
    return [film(name, np.full((7, 32, 48, 3), i, np.uint8), pixelated=False) for i, name in enumerate(names)]


class Broken(LocalStore):
    """A store whose disk takes nothing while ``broken``, and whatever it takes ``delay`` seconds late."""

    broken = False
    delay = 0.0

    async def call(self, method: Any, *arguments: Any, **keywords: Any) -> Any:
        if method is PreferenceStore.record:
            await asyncio.sleep(self.delay)
            if self.broken:
                raise OSError("no space left on device")
        return await super().call(method, *arguments, **keywords)


class Office:
    """A desk, its store, and shorthands."""

    def __init__(self, path: Path, **options: Any):
        self.store = PreferenceStore(path)
        self.local = Broken(self.store)
        settings = LabellingSettings(**{"overlap_share": 0.0, "catch_share": 0.0} | options)
        self.desk = Desk(self.local, SECRET, settings, fps=30, run_id="run", seed=0)
        self.queue = self.desk.queue

    async def ask(self, number: int, pairs: Pairs) -> None:
        """Ask about clips that were filmed, unless they are of images."""
        if pairs.left.observations.ndim == 3:
            self.desk.show(films_of(pairs))
        await self.desk.ask(number, pairs)

    async def next(self, who: str) -> ShownQuestion:
        (shown,) = await self.desk.next(who, 1, [])
        return shown

    async def give(self, who: str, shown: ShownQuestion, answer: str, event: str | None = None) -> str:
        event = event or secrets.token_hex(16)
        await self.desk.answer(
            who, AnswerRequest(event_id=event, lease=shown.lease, answer=answer, view_ms=700, key="ArrowLeft")
        )
        return event

    async def answer_all(self, pairs: Pairs, who: str = "ada", answer: str = "left") -> list[str]:
        """Ask about these pairs alone, and let somebody answer each; their events."""
        await self.ask(0, pairs)
        return [await self.give(who, shown, answer) for shown in await self.desk.next(who, len(pairs), [])]

    def rows(self) -> list[dict[str, Any]]:
        return PreferenceStore(self.store.path).events().to_pylist()  # from the disk
