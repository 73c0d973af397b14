"""All report pages: no tag is shown as text, and the paper has what the screen has."""

from __future__ import annotations

import re
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

import rlhf_ray
from rlhf_ray.study.page import render, write_page
from rlhf_ray.study.plots import bars
from rlhf_ray.study.screen import first_screen
from rlhf_ray.study.section import Check, Picture, Section, Statement, Table
from rlhf_ray.study.verdict import Relations, reconcile
from tests.browsers import chromium
from tests.study.looks import LOOK

PACKAGE = Path(rlhf_ray.__file__).parent
PAGES = sorted(
    path for path in PACKAGE.rglob("*.html") if re.search("extends .(evidence|screen).html", path.read_text())
)
ABOUT = (
    "agent environment seed started folder reward steps episodes effort first second sweep trials search schedule store shown "
    "comparisons runs"
)
KINDS = ("uses", "holds", "ignores", "rewards", "outcome", "warning")
RELATIONS = Relations(lists=("IGNORES", "NOT ASKED"))


def a_section(rows: int = 50) -> Section:
    said = [Statement(kind, f"Set `a.{kind}` to more.", 1.0, kind, "s", "yes", f"LOOKS AT `{kind}`") for kind in KINDS]
    image = bars(["a"], {"of it": [1.0]}, "share")
    return Section(
        "s",
        "Some step",
        said,
        [Check("the `step` ran", False, says="run `rlhf-ray fit`")],
        [Table(["name", "value"], [(f"row {i}", i) for i in range(rows)], "of `numbers`")],
        [Picture("p", image, "a `picture`")],
    )


class Text(HTMLParser):
    """The text of a page, as a reader sees it."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_data(self, data: str) -> None:
        self.found.append(data)


@pytest.mark.parametrize("template", PAGES, ids=lambda path: path.stem)
def test_no_page_shows_a_tag_as_text(template: Path) -> None:
    sections = [a_section(), Section("gone", "Gone", skipped="Give `--truth`.")]
    verdict = reconcile(sections, KINDS[:-1], relations=RELATIONS)
    answer = {"sentence": "They do.", "verdict": verdict}
    screen = first_screen("a reward", verdict, sections, RELATIONS)
    about = dict.fromkeys([*ABOUT.split(), "environment steps"], 1)
    page = render(template, about, sections, verdict=verdict, answer=answer, screen=screen)
    shown = " ".join(Text(page).found)
    assert "rlhf-ray fit" in shown
    assert not re.findall(r".{0,40}(?:</?\w+\W|&\w+;|`).{0,40}", shown)


@pytest.mark.slow
@pytest.mark.browser
def test_paper_has_all_words_and_pictures_in_light_colours(tmp_path: Path) -> None:
    section = a_section()
    verdict = reconcile([section], KINDS[:-1], relations=RELATIONS)
    screen = first_screen("a reward", verdict, [section], RELATIONS)
    path = write_page(LOOK, tmp_path, {"seed": 0}, verdict, [section], screen)
    with chromium() as browser:
        for scheme in ("light", "dark"):
            page = browser.new_page(color_scheme=scheme)
            page.goto(path.as_uri())
            words = page.evaluate("document.querySelector('main').textContent")
            glyphs, pictures = on_paper(page.pdf())
            assert glyphs >= 0.98 * len("".join(words.split()))
            assert pictures == page.locator("img").count() == 1
            page.emulate_media(media="print")
            colour = page.evaluate("getComputedStyle(document.body).color")
            assert max(map(int, re.findall(r"\d+", colour))) < 100


def on_paper(pdf: bytes) -> tuple[int, int]:
    """Count the glyphs and the pictures of a PDF of Chromium: four hexadecimal digits a glyph in its streams."""
    glyphs = 0
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        try:
            content = zlib.decompress(stream)
        except zlib.error:
            continue
        glyphs += sum(len(text) // 4 for text in re.findall(rb"<([0-9A-Fa-f]+)> Tj", content))
    return glyphs, pdf.count(b"/Subtype /Image")
