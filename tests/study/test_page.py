"""The page of a study: what it shows, once, without tags, on the screen and on paper; and its twin."""

from __future__ import annotations

import base64
import json
import math
import re
import zlib
from contextlib import suppress
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray.measure.intervals import MeanEstimate
from rlhf_ray.study import Check, Effect, Picture, Screen, Section, Table, screen_of, write_page
from rlhf_ray.study.page import GAP, HEIGHT, NAME, WIDTH, bars, numeric, render, tabled
from rlhf_ray.study.section import figure
from tests.browsers import chromium
from tests.study.parts import BAD, EFFECTS, GOOD, OPEN, picture, section

GONE = Section("gone", "Gone", skipped="Give `--truth`.")


def screen(*checks: Check, **parts: Any) -> Screen:
    return Screen("test report", "A `reward`", "seed 0", checks, **parts)


class Shown(HTMLParser):
    """The tags of a page, and its text outside styles as a reader sees it."""

    def __init__(self, page: str):
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] != ["style"]:
            self.texts.append(data)


def test_no_tag_and_no_backtick_is_shown_as_text() -> None:
    page = render(
        {"seed": 0}, [section(), GONE], screen(GOOD, BAD, effects=[EFFECTS], tables=[Table(["`x`"], [["`y`"]])])
    )
    text = re.sub("A `reward`|`x`|`y`", "", " ".join(Shown(page).texts))  # names, as they are
    assert "rlhf-ray fit" in text
    assert "--truth" in text
    assert not re.findall(r".{0,40}(?:</?\w+\W|&\w+;|`).{0,40}", text)


def test_texts_that_look_like_tags_are_texts() -> None:
    bad = "<script>x</script> `<code>` & <b>"
    row = Effect(bad, {bad: MeanEstimate(1.0, 0.5, 1.5)}, parts=(Effect(bad, {}),))
    effects = replace(EFFECTS, title=bad, caption=bad, columns=(bad,), rows=(row,))
    check = Check(bad, False, 1.0, bound=bad, remedy=bad)
    table, drawn = Table([bad], [[bad]], bad), replace(picture(), caption=bad, crossed_out=bad)
    told = Section("s", bad, [check], [effects], [table], [drawn], [bad])
    first = replace(screen(check, effects=[effects]), heading=bad)
    page = render({bad: bad}, [told, replace(told, name="gone", skipped=bad)], first)
    shown = Shown(page)
    assert "script" not in shown.tags
    assert shown.tags.count("b") == 1  # the check's figure
    assert "<script>x</script>" in " ".join(shown.texts)


def test_what_the_first_screen_shows_is_on_the_page_once() -> None:
    first, other, told = picture("first", 10), picture("other", 90), section()
    whole = replace(told, pictures=[first, other], name="whole", title="Whole")
    empty = Section("empty", "Only on the screen", [GOOD], pictures=[first])
    page = render({}, [empty, whole], screen(GOOD, pictures=[first]))
    for image in (first, other):
        assert page.count(base64.b64encode(image.image).decode()) == 1
    assert page.count('class="card yes"') == 1
    assert 'id="whole"' in page
    assert "Only on the screen" not in page


@pytest.mark.parametrize(
    ("checks", "answer"),
    [
        ((GOOD,), "Use it"),
        ((GOOD, OPEN), "Look at accuracy"),
        ((GOOD, OPEN, BAD, replace(BAD, name="x")), "Don't use it as it is: the `step` ran; x"),
    ],
)
def test_the_answer_follows_from_the_checks(checks: tuple[Check, ...], answer: str, tmp_path: Path) -> None:
    assert screen(*checks).answer == answer
    page = write_page(tmp_path, {"seed": 3}, [section(2), GONE], screen(*checks))
    twin = json.loads(page.with_suffix(".json").read_text())
    assert (twin["kind"], twin["answer"], twin["about"]) == ("test report", answer, {"seed": 3})
    told, gone = twin["sections"]
    assert told["values"] == {"a": [1, None]}
    assert told["effects"][0]["rows"][0]["figures"]["learned"] == {"mean": 1.0, "low": 0.5, "high": 1.5}
    assert [check["passed"] for check in told["checks"]] == [True, None, False]
    assert gone["skipped"] == "Give `--truth`."


def test_the_screen_as_text_has_each_figure_with_its_bound() -> None:
    assert screen(GOOD, OPEN, BAD, effects=[EFFECTS]).text.splitlines() == [
        "A `reward`",
        "Don't use it as it is: the `step` ran",
        "return: 5.00 (4.00 to 6.00 · keeps > 3)",
        "accuracy: 0.560 (0.450 to 0.670 · undecided: > 0.5). collect more (`preferences.comparisons`)",
        "the `step` ran: no. run `rlhf-ray fit`",
        "What it looks at",
        "  whole: learned 1.00 [0.50, 1.50]",
        "  b: learned −0.50 [−0.75, −0.25], true 0.25",
        "  unknown: –",
        "  nothing known: –",
    ]


