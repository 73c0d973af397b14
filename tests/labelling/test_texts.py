"""The page in other languages: every text is in the file, and what a file lacks or has too much is said."""

import ast
import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import BrowserContext, Page, expect

from rlhf_ray.data.answers import ANSWERS
from rlhf_ray.data.errors import SettingError
from rlhf_ray.labelling import texts as module
from rlhf_ray.labelling.app import page_files
from rlhf_ray.labelling.situation import BLOCKED, ENDINGS, about
from rlhf_ray.labelling.texts import Texts, checked, english, languages, load_texts
from tests.labelling.at_the_page import wait_for_pair
from tests.labelling.fake_desk import FakeDesk, served

PACKAGE = Path(module.__file__).parents[1]
STATIC = PACKAGE / "labelling" / "static"


def of_the_pages() -> set[str]:
    """Those that HTML and scripts pass to `t`, and those of the answers."""
    files = "".join(file.read_text() for kind in ("html", "js") for file in STATIC.glob(f"*.{kind}"))
    found = {json.loads(f'"{text}"') for text in re.findall(r'\bt\(\s*"((?:[^"\\]|\\.)*)"', files)}
    buttons = {words for kind in ANSWERS.values() for words in re.split(r" <i>|</i>", kind.button)}
    return (found | buttons | {text for kind in ANSWERS.values() for text in (kind.text, kind.title, kind.means)}) - {
        ""
    }


def of_the_server() -> set[str]:
    """What the server passes to `Texts`, and what it waits for."""
    found = {*ENDINGS.values(), *BLOCKED.values()}
    for file in [*(PACKAGE / "labelling").glob("*.py"), *(PACKAGE / "actors").glob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call):
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                named = [keyword.value for keyword in node.keywords if keyword.arg == "waiting_for"]
                given = [*(node.args[:1] if name == "texts" else []), *named]
            elif isinstance(node, ast.Assign | ast.AnnAssign) and "waiting_for" in ast.unparse(node).partition("=")[0]:
                given = [node.value] if node.value else []
            else:
                continue
            found |= {one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)}
    return found


def test_every_text_of_the_page_is_in_the_file_of_texts() -> None:
    known = set(english())
    assert of_the_pages() - known == set()
    assert of_the_server() - known == set()
    assert len(of_the_pages()) > 100
    assert len(of_the_server()) > 15


def test_the_file_has_no_text_that_the_page_lacks() -> None:
    source = "".join(
        file.read_text() for file in [*PACKAGE.rglob("labelling/*.py"), *(PACKAGE / "actors").glob("*.py")]
    )
    source += "".join(file.read_text() for file in (STATIC / "api.js", PACKAGE / "measure" / "agreement.py"))
    source = source.replace("{self.only}", "equal").replace("{GOOD_FOR // 86400}", "7")
    joined = re.sub(r'"\s*\n\s*f?"', "", source)  # of texts over several lines
    sides = {f"undefined: nothing varies, every answer is “{side}”" for side in ("left", "right")}
    elsewhere = set(english()) - of_the_pages() - of_the_server() - sides
    assert [text for text in elsewhere if text not in joined] == []


@pytest.mark.parametrize("name", languages())
def test_languages_in_the_box_are_complete(name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        texts = load_texts(name)
    assert not caplog.records
    assert texts.language == name
    if name != "en":
        assert set(texts.texts) == set(english())
        same = [text for text, said in texts.texts.items() if text == said and len(text.split()) > 3]
        assert same == []


def written(folder: Path, content: Any) -> str:
    file = folder / "texts.json"
    file.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
    return str(file)


def test_what_a_file_lacks_or_has_too_much_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    kept = {text: f"«{text}»" for text in english() if text not in ("Skip", "Undo")}
    file = written(tmp_path, {"language": "fr", "texts": kept | {"Undo": " ", "Skipp": "Passer"}})
    with caplog.at_level(logging.WARNING):
        texts = load_texts(file)
    assert [record.getMessage() for record in caplog.records] == [
        f"labelling.language: 2 texts that {file} lacks, so they stay English: 'Skip'; 'Undo'",
        f"labelling.language: 1 texts that {file} has but the page doesn't: 'Skipp'",
    ]
    assert (texts("Skip"), texts("Help")) == ("Skip", "«Help»")
    assert texts("{count} answers", count=3) == "«3 answers»"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{", "is not JSON"),
        ([], "copy .*en.json and translate"),
        ({"language": "fr"}, "copy .*en.json and translate"),
        ({"language": "fr", "texts": {"Skip": 1}}, "copy .*en.json and translate"),
        ({"language": "français!", "texts": {}}, "a code as in HTML"),
        ({"texts": {}}, "its language is None"),
        ({"language": "fr", "texts": {"{count} answers": "réponses"}}, r"the same names in braces: {count} differs"),
        ({"language": "fr", "texts": {"Skip": "Passer {count}"}}, r"the same names in braces: {count} differs"),
    ],
)
def test_a_file_that_can_not_be_used_is_one_line(tmp_path: Path, content: Any, said: str) -> None:
    file = written(tmp_path, content)
    with pytest.raises(SettingError, match=said) as refused:
        load_texts(file)
    assert str(refused.value).startswith(f"labelling.language is {file!r}")
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["xx", "German", "none.json", "/nowhere/fr.json"])
def test_a_language_that_there_is_not_is_one_line(name: str) -> None:
    with pytest.raises(SettingError, match=r"one of de, en, or a JSON file|the file can't be read"):
        load_texts(name)


