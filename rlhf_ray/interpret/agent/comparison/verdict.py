"""Do two agents use the same features? The answer in a plain sentence, and what the steps say beside it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rlhf_ray.interpret.agent.comparison import concepts, objects
from rlhf_ray.interpret.agent.comparison.concepts import ComparedConcept, ComparedConcepts
from rlhf_ray.interpret.agent.comparison.objects import ComparedReactions, Reactions
from rlhf_ray.interpret.agent.comparison.pair import Use
from rlhf_ray.study.figures import figures_from
from rlhf_ray.study.section import Section
from rlhf_ray.study.verdict import StudyVerdict, reconcile
from rlhf_ray.study.words import Words

WORDS = Words(__file__)

MOSTLY, HARDLY = 0.75, 0.25
"""Share of used features that both use: from the first on the answer is yes, up to the second no."""
USES: tuple[Use, ...] = ("both", "first", "second", "differently", "unsettled")
KINDS = ("uses", "holds")


@dataclass(frozen=True)
class Answer:
    """What the page says first.

    Attributes:
        short: yes, in part, no, or that it can't be told.
        sentence: the same with figures.
        features: tested features by who uses them; see `rlhf_ray.interpret.agent.comparison.pair.Use`.
        verdict: the sections' statements and checks.
    """

    short: str
    sentence: str
    features: dict[str, list[str]]
    verdict: StudyVerdict

    def to_json(self) -> dict[str, Any]:
        """Return all of it."""
        return {**vars(self), "verdict": self.verdict.to_json()}


def answer(sections: Sequence[Section], names: tuple[str, str]) -> Answer:
    """Put the sections' figures together."""
    values = {section.name: section.values for section in sections if section.values}
    tested: list[ComparedConcept | Reactions] = []
    if concepts.WORDS.name in values:
        tested += figures_from(ComparedConcepts, values[concepts.WORDS.name]).features
    if objects.WORDS.name in values:
        tested += figures_from(ComparedReactions, values[objects.WORDS.name]).features
    used = {use: [feature.name for feature in tested if feature.use == use] for use in USES}
    settled = sum(map(len, used.values())) - len(used["unsettled"])
    share = len(used["both"]) / settled if settled else None
    key = "unknown" if share is None else "mostly" if share >= MOSTLY else "hardly" if share <= HARDLY else "partly"
    short, only = WORDS.text(key), list(zip(names, (used["first"], used["second"]), strict=True))
    sentence = WORDS.text("answer", short=short, used=used, settled=settled, only=only, tested=len(tested))
    return Answer(short, sentence, {str(use): names for use, names in used.items()}, reconcile(sections, KINDS))
