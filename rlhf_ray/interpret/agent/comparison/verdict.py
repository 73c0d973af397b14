"""Do two agents use the same features? The answer in plain sentences, and the table below it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from rlhf_ray.interpret.agent.comparison import alike, concepts, objects, played, saliency
from rlhf_ray.interpret.agent.comparison.alike import SameFrames
from rlhf_ray.interpret.agent.comparison.concepts import ComparedConcept, ComparedConcepts
from rlhf_ray.interpret.agent.comparison.objects import ComparedReactions, Reactions
from rlhf_ray.interpret.agent.comparison.pair import Use, mean_of
from rlhf_ray.interpret.agent.comparison.played import SameLevels
from rlhf_ray.interpret.agent.comparison.saliency import ComparedMaps
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.figures import figures_from
from rlhf_ray.study.section import Section, Table
from rlhf_ray.study.words import Words, estimate

WORDS = Words(__file__)

MOSTLY, HARDLY = 0.75, 0.25
"""Share of used features that both use: from the first on the answer is yes, up to the second no."""
COUNTED = {"both": (True, True), "first": (True, False), "second": (False, True)}
USES: tuple[Use, ...] = ("both", "first", "second", "differently", "unsettled")

F = TypeVar("F")


@dataclass(frozen=True)
class Answer:
    """What the page says first.

    Attributes:
        short: yes, in part, no, or that it can't be told.
        sentences: one or two plain sentences with figures.
        table: the figures, each beside its control.
        both, first, second: features that both use, only the first, only the second.
        differently: features that both use, but not alike.
        unsettled: features that one uses; whether the other uses them less is not settled.
    """

    short: str
    sentences: Sequence[str]
    table: Table
    both: Sequence[str]
    first: Sequence[str]
    second: Sequence[str]
    differently: Sequence[str]
    unsettled: Sequence[str]

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return asdict(self)


@dataclass(frozen=True)
class PairFigures:
    """What the steps find; None for those that did not run or don't apply."""

    levels: SameLevels | None
    frames: SameFrames | None
    concepts: Sequence[ComparedConcept]
    reactions: Sequence[Reactions]
    maps: ComparedMaps | None

    @classmethod
    def read(cls, sections: Sequence[Section]) -> PairFigures:
        """Read the figures of the sections."""
        values = {section.name: section.values for section in sections if section.values}

        def read(words: Words, kind: type[F]) -> F | None:
            return figures_from(kind, values[words.name]) if words.name in values else None

        held, reactions = read(concepts.WORDS, ComparedConcepts), read(objects.WORDS, ComparedReactions)
        return cls(
            read(played.WORDS, SameLevels),
            read(alike.WORDS, SameFrames),
            held.features if held else (),
            reactions.features if reactions else (),
            read(saliency.WORDS, ComparedMaps),
        )


def answer(sections: Sequence[Section], names: tuple[str, str]) -> Answer:
    """Put the sections' figures together."""
    figures = PairFigures.read(sections)
    tested: list[ComparedConcept | Reactions] = [*figures.concepts, *figures.reactions]
    used = {use: [one.name for one in tested if one.use == use] for use in USES}
    settled = sum(map(len, used.values())) - len(used["unsettled"])
    share = len(used["both"]) / settled if settled else None
    key = "unknown" if share is None else "mostly" if share >= MOSTLY else "hardly" if share <= HARDLY else "partly"
    short = WORDS.text(key)
    only = list(zip(names, (used["first"], used["second"]), strict=True))
    sentences = [WORDS.text("features", short=short, used=used, settled=settled, only=only)]
    if figures.frames is not None:
        change = None if figures.levels is None else figures.levels.difference.returns.difference
        sentences.append(WORDS.text("actions", actions=figures.frames.actions, change=change))
    return Answer(short, sentences, WORDS.table("answer", _rows(figures)), **used)


def _rows(figures: PairFigures) -> Iterator[list[str]]:
    if (levels := figures.levels) is not None:
        change = levels.difference.returns.difference
        yield [WORDS.text("returns"), estimate(change), WORDS.text("random", value=levels.random.returns.after)]
    if (frames := figures.frames) is not None:
        actions, values, both = frames.actions, frames.values, frames.held.get("both")
        yield _beside("same_action", actions.same, actions.chance, actions.untrained)
        yield _beside("values", values.correlation, 0, values.untrained)
        if both is not None:
            shuffled = frames.held.get("shuffled")
            yield _beside("held", both, shuffled.mean if shuffled else None, [frames.twins("untrained")])
    for key, features in (("concepts", figures.concepts), ("reactions", figures.reactions)):
        if features:
            yield [
                WORDS.text(key),
                WORDS.text("counts", counts=_counts(features)),
                WORDS.text("tested", features=features),
            ]
    reacting = [one for one in figures.reactions if one.use != "neither" and one.correlation is not None]
    if reacting:
        mean = mean_of(one.correlation.mean for one in reacting if one.correlation is not None)
        chance = mean_of(one.chance.mean for one in reacting if one.chance is not None)
        yield [
            WORDS.text("reacting"),
            f"{mean:.2f}",
            WORDS.text("beside", chance=chance, untrained=None, label="chance"),
        ]
    for name, one in figures.maps.maps.items() if figures.maps is not None else ():
        other = one.shuffled.mean if one.shuffled else None
        yield _beside("maps", one.correlation, other, one.untrained, name=name.replace("_", " "))


def _beside(
    key: str, both: MeanEstimate | None, chance: float | None, untrained: Sequence[float | None], name: str = ""
) -> list[str]:
    controls = WORDS.text(
        "beside", chance=chance, untrained=mean_of(untrained), label="other frames" if name else "chance"
    )
    return [WORDS.text(key, name=name), estimate(both), controls]


def _counts(features: Sequence[ComparedConcept | Reactions]) -> Mapping[str, int]:
    """Return how many features both use, only the first, and only the second, whether settled or not."""
    uses = [one.uses for one in features]
    return {name: uses.count(who) for name, who in COUNTED.items()}