def test_the_server_speaks_the_language_too() -> None:
    german = load_texts("de")
    assert about(125, german) == "etwa 2 min"
    assert german("Nothing to label right now: waiting for {what}.", what=german("the agent's first clips")) == (
        "Gerade gibt es nichts zu vergleichen. Es fehlt noch: die ersten Clips des Agenten."
    )
    assert german("{unknown} text") == "{unknown} text"


MARKED = Texts("x-marked", {text: f"⟦{text}⟧" for text in english()})
"""A language in which every text of the file is easy to tell from one that is not."""
SPOKEN = ("aria-label", "title", "alt", "placeholder")
"""HTML attributes with texts."""
FOUND = """(spoken) => {
    const found = [], walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    const others = "script, noscript, kbd, #instructions, #name, #people th";
    while (walk.nextNode()) if (!walk.currentNode.parentElement.closest(others)) found.push(walk.currentNode.data);
    for (const name of spoken) for (const one of document.querySelectorAll(`[${name}]`)) found.push(one.getAttribute(name));
    return [...found, document.title.replace("Moving squares", "")];
}"""


@pytest.fixture
def marked(context: BrowserContext, desk: FakeDesk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Page]:
    with served(desk, texts=MARKED) as site:
        page = context.pages[0]
        page.goto(site.link())
        yield page
        page.goto("about:blank")


def unmarked(page: Page) -> list[str]:
    """Texts on the page that are in no file of texts."""
    inner = [re.sub(r"⟦[^⟦⟧]*⟧", "", text) for text in page.evaluate(FOUND, list(SPOKEN))]
    left = [re.sub(r"⟦[^⟦⟧]*⟧|Moving squares", "", text) for text in inner]
    return [text for text in left if re.search(r"[^\W\d_]{2}", text)]


@pytest.mark.slow
def test_no_text_of_the_page_bypasses_the_file(marked: Page, desk: FakeDesk) -> None:
    page = marked
    wait_for_pair(page)
    assert page.locator("html").get_attribute("lang") == "x-marked"
    assert page.locator("h2.unseen").text_content() == "⟦Which clip is better?⟧"
    desk.told = {"first_labels": 40, "reason": None}
    page.keyboard.press("ArrowLeft")
    expect(page.locator("#saved")).to_have_text("⟦All saved⟧")
    page.keyboard.press("?")
    page.locator("[data-for=left]").click()
    expect(page.locator("#begins")).to_contain_text("⟦")
    assert unmarked(page) == []
    page.keyboard.press("Escape")
    page.keyboard.press("Escape")
    page.keyboard.press("z")
    expect(page.locator("#toast")).to_have_text("⟦Undone. Answer this pair again.⟧")
    desk.leases.clear()  # the server forgets them and rejects the answer
    page.keyboard.press("ArrowDown")
    expect(page.locator("#refused-count")).to_be_visible()
    rejected = [text for text in unmarked(page) if "on loan" not in text]  # the desk's own words
    assert rejected == []
    page.goto(page.url + "statistics")
    expect(page.locator("#notes")).to_contain_text("⟦")
    ours = r"needs|tentative|conclusions|disagree"
    assert [text for text in unmarked(page) if not re.search(ours, text)] == []


def test_the_page_in_german(context: BrowserContext, desk: FakeDesk) -> None:
    with served(desk, texts=load_texts("de")) as site:
        page = context.pages[0]
        page.goto(site.link())
        wait_for_pair(page)
        assert page.locator("html").get_attribute("lang") == "de"
        expect(page.locator("[data-answer=left]")).to_contain_text("A ist besser")
        expect(page.locator("#saved")).to_have_text("Alles gespeichert")
        expect(page.locator("#episode-text")).to_contain_text("12.288 Schritten")  # numbers too
        sides = [page.locator(f"#{side}").bounding_box() for side in ("left", "right")]
        assert sides[0] is not None
        assert sides[1] is not None
        assert sides[0]["x"] < sides[1]["x"]
        page.goto("about:blank")


def test_texts_of_a_file_are_text_and_not_code() -> None:
    texts = checked(
        {"language": "fr", "texts": {"Undo": "<img src=x onerror=alert(1)>", "Pause": '"</script><b>'}}, "x"
    )
    html = page_files(texts)["/"].decode()
    assert "<img" not in html
    assert 'aria-label="&#34;&lt;/script&gt;&lt;b&gt;"' in html