def test_the_screen_of_sections_has_the_first_ones_checks_tables_of_effects_and_named_pictures() -> None:
    second = Section("t", "T", [BAD], pictures=[picture("q", 7)])
    made = screen_of("kind", "heading", "under", [GONE, section(), second], ["q", "missing", "p", "q"])
    assert list(made.checks) == [GOOD, OPEN, BAD]
    assert list(made.effects) == [EFFECTS]
    assert [each.name for each in made.pictures] == ["q", "p"]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"), (math.nan, "–"), (True, "yes"), (0, "0"), (-7, "−7"), (12_345, "12,345"), (0.0, "0"), (-187.25, "−187"),
        (0.56789, "0.568"), (1.0, "1.00"), (0.00123, "0.0012"), (0.00012, "1.2e−04"), (54_321.6, "54,322"), (2e7, "2.0e+07"),
        ("x", "x"),
    ],
)  # fmt: skip
def test_figures_are_short(value: object, text: str) -> None:
    assert figure(value) == text


def test_rows_are_sorted_by_size_parts_follow_and_what_is_unknown_is_a_dash() -> None:
    table = tabled(EFFECTS)
    assert list(table.columns) == ["", "learned", "true", "control"]
    assert [list(row) for row in table.rows] == [
        ["whole", "1.00 [0.50, 1.50]", None, None],
        ["\N{EM SPACE}larger", None, "−0.20", None],
        ["\N{EM SPACE}smaller", None, "0.10", None],
        ["b", "−0.50 [−0.75, −0.25]", "0.25", 0.125],
        ["unknown", None, None, None],
        ["nothing known", None, None, None],
    ]
    assert numeric(table) == {1, 2, 3}
    assert numeric(Table(["a", "b", "c"], [["1", "x", "−1 [−2, 0]"], ["2", 1, None]])) == {2}


def test_bars_start_at_zero_and_end_at_their_figures() -> None:
    """From the least end, −0.75, to the largest, 1.5, the picture is as wide as there is room beside the names."""
    drawn = str(bars(EFFECTS))

    def x(value: float) -> str:
        return f"{NAME + (value + 0.75) * (WIDTH - NAME - 10) / 2.25:.1f}"

    def width(value: float) -> str:
        return f"{abs(value) * (WIDTH - NAME - 10) / 2.25:.1f}"

    block = 2 * HEIGHT
    second = block + GAP
    expected = [
        ("c0", x(0.0), "1", width(1.0)),
        ("c0", x(-0.5), str(second + 1), width(0.5)),
        ("c1", x(0.0), str(second + HEIGHT + 1), width(0.25)),
    ]
    found = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="(\d+)" width="([\d.]+)"', drawn)
    assert found == expected
    assert f'<path class="zero" d="M{x(0.0)} 0V{4 * second}"/>' in drawn
    assert f"M{x(0.5)} {HEIGHT / 2 - 0.5:.1f}H{x(1.5)}" in drawn
    assert re.findall(r'class="control" d="M([\d.]+) (\d+)v(\d+)"', drawn) == [(x(0.125), str(second), str(block))]
    assert "nan" not in drawn
    assert "learned: 1.00 [0.50, 1.50]" in drawn
    assert "<rect" not in str(bars(replace(EFFECTS, rows=EFFECTS.rows[-1:])))


def test_a_picture_says_what_it_is() -> None:
    assert (picture().kind, picture(film=True).kind) == ("png", "webp")
    page = render({}, [], screen(pictures=[picture(film=True)]))
    assert "data:image/webp;base64," in page
    assert "Don't trust this picture: unfaithful" in " ".join(
        Shown(render({}, [Section("s", "S", pictures=[Picture("x", b"", "x", "unfaithful")])], screen())).texts
    )


@pytest.mark.slow
@pytest.mark.browser
def test_the_page_is_accessible_and_paper_has_all_words_and_pictures_in_light_colours(tmp_path: Path) -> None:
    from axe_playwright_python.sync_playwright import Axe

    shown = screen(GOOD, OPEN, BAD, effects=[EFFECTS], pictures=[picture("first", 9)])
    path = write_page(tmp_path, {"seed": 0}, [section(), GONE], shown)
    with chromium() as browser:
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme, viewport={"width": 390, "height": 844})
            page.goto(path.as_uri())
            assert page.evaluate("document.documentElement.scrollWidth") <= 390
            assert Axe().run(page).response["violations"] == []
            words = page.evaluate("document.querySelector('main').innerText")
            page.set_viewport_size({"width": 1280, "height": 900})
            glyphs, pictures = on_paper(page.pdf())
            assert glyphs >= 0.98 * len("".join(words.split()))
            assert pictures == page.locator("img").count() == 2
            page.emulate_media(media="print")
            colour = page.evaluate("getComputedStyle(document.body).color")
            assert max(map(int, re.findall(r"\d+", colour))) < 100


def on_paper(pdf: bytes) -> tuple[int, int]:
    """Count the glyphs and the pictures of a PDF of Chromium: four hexadecimal digits a glyph in its streams."""
    glyphs = 0
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with suppress(zlib.error):
            texts = re.findall(rb"<([0-9A-Fa-f]+)> Tj", zlib.decompress(stream))
            glyphs += sum(len(text) // 4 for text in texts)
    return glyphs, pdf.count(b"/Subtype /Image")
