"""Do two agents use the same features? The answer in plain sentences, and the table below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rlhf_ray.interpret.agent.comparison import alike, concepts, objects, played, saliency
from rlhf_ray.interpret.agent.comparison.pair import mean_of, text
from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study.section import Section, Table

MOSTLY, HARDLY = 0.75, 0.25
"""Share of used features that both use: from the first on the answer is yes, up to the second no."""
NAMED = 4
UNSETTLED = (concepts.UNSETTLED, objects.UNSETTLED)


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


def answer(sections: Sequence[Section], names: tuple[str, str]) -> Answer:
    """Put the sections' figures together."""
    values = {section.name: section.values for section in sections if section.skipped is None}
    used: dict[str, list[str]] = {"both": [], "first": [], "second": [], "differently": [], "unsettled": []}
    for part in (concepts.NAME, objects.NAME):
        for each in values.get(part, {}).get("features", ()):
            called = f"“{each['name']}”"
            if all(each["used"]):
                used["differently" if each["verdict"] == objects.DIFFERENTLY else "both"].append(called)
            elif each["verdict"] in UNSETTLED:
                used["unsettled"].append(called)
            elif any(each["used"]):
                used["first" if each["used"][0] else "second"].append(called)
    count = sum(map(len, used.values()))
    settled = count - len(used["unsettled"])
    share = len(used["both"]) / settled if settled else None
    if share is None:
        short = "It can't be told"
        why = (
            "what one of them uses, the other may use as well"
            if count
            else "nothing that was taken away changes what either of them does"
        )
        first = f"{short}: {why}."
    else:
        short = "Yes, mostly" if share >= MOSTLY else "No" if share <= HARDLY else "In part"
        parts = [f"both use {len(used['both'])}{_named(used['both'])}"]
        parts += (
            [f"both use {len(used['differently'])} in different ways{_named(used['differently'])}"]
            if used["differently"]
            else []
        )
        parts += [
            f"only {who} uses {len(used[of])}{_named(used[of])}"
            for who, of in zip(names, ("first", "second"), strict=True)
            if used[of]
        ]
        parts += [f"{len(used['unsettled'])} are not settled{_named(used['unsettled'])}"] if used["unsettled"] else []
        tested = f"{count} tested feature{'s' * (count != 1)} that at least one of them uses"
        first = f"{short}: of {tested}, {'; '.join(parts)}."
    sentences = [first]
    if (acted := values.get(alike.NAME, {}).get("actions")) is not None:
        same = MeanEstimate(**acted["same"])
        said = f"On the same frames they choose the same action {_percent(same)} of the time (chance {acted['chance']:.0%})"
        if played.NAME in values:
            change = MeanEstimate(**values[played.NAME]["difference"]["returns"]["difference"])
            ways = "does not differ measurably" if change.holds_zero else "differs"
            said += f", and their true return {ways}: {text(change)}"
        sentences.append(f"{said}.")
    return Answer(short, sentences, _table(values), **used)


def _table(values: Mapping[str, Any]) -> Table:
    rows: list[list[Any]] = []
    if (part := values.get(played.NAME)) is not None:
        returns = part["returns"]
        change = MeanEstimate(**part["difference"]["returns"]["difference"])
        rows.append(
            [
                "true return, first minus second, on the same levels",
                text(change),
                f"random actions reach {returns['random']:.2f}",
            ]
        )
    if (part := values.get(alike.NAME)) is not None:
        acted, valued, held = part["actions"], part["values"], part["held"]
        beside = _beside(acted["untrained"])
        rows.append(
            [
                "same action on the same frames",
                text(MeanEstimate(**acted["same"])),
                f"chance {acted['chance']:.2f}{beside}",
            ]
        )
        rows.append(["correlation of values", _text(valued["correlation"]), f"chance 0{_beside(valued['untrained'])}"])
        if held.get("both"):
            twins = [held[f"untrained_{at}"]["mean"] for at in (0, 1) if held.get(f"untrained_{at}")]
            shuffled = held.get("shuffled")
            chance = f"chance {shuffled['mean']:.2f}" if shuffled else ""
            rows.append(["similarity of what they hold (CKA)", _text(held["both"]), f"{chance}{_beside(twins)}"])
    for name, what in ((concepts.NAME, "concepts used"), (objects.NAME, "changes of frames reacted to")):
        features = values.get(name, {}).get("features", ())
        if features:
            used = [each["used"] for each in features]
            counts = (
                sum(map(all, used)),
                sum(of == [True, False] for of in used),
                sum(of == [False, True] for of in used),
            )
            rows.append(
                [
                    what,
                    f"both {counts[0]}, only the first {counts[1]}, only the second {counts[2]}",
                    f"of {len(used)} tested",
                ]
            )
    reactions = [each for each in values.get(objects.NAME, {}).get("features", ()) if any(each["used"])]
    known = [each for each in reactions if each["correlation"] is not None]
    if known:
        mean = mean_of(each["correlation"]["mean"] for each in known)
        by_chance = mean_of(each["chance"]["mean"] for each in known if each["chance"] is not None)
        rows.append(
            [
                "correlation of reactions, mean of these changes",
                f"{mean:.2f}",
                "" if by_chance is None else f"chance {by_chance:.2f}",
            ]
        )
    for name, each in values.get(saliency.NAME, {}).items():
        shuffled = each["shuffled"]
        chance = f"other frames {shuffled['mean']:.2f}" if shuffled else ""
        rows.append(
            [
                f"correlation of saliency maps, {name.replace('_', ' ')}",
                _text(each["correlation"]),
                f"{chance}{_beside(each['untrained'])}",
            ]
        )
    return Table(("", "both agents", "beside"), rows, "What both have in common")


def _text(estimate: dict[str, Any] | None) -> str:
    return "–" if estimate is None else text(MeanEstimate(**estimate))


def _beside(untrained: Sequence[float | None]) -> str:
    mean = mean_of(each for each in untrained if each is not None)
    return "" if mean is None else f", with untrained agents {mean:.2f}"


def _named(features: Sequence[str]) -> str:
    if not features:
        return ""
    more = f" and {len(features) - NAMED} more" if len(features) > NAMED else ""
    return f" ({', '.join(features[:NAMED])}{more})"


def _percent(estimate: MeanEstimate) -> str:
    if estimate.low is None or estimate.high is None:
        return f"{estimate.mean:.0%}"
    return f"{estimate.mean:.0%} [{100 * estimate.low:.0f}, {100 * estimate.high:.0f}]"
