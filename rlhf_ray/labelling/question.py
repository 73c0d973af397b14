"""One question of the queue: how it is shown, what was said, and who holds it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from rlhf_ray.data.answers import AnswerKind, answer_of
from rlhf_ray.data.comparisons import pair_id

Catch = Literal["same", "repeat"]


@dataclass(frozen=True)
class Shown:
    """A pair as shown to one annotator.

    Attributes:
        left, right: the clips' ids, in the pair's own order.
        swapped: whether the left one is shown on the right.
        catch: the kind of catch pair; None for a normal question. ``same``: a clip beside itself. ``repeat``: a pair the
            annotator has already decided, with swapped sides. (Stores of earlier versions have others.)
        expected: for a catch pair, the expected preference for the left clip.
        repeats: for ``repeat``, the event id of the first answer.
        overlap: whether this asks for a second opinion.
    """

    left: str
    right: str
    swapped: bool
    catch: Catch | None = None
    expected: float | None = None
    repeats: str | None = None
    overlap: bool = False

    @property
    def key(self) -> str:
        """The pair's id."""
        return pair_id(self.left, self.right)

    @property
    def lease_key(self) -> str:
        """What a page holds: the question, by the pair's id; or a catch pair, which is no question, also if its pair is one."""
        return self.key if self.catch is None else f"{self.catch} {self.key}"

    def preference(self, answer: str) -> float | None:
        """Convert an answer by screen side into a preference for the pair's left clip; None without a preference."""
        return answer_of(answer).left_preference(self.swapped)


@dataclass
class Hold:
    """That a page shows a pair."""

    until: float
    """In seconds of the queue's clock."""
    page: str | None
    """Id of the page that shows the pair; None if the client sends none."""


@dataclass
class StoredAnswer:
    """An answer that its annotator may take back."""

    event: str
    """The event of the annotator's own answer, which their page knows."""
    stands: str
    """The event that stands for it: its own, or that of the owner's second look."""
    shown: Shown
    answer: str
    at: float
    """When it was given, in seconds of the queue's clock."""


@dataclass
class AskedPair:
    """A question: a pair that one or two annotators are asked about."""

    key: str
    left: str
    right: str
    two: bool
    """Whether to ask a second annotator, if there is one."""
    said: dict[str, tuple[str, AnswerKind]] = field(default_factory=dict)
    """Annotator and answer of each event that was not taken back."""
    leases: dict[str, Hold] = field(default_factory=dict)
    """The leases, by annotator."""

    @property
    def answered(self) -> set[str]:
        """Who has answered; a skipped pair may be shown again."""
        return {who for who, kind in self.said.values() if not kind.returns}

    @property
    def lacks(self) -> int:
        """Number of further annotators whose answers are wanted."""
        if any(kind.broken for _, kind in self.said.values()):
            return 0
        return max(0, 1 + self.two - len(self.answered))

    def skipped(self, annotator: str) -> int:
        """How often ``annotator`` has skipped it."""
        return sum(who == annotator and kind.returns for who, kind in self.said.values())

    def holders(self, now: float) -> set[str]:
        """Who holds it."""
        return {name for name, lease in self.leases.items() if lease.until > now}
