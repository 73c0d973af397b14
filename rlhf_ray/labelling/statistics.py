"""Annotator statistics from the answers: agreement, catch pairs, side bias, pace."""

from __future__ import annotations

import json
import statistics as numbers
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa

from rlhf_ray.data.answers import ANSWERS, POSTPONED
from rlhf_ray.data.comparisons import side_of
from rlhf_ray.measure.agreement import AnnotatorAgreement, agreement
from rlhf_ray.measure.agreement import alpha as alpha  # re-exported for callers
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.store.answers import Presses, agreement_in, count_presses
from rlhf_ray.store.schema import holding

_COLUMNS = (
    *("event_id", "kind", "target", "annotator", "annotator_type", "left_id", "right_id", "preference"),
    *("presented_swapped", "view_ms", "extra"),
)
_Row = dict[str, Any]


def statistics(
    events: pa.Table, weights: Mapping[str, float], error_rates: Mapping[str, ErrorRate] | None = None
) -> dict[str, Any]:
    """Compute all statistics as JSON values; None for values without data. Only valid answers count.

    Agreement is among people; scripted teachers appear only in ``agreement_with_scripted``. Excluded annotators (weight 0) are
    compared with the others, but the others are not compared with them. The order of a pair's clips does not matter.

    Args:
        events: `PreferenceStore.events`.
        weights: `PreferenceStore.weights`.
        error_rates: each annotator's error rate, by the run's newest fit.

    Returns:
        ``labels``: number of valid labels. Over pairs with labels of several people, of which there are ``shared_pairs``:
        ``alpha``, Krippendorff's, nominal, with the categories left, right and equal of a pair; ``alpha_words``, what it means;
        ``raw_agreement``, the fraction of equal answers among pairs of people's answers to one pair; ``chance_agreement``, what
        independent answers would reach. ``annotators``: a list sorted by name, with

        - ``labels``, and the counts that `rlhf_ray.data.answers.ANSWERS` declares (``skips``, ``incomparable``);
        - ``seconds_per_label``: median time a pair was visible;
        - ``left_share``: fraction of answers for the clip *shown* on the left, ties excluded; ``one_sided``: whether that is too
          far from one half for random sides;
        - ``ties``: fraction of labels that are ties; ``mostly_equal``: whether nearly all of them are;
        - ``catches``: number of answers to catch pairs; ``catch_accuracy``: fraction correct where the answer is known;
          ``self_consistency``: fraction of repeated pairs with the same answer as before;
        - ``agreement``, ``agreement_with_scripted``: fraction of others' answers to the same pairs that are equal;
        - each of these shares with the ending ``_of``: the number of answers behind it;
        - ``error_rate``, ``error_rate_low``, ``error_rate_high``: share of answers that are wrong by the reward model, with a 95 %
          interval; ``error_rate_kind``: see `ErrorRate.kind`;
        - ``weight``.
    """
    rows: list[_Row] = events.select(_COLUMNS).to_pylist()
    by_id = {row["event_id"]: row for row in rows}
    cancelled = {row["target"] for row in rows if row["target"] is not None}
    labels = [rows[row] for row in sorted(holding(events).values())]
    pairs: dict[frozenset[str], dict[str, str]] = defaultdict(dict)  # answers per pair, by annotator
    for label in labels:
        pairs[_pair(label)][label["annotator"]] = _answer(label)
    scripted = {row["annotator"] for row in rows if row["annotator_type"] == "scripted"}
    left_out = {name for name, weight in weights.items() if weight == 0}

    def of(name: str) -> dict[str, Any]:
        there = [row for row in rows if row["annotator"] == name and row["event_id"] not in cancelled]
        mine = [label for label in labels if label["annotator"] == name]
        checks = [row for row in there if row["kind"] == "check"]
        answers = [_answer(row) for row in mine]
        shown = (side_of(row["preference"], row["presented_swapped"]) for row in mine + checks)
        pressed = count_presses((name, side) for side in shown).get(name, Presses())
        catches = [(row, json.loads(row["extra"] or "{}")) for row in checks]
        said = Counter(_said(row) for row in [*mine, *(row for row in there if row["kind"] in ("skip", "flag"))])
        looked = [row["view_ms"] / 1000 for row in mine + checks if row["view_ms"] is not None]

        def agreeing(others: Iterable[str]) -> list[bool]:
            compared = set(others) - {name}
            said = [all_said for all_said in pairs.values() if name in all_said]
            return [one[name] == one[other] for one in said for other in compared & one.keys()]

        def first(row: _Row, extra: Mapping[str, Any]) -> str | None:
            """The earlier answer to a repeated pair, or the answer that replaced it."""
            before = by_id.get(extra.get("repeats"))
            if before is not None and before["event_id"] not in cancelled and before["preference"] is not None:
                return _answer(before)
            return pairs.get(_pair(row), {}).get(name)

        repeats = [(_answer(row), first(row, extra)) for row, extra in catches if extra.get("catch") == "repeat"]
        repeated = [again == before for again, before in repeats if before is not None]
        known = [
            side_of(row["preference"]) == side_of(extra["expected"])
            for row, extra in catches
            if extra.get("catch") != "repeat" and extra.get("expected") is not None
        ]
        with_people = agreeing({row["annotator"] for row in labels} - scripted - left_out)
        with_scripted = agreeing(scripted)
        return {
            "name": name,
            "labels": len(mine),
            **{kind.counted: said[kind.name] for kind in ANSWERS.values() if kind.counted},
            "seconds_per_label": numbers.median(looked) if looked else None,
            "left_share": pressed.left / pressed.decided if pressed.decided else None,
            "one_sided": pressed.one_sided is not None,
            "ties": _share(answer == TIE for answer in answers),
            "mostly_equal": pressed.mostly_equal,
            "catches": len(catches),
            "catch_accuracy": _share(known),
            "catch_accuracy_of": len(known),
            "self_consistency": _share(repeated),
            "self_consistency_of": len(repeated),
            "agreement": _share(with_people),
            "agreement_of": len(with_people),
            "agreement_with_scripted": _share(with_scripted),
            "agreement_with_scripted_of": len(with_scripted),
            **_errors((error_rates or {}).get(name)),
            "weight": weights.get(name, 1.0),
        }

    return _values(
        len(labels), agreement_in(events, weights), [of(name) for name in sorted({row["annotator"] for row in rows})]
    )


