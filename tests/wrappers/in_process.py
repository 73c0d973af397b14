"""The wrappers' real ring, whose actors are plain objects, and which has turned as far as it can when a step returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rlhf_ray.actors.asynchronous import AsynchronousRing
from rlhf_ray.actors.ring import Learn, Progress, RoundReport, Stop, never
from rlhf_ray.queries.pool import CutFragments
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

    def advance(self, progress: Progress, stop: Stop = never, learn: Learn = lambda report: None) -> RoundReport | None:
        if self.failure is not None:
            raise self.failure
        self.advances.append((progress.share, progress.env_steps))
        report = super().advance(progress, stop, learn)
        self.settle()
        return report

    def close(self) -> None:
        self.closed += 1
        super().close()
