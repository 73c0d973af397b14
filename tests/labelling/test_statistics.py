"""What the answers tell about those who gave them."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from rlhf_ray.labelling.statistics import statistics
from rlhf_ray.measure.agreement import alpha
from rlhf_ray.measure.error_rates import ErrorRate
from rlhf_ray.store import Event, PreferenceStore
from tests.made_up import some_fragments

CLIPS = some_fragments(8)
IDS = CLIPS.ids()


def label(
    name: str, by: str, preference: float, pair: tuple[int, int] = (0, 1), kind: Any = "label", **more: Any
) -> Event:
    return Event(name, kind, by, IDS[pair[0]], IDS[pair[1]], preference, **more)


def check(name: str, by: str, preference: float, pair: tuple[int, int] = (0, 1), **extra: Any) -> Event:
    return label(name, by, preference, pair, "check", extra=extra)


def of(
    path: Path, events: list[Event], weights: dict[str, float] | None = None
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """All statistics, and those of each annotator by name."""
    store = PreferenceStore(path)
    store.record(events, CLIPS)
    found = statistics(store.events(), weights or {})
    json.dumps(found, allow_nan=False)
    return found, {one["name"]: one for one in found["annotators"]}


def test_without_events_nothing_is_told(tmp_path: Path) -> None:
    found = of(tmp_path, [])[0]
    assert (found["labels"], found["alpha"], found["raw_agreement"], found["annotators"]) == (0, None, None, [])
    assert found["alpha_words"] == "needs pairs labelled by two annotators"


def test_the_agreement_is_that_of_people_on_shared_pairs_whichever_clip_comes_first(tmp_path: Path) -> None:
    events = [
        *(label("a1", "anna", 1.0), label("a2", "anna", 0.0, (2, 3)), label("a3", "anna", 0.5, (4, 5))),
        *(label("b1", "bert", 1.0), label("b2", "bert", 0.0, (3, 2)), label("b3", "bert", 1.0, (6, 7))),
        *(label("c1", "cora", 0.0), label("o1", "oracle", 1.0, annotator_type="scripted")),
        label("o2", "oracle", 1.0, (4, 5), annotator_type="scripted"),
    ]
    found, each = of(tmp_path, events)
    assert found["labels"] == 9
    assert found["raw_agreement"] == pytest.approx(1 / 4)
    assert found["alpha"] == pytest.approx(alpha(["llr", "rl"]))  # of the pair, and not which of eight clips
    assert found["shared_pairs"] == 2
    assert each["anna"]["agreement"] == pytest.approx(1 / 3)
    assert [each[name]["agreement_of"] for name in ("anna", "bert", "cora", "oracle")] == [3, 3, 2, 4]
    assert each["cora"]["agreement"] == 0.0
    assert [each[name]["agreement_with_scripted"] for name in ("anna", "bert", "cora", "oracle")] == [
        0.5,
        1.0,
        0.0,
        None,
    ]
    assert each["anna"]["ties"] == pytest.approx(1 / 3)
    assert each["oracle"]["labels"] == 2


def test_whoever_is_left_out_is_compared_with_others_but_not_they_with_them(tmp_path: Path) -> None:
    events = [label("a", "anna", 1.0), label("b", "bert", 1.0), label("c", "cora", 0.0)]
    found, each = of(tmp_path, events, {"cora": 0.0, "bert": 2.0})
    assert found["raw_agreement"] == 1.0
    assert [each[name]["agreement"] for name in ("anna", "bert", "cora")] == [1.0, 1.0, 0.0]
    assert [each[name]["weight"] for name in ("anna", "bert", "cora")] == [1.0, 2.0, 0.0]


def test_the_side_bias_is_of_the_sides_as_shown_and_the_pace_the_median(tmp_path: Path) -> None:
    events = [
        label("a", "anna", 1.0, view_ms=1000),
        label("b", "anna", 0.0, (2, 3), presented_swapped=True, view_ms=2000),
        label("c", "anna", 1.0, (4, 5), presented_swapped=True, view_ms=9000),
        label("d", "anna", 0.5, (6, 7)),
    ]
    _, each = of(tmp_path, events)
    assert each["anna"]["left_share"] == pytest.approx(2 / 3)
    assert each["anna"]["seconds_per_label"] == 2.0


def test_answers_of_stores_without_the_shown_side_are_as_stored(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([label("a", "anna", 1.0), label("b", "anna", 0.0, (2, 3))], CLIPS)
    events = store.events()
    at = events.column_names.index("presented_swapped")
    unknown = events.set_column(at, "presented_swapped", pa.nulls(len(events), pa.bool_()))
    assert statistics(unknown, {})["annotators"][0]["left_share"] == 0.5


def test_catches_tell_of_accuracy_and_repeats_of_consistency(tmp_path: Path) -> None:
    events = [
        label("first", "anna", 1.0),
        check("same", "anna", 0.5, (2, 2), catch="same", expected=0.5),
        check("same2", "anna", 1.0, (3, 3), catch="same", expected=0.5),
        check("known", "anna", 0.0, (4, 5), catch="known", expected=0.0),
        check("again", "anna", 1.0, catch="repeat", expected=1.0, repeats="first"),
        check("turned", "anna", 1.0, (1, 0), catch="repeat", repeats="first"),
        check("lost", "anna", 1.0, (6, 7), catch="repeat", repeats="nothing"),
        check("mine", "bert", 1.0, (4, 5), catch="known", expected=0.0),
        Event("undo", "retract", "bert", target="mine"),
    ]
    found, each = of(tmp_path, events)
    assert found["labels"] == 1  # checks are none
    assert (each["anna"]["catches"], each["anna"]["labels"]) == (6, 1)
    assert each["anna"]["catch_accuracy"] == pytest.approx(2 / 3)
    assert each["anna"]["self_consistency"] == 0.5
    assert (each["anna"]["catch_accuracy_of"], each["anna"]["self_consistency_of"]) == (3, 2)
    assert (each["bert"]["catches"], each["bert"]["catch_accuracy"]) == (0, None)


def test_a_repeat_is_compared_with_what_took_the_place_of_a_retracted_answer(tmp_path: Path) -> None:
    events = [
        label("first", "anna", 1.0),
        check("again", "anna", 0.0, catch="repeat", repeats="first"),
        Event("undo", "retract", "anna", target="first"),
    ]
    assert of(tmp_path, events)[1]["anna"]["self_consistency"] is None
    assert of(tmp_path, [label("second", "anna", 0.0)])[1]["anna"]["self_consistency"] == 1.0


def test_only_what_holds_counts(tmp_path: Path) -> None:
    events = [
        label("a", "anna", 1.0, view_ms=90_000),
        label("b", "anna", 0.0, view_ms=1000),  # a newer answer to the same pair
        label("c", "anna", 1.0, (2, 3)),
        Event("d", "retract", "anna", target="c"),
        Event("e", "skip", "anna", IDS[4], IDS[5], extra={"answer": "skip"}),
        Event("f", "skip", "anna", IDS[4], IDS[5], extra={"answer": "incomparable"}),
        Event("g", "skip", "anna", IDS[4], IDS[5]),
        Event("h", "flag", "anna", IDS[4], IDS[5]),
        Event("i", "retract", "anna", target="h"),
    ]
    found, each = of(tmp_path, events)
    assert found["labels"] == 1
    anna = each["anna"]
    assert (anna["labels"], anna["skips"], anna["incomparable"]) == (1, 2, 1)
    assert (anna["seconds_per_label"], anna["left_share"], anna["agreement"]) == (1.0, 0.0, None)


def test_the_newest_fits_error_rates_are_beside_the_answers(tmp_path: Path) -> None:
    store = PreferenceStore(tmp_path)
    store.record([label("a1", "anna", 1.0), label("b1", "bert", 0.0)], CLIPS)
    found = statistics(store.events(), {}, {"anna": ErrorRate(0.85, 0.7, 0.95, 40, 0.999)})
    anna, bert = found["annotators"]
    names = ("error_rate", "error_rate_low", "error_rate_high", "error_rate_kind")
    assert [anna[name] for name in names] == [0.85, 0.7, 0.95, "inverted"]
    assert [bert[name] for name in names] == [None] * 4