def of_one(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The part of `statistics` that one annotator may see: their own values, nothing about the others' quality."""
    own = [one for one in values["annotators"] if one["name"] == name]
    return _values(values["labels"], agreement([]), own)


def _values(labels: int, agreed: AnnotatorAgreement, annotators: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "labels": labels,
        "shared_pairs": agreed.units,
        "alpha": agreed.alpha,
        "alpha_words": agreed.words,
        "raw_agreement": agreed.raw,
        "chance_agreement": agreed.chance,
        "annotators": annotators,
    }


def _errors(of: ErrorRate | None) -> dict[str, Any]:
    known = (None,) * 4 if of is None else (of.rate, of.low, of.high, of.kind)
    return dict(zip(("error_rate", "error_rate_low", "error_rate_high", "error_rate_kind"), known, strict=True))


TIE = "equal"


def _answer(row: _Row) -> str:
    """The id of the preferred clip, or `TIE`; independent of the order of the clips."""
    side = side_of(row["preference"])
    return TIE if side == TIE else str(row[f"{side}_id"])


def _said(row: _Row) -> str | None:
    """The name of an answer; a skip that has none postpones its pair."""
    name: str | None = json.loads(row["extra"] or "{}").get("answer")
    return POSTPONED if row["kind"] == "skip" and name not in ANSWERS else name


def _pair(row: _Row) -> frozenset[str]:
    return frozenset((row["left_id"], row["right_id"]))


def _share(values: Iterable[bool]) -> float | None:
    """The fraction of true values; None if there are none."""
    taken = list(values)
    return sum(taken) / len(taken) if taken else None
