"""What the answers tell about those who gave them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.labelling.statistics import alpha, statistics
from rlhf_ray.store import Event, PreferenceStore
from tests.made_up import some_fragments

CLIPS = some_fragments(8)
IDS = CLIPS.ids()

# Krippendorff (2011), "Computing Krippendorff's alpha-reliability", C: four observers, twelve units, missing data.
TEXTBOOK = [
    "1 2 3 3 2 1 4 1 2 . . .",
    "1 2 3 3 2 2 4 1 2 5 . 3",
    ". 3 3 3 2 3 4 2 2 5 1 .",
    "1 2 3 3 2 4 4 1 2 5 1 .",
]


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


def test_alpha_is_that_of_the_textbook() -> None:
    units = [[value for value in unit if value != "."] for unit in zip(*(row.split() for row in TEXTBOOK), strict=True)]
    assert alpha(units) == pytest.approx(0.743, abs=5e-4)
    assert alpha(["aa", "ab", "bb", "bb", "bb", "bb", "ab", "bb", "bb", "bb"]) == pytest.approx(
        1 - 19 * 4 / (400 - 16 - 256)
    )


UNITS = st.lists(st.lists(st.sampled_from("abc"), max_size=4), max_size=12)


@given(UNITS, st.randoms(), st.permutations("abc"))
def test_alpha_depends_on_no_order_and_no_name_and_is_1_only_for_perfect_agreement(
    units: list[list[str]], random: Any, names: list[str]
) -> None:
    found = alpha(units)
    renamed = [[dict(zip("abc", names, strict=True))[value] for value in unit] for unit in units]
    for unit in renamed:
        random.shuffle(unit)
    random.shuffle(renamed)
    assert alpha(renamed) == (found if found is None else pytest.approx(found))
    assert alpha([*units, ["a"], []]) == found  # nobody else spoke of them
    told = [set(unit) for unit in units if len(unit) >= 2]
    if found is None:
        assert len(set().union(*told)) < 2
    else:
        assert (found == 1.0) == all(len(said) == 1 for said in told)
        assert found <= 1.0


def test_without_events_nothing_is_told(tmp_path: Path) -> None:
    assert of(tmp_path, [])[0] == {"labels": 0, "alpha": None, "raw_agreement": None, "annotators": []}


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
    assert found["alpha"] == pytest.approx(alpha(["001", "32"]))
    assert each["anna"]["agreement"] == pytest.approx(1 / 3)
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
