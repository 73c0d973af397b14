"""The answers that people can give to a pair, each declared once.

The labelling page's buttons and keys, the events that the store keeps, what fits learn from, and the annotators' statistics all
derive from `ANSWERS`: another answer is another line there, with its texts in `rlhf_ray/labelling/languages/`.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class AnswerKind:
    """One answer.

    Attributes:
        name: as stored in ``extra.answer`` of its events.
        button: text of its button; the part in ``<i>`` is left out on small screens.
        text: what it means, in the list of keys.
        keys: the keys that give it by default, as in JavaScript's ``KeyboardEvent.key``.
        preference: the probability, for fits, that the clip shown on the left is better; None: it trains nothing.
        returns: whether the pair may be shown again.
        broken: whether it says that a clip is broken: nobody gets the pair again.
        undecided: whether it counts as a pair that the annotator can't decide (`Tally.skipped`): another is asked in its place, up
            to the limits of `rlhf_ray.queries.due`.
        counted, title, means: name, title and meaning of its count in the statistics; empty if it is not counted.
    """

    name: str
    button: str
    text: str
    keys: tuple[str, ...]
    preference: float | None = None
    returns: bool = False
    broken: bool = False
    undecided: bool = False
    counted: str = ""
    title: str = ""
    means: str = ""

    @property
    def side(self) -> bool:
        """Whether it is one of the three answers of `rlhf_ray.data.comparisons.Side`, which have the large buttons."""
        return self.name in ("left", "equal", "right")

    def left_preference(self, swapped: bool) -> float | None:
        """The preference for a pair's left clip, which was shown on the right if ``swapped``."""
        return self.preference if self.preference is None or not swapped else 1.0 - self.preference


ANSWERS: dict[str, AnswerKind] = {
    kind.name: kind
    for kind in (
        AnswerKind("left", "A <i>is better</i>", "A is better", ("ArrowLeft", "1"), preference=1.0),
        AnswerKind("equal", "Equal", "Equally good", ("ArrowDown",), preference=0.5),
        AnswerKind("right", "B <i>is better</i>", "B is better", ("ArrowRight", "2"), preference=0.0),
        AnswerKind(
            "incomparable",
            "Can’t compare",
            "Can’t compare",
            ("x",),
            undecided=True,
            counted="incomparable",
            title="Can’t compare",
            means="pairs marked “can’t compare”",
        ),
        AnswerKind(
            "skip",
            "Skip",
            "Skip: the pair may be shown again",
            ("s",),
            returns=True,
            counted="skips",
            title="Skips",
            means="pairs skipped",
        ),
        AnswerKind("flag", "Flag <i>as broken</i>", "Flag: something is wrong with a clip", ("f",), broken=True),
    )
}
"""All answers by name, in the order of their buttons."""

POSTPONED = "skip"
"""The answer of skips that name none, or one that is no longer declared."""


def answer_of(name: str | None) -> AnswerKind:
    """Return a stored answer's kind; of one that is no longer declared, one that trains nothing and ends the question."""
    return ANSWERS.get(name or "", AnswerKind(name or "", "", "", ()))
