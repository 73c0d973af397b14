"""Krippendorff's alpha, against the textbook, another implementation, and answers whose agreement is known by construction."""

from __future__ import annotations

from typing import Any

import krippendorff
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlhf_ray.measure.agreement import agreement, alpha

# Krippendorff (2011), "Computing Krippendorff's alpha-reliability", C: four observers, twelve units, missing data.
TEXTBOOK = [
    "1 2 3 3 2 1 4 1 2 . . .",
    "1 2 3 3 2 2 4 1 2 5 . 3",
    ". 3 3 3 2 3 4 2 2 5 1 .",
    "1 2 3 3 2 4 4 1 2 5 1 .",
]


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


@given(UNITS)
def test_alpha_is_that_of_the_package(units: list[list[str]]) -> None:
    found = alpha(units)
    data = np.full((4, max(1, len(units))), np.nan)
    for at, unit in enumerate(units):
        data[: len(unit), at] = ["abc".index(value) for value in unit]
    if found is not None:
        second = krippendorff.alpha(reliability_data=data, level_of_measurement="nominal", value_domain=[0.0, 1.0, 2.0])
        assert found == pytest.approx(second)


def test_what_alpha_means_in_words() -> None:
    same, mixed = ["ll", "rr"], ["ll", "rr", "lr", "rl"]
    assert agreement(same * 10).words == "reliable"
    assert agreement(same * 9 + ["lr", "rl"]).words == "reliable"
    assert agreement(mixed * 50).words == "low: annotators disagree"  # small samples have an alpha slightly above 0
    assert agreement(["lr", "rl", *same, "lr"]).words == "no better than chance"
    assert agreement(["lr", "rl"] * 10).words == "below chance: annotators contradict each other"
    assert agreement(same * 8 + ["lr", "rl"] * 2).words == "low: annotators disagree"
    assert agreement(["l", ""]).words == "needs pairs labelled by two annotators"
    all_left = agreement(["ll"] * 5)
    assert (all_left.alpha, all_left.raw, all_left.chance, all_left.units) == (None, 1.0, 1.0, 5)
    assert all_left.words == "undefined: nothing varies, every answer is “l”"
    assert (agreement(mixed).raw, agreement(mixed).chance) == (0.5, pytest.approx(24 / 56))
