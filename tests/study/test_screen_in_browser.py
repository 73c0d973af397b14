"""The page in Chromium: the first screen is all that is seen, and a line leads to its evidence."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlhf_ray.study.page import write_page
from rlhf_ray.study.screen import NUMBERS, WORDS, count_numbers, count_words, first_screen
from rlhf_ray.study.section import Section, Statement
from rlhf_ray.study.verdict import Relations, reconcile
from tests.browsers import chromium
from tests.study.looks import LOOK

RELATIONS = Relations(lists=("IGNORES", "NOT ASKED"), not_asked={"gone": "distances: no true reward (--truth)"})


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("size", [(1280, 900), (390, 844)])
def test_the_first_screen_is_short_and_leads_to_the_evidence(tmp_path: Path, size: tuple[int, int]) -> None:
    figure = "exchanged: 71 % [68 %, 76 %] · all else 49 %"
    causes = [
        Statement(
            "uses",
            f"It is the long sentence number {i}.",
            9.0 - i,
            f"{i}",
            "s.a",
            "yes",
            f"LOOKS AT part {i}",
            figure,
            "strong",
        )
        for i in range(9)
    ]
    ignored = [
        Statement("ignores", f"{i}", 1.0, f"i{i}", "s.b", "no", f"feature {i}", list="IGNORES") for i in range(9)
    ]
    sections = [Section("s", "Some step", [*causes, *ignored]), Section("gone", "Gone", skipped="There is nothing.")]
    verdict = reconcile(sections, ("uses", "ignores"), relations=RELATIONS)
    screen = first_screen("reward of run 7 · rlhf_ray/CoinFlip-v0", verdict, sections, RELATIONS)
    path = write_page(LOOK, tmp_path, {"seed": 0}, verdict, sections, screen)
    with chromium() as browser:
        page = browser.new_page(viewport={"width": size[0], "height": size[1]})
        page.goto(path.as_uri())
        seen = page.inner_text("body")
        assert count_words(seen) <= WORDS
        assert count_numbers(seen) + len(screen.causes) <= NUMBERS  # with those that the list counts
        assert page.evaluate("document.documentElement.scrollWidth") <= size[0]
        assert page.evaluate("document.querySelector('.fold').getBoundingClientRect().bottom") <= size[1]
        evidence = page.get_by_role("heading", name="Some step")
        assert not evidence.is_visible()
        page.get_by_role("link", name="LOOKS AT part 1").click()
        assert evidence.is_visible()
