"""Another answer takes one declaration: its button, keys, event, what fits learn, and its count follow from it."""

import json
from typing import Any

import pytest
from playwright.sync_api import Page

from rlhf_ray.data.answers import ANSWERS, AnswerKind, answer_of
from rlhf_ray.labelling.answers import statistics
from rlhf_ray.store import PreferenceStore
from tests.labelling.at_the_page import answer, press, wait_saved
from tests.labelling.office import Office, pairs_of

WORDS = {"counted": "puzzling", "title": "Puzzling", "means": "pairs of two puzzling clips"}
PUZZLING = AnswerKind("puzzling", "Puzzling", "Both clips are puzzling", ("z",), preference=0.5, **WORDS)


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ANSWERS, PUZZLING.name, PUZZLING)


@pytest.mark.anyio
@pytest.mark.usefixtures("declared")
async def test_another_answer_is_stored_fitted_to_and_counted(office: Office) -> None:
    await office.ask(0, pairs_of(4))
    for each in ("puzzling", "left", "puzzling", "skip"):
        await office.give("ada", await office.next("ada"), each)
    rows = office.rows()
    assert [(row["kind"], row["preference"]) for row in rows][::2] == [("label", 0.5)] * 2
    assert [json.loads(row["extra"])["answer"] for row in rows] == ["puzzling", "left", "puzzling", "skip"]
    store = PreferenceStore(office.store.path)
    held = store.load()
    assert held.ties == 2  # what fits learn from
    assert store.tally().skipped == 0
    (ada,) = statistics(store.events(), {})["annotators"]
    assert (ada["labels"], ada["puzzling"], ada["skips"], ada["incomparable"]) == (3, 2, 1, 0)


@pytest.mark.slow
@pytest.mark.usefixtures("declared")
def test_the_page_has_its_button_and_key(visit: Any, desk: Any) -> None:
    page: Page = visit()
    answer(page, page.locator("[data-answer=puzzling]").click)
    press(page, "z")
    wait_saved(page)
    assert [given.answer for _, given, _ in desk.answers] == ["puzzling", "puzzling"]
    page.locator("[data-action=help]").click()
    assert "Both clips are puzzling" in page.locator("#keys").inner_text()


def test_a_stored_answer_that_is_no_longer_declared_trains_nothing() -> None:
    assert answer_of("puzzling").preference is None
    assert not answer_of("puzzling").returns


def test_preferences_are_of_the_pair_and_not_of_the_screen() -> None:
    of = {name: (kind.left_preference(False), kind.left_preference(True)) for name, kind in ANSWERS.items()}
    told = {"left": (1.0, 0.0), "equal": (0.5, 0.5), "right": (0.0, 1.0)}
    assert of.items() >= (told | dict.fromkeys(("incomparable", "skip", "flag"), (None, None))).items()
