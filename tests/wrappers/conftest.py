"""The wrappers without Ray: their real ring, whose actors are plain objects, and which has turned as far as it can after a step."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from rlhf_ray.actors.asynchronous import AsynchronousRing
from rlhf_ray.actors.executor import LocalExecutor
from rlhf_ray.actors.ring import Learn, Progress, RoundReport, Stop, never
from rlhf_ray.queries.pool import CutFragments
from rlhf_ray.wrappers import learning
from rlhf_ray.wrappers.recorder import GivenFragments


class SettledFragments(GivenFragments):
    """Remembers what was sent."""

    busy = False
    """Whether the pool takes no clips."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.sent: list[CutFragments] = []

    def take(self, fragments: CutFragments, films: Sequence[Any], wait: bool) -> bool:
        if self.busy and not wait:
            return False
        self.sent.append(fragments)
        return super().take(fragments, films, wait)


class SettledRing(AsynchronousRing):
    """Remembers what it was told."""

    made: list[SettledRing]
    """All so far; a fixture empties it."""

    def __init__(self, *arguments: Any, **keywords: Any):
        super().__init__(*arguments, **keywords)
        self.advances: list[tuple[float, int]] = []
        self.failure: Exception | None = None
        self.closed = 0
        SettledRing.made.append(self)

    @property
    def clips(self) -> Any:
        """Everything that was sent."""
        return self.source.sent  # type: ignore[attr-defined]

    def advance(self, progress: Progress, stop: Stop = never, learn: Learn = lambda fit: None) -> RoundReport | None:
        if self.failure is not None:
            raise self.failure
        self.advances.append((progress.share, progress.env_steps))
        report = super().advance(progress, stop, learn)
        self.settle()
        return report

    def close(self) -> None:
        self.closed += 1
        super().close()


@pytest.fixture
def in_process(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """The wrappers' rings are of plain objects, and Ray is only counted: ``held`` now, over ``rings``."""
    seen = SimpleNamespace(held=0, rings=[])
    SettledRing.made = seen.rings

    def hold_ray(cpus: int) -> None:
        seen.held += 1

    def release_ray() -> None:
        seen.held -= 1

    monkeypatch.setattr(learning, "RayExecutor", lambda name: LocalExecutor())
    monkeypatch.setattr(learning, "AsynchronousRing", SettledRing)
    monkeypatch.setattr(learning, "GivenFragments", SettledFragments)
    monkeypatch.setattr(learning, "hold_ray", hold_ray)
    monkeypatch.setattr(learning, "release_ray", release_ray)
    monkeypatch.setattr(learning, "ray", SimpleNamespace(is_initialized=lambda: True))
    return seen
