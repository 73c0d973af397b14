"""Labels without training: what outlives the end of the page and its next start."""

import secrets
import socket
import stat
import threading
import time
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from rlhf_ray.data.comparisons import Pairs
from rlhf_ray.labelling.collect import collect, sessions_file
from rlhf_ray.labelling.films import Film
from rlhf_ray.settings import LabellingSettings, SettingError
from rlhf_ray.store import PreferenceStore
from tests.labelling.office import films_of, pairs_of
from tests.labelling.person import Person


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlhf_ray.labelling.collect.LOOK_EVERY", 0.02)


def with_films(count: int, number: int) -> tuple[Pairs, list[Film]]:
    pairs = pairs_of(count, seed=number)
    return pairs, films_of(pairs)


def gather(store: Path, comparisons: int, work: Any, names: tuple[str, ...] = ("ada",)) -> dict[str, str]:
    """Serve the page while ``work`` does with ada's link what people do; the links."""
    given: dict[str, str] = {}
    over = threading.Event()

    def do(link: str) -> None:
        try:
            work(link)
        finally:
            over.set()

    def invite(links: dict[str, str]) -> None:
        given.update(links)
        threading.Thread(target=do, args=(links["ada"],)).start()

    settings = LabellingSettings(annotators=names, port=0, catch_share=0.0)
    held = collect(
        with_films,
        store,
        settings,
        comparisons=3,
        invite=invite,
        stop=over.is_set,
    )
    assert held == comparisons
    return given


def ask(person: Person) -> dict[str, Any]:
    """The next question, once there is one."""
    while (question := person.question()) is None:
        time.sleep(0.02)
    return question


def test_nobody_waits_for_the_second_opinions_of_somebody_who_only_has_the_page_open(tmp_path: Path) -> None:
    threads: list[threading.Thread] = []
    waited: list[bool] = []

    def label(links: dict[str, str]) -> None:
        Person(links["bob"], tmp_path / "labels").question()  # on his screen
        ada, deadline = Person(links["ada"], tmp_path / "labels"), time.monotonic() + 20
        while len(ada.acknowledged) < 3 and time.monotonic() < deadline:
            if (question := ada.question()) is not None:
                ada.answer(question, "left")
        waited.append(len(ada.acknowledged) < 3)

    def invite(links: dict[str, str]) -> None:
        threads.append(threading.Thread(target=label, args=(links,)))
        threads[0].start()

    settings = LabellingSettings(annotators=("ada", "bob"), port=0, catch_share=0.0, overlap_share=1.0)
    held = collect(with_films, tmp_path / "labels", settings, comparisons=3, invite=invite, stop=lambda: bool(waited))
    threads[0].join()
    assert (held, waited) == (3, [False])


def token(link: str) -> str:
    return link.split("#token=")[1]


def test_links_sessions_and_kept_answers_outlive_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "labels"
    left: dict[str, Any] = {}

    def label_one(link: str) -> None:
        person = Person(link, store)
        person.answer(ask(person), "left")
        left.update(cookies=dict(person.client.cookies), lease=ask(person)["lease"])

    def send_what_was_kept(link: str) -> None:
        base = link.split("/#")[0]
        answer = {"event_id": secrets.token_hex(16), "lease": left["lease"], "answer": "right"}
        reply = httpx.post(f"{base}/api/answers", json=answer, cookies=left["cookies"], headers={"origin": base})
        assert reply.status_code == 200, reply.text

    first = gather(store, 1, label_one)
    again = gather(store, 2, send_what_was_kept)
    assert first == again  # the port too
    kept = sessions_file(PreferenceStore(store))
    assert (
        kept == tmp_path / "labels.labelling.json"
    )  # beside the store: whoever is given the store is not given the links
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600


def test_a_page_whose_port_is_taken_moves_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def look(link: str) -> None:
        Person(link, tmp_path / "labels")

    before = gather(tmp_path / "labels", 0, look)["ada"]
    port = urlsplit(before).port
    with socket.create_server(("127.0.0.1", port)):
        after = gather(tmp_path / "labels", 0, look)["ada"]
    assert token(after) == token(before)
    moved = urlsplit(after).port
    assert [r.getMessage() for r in caplog.records if r.name.startswith("rlhf_ray")] == [
        f"Another process uses port {port}, the page's last port. The page is now at port {moved}."
    ]
    assert gather(tmp_path / "labels", 0, look)["ada"] == after  # where it was last


def test_where_nothing_can_be_kept_beside_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = PreferenceStore("memory://bucket/labels")
    assert sessions_file(store).parent == tmp_path / "state" / "rlhf_ray"


def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels.labelling.json").write_text("{}")
    with pytest.raises(SettingError, match=r"labels\.labelling\.json is not a file of annotators .*; delete it"):
        gather(tmp_path / "labels", 1, lambda link: None)


class Page(Person):
    """A person whose browser says which page asks."""

    page = "a" * 32

    def ask(self) -> dict[str, Any]:
        return self.post("/api/questions", {"count": 1, "holding": [], "page": self.page})


def collect_from(store: Path, work: Any, **arguments: Any) -> tuple[int, float]:
    """The number of comparisons, of 1, and the seconds from the end of ``work`` in a browser's stead to that of the server."""
    done: list[float] = []

    def do(link: str) -> None:
        work(Page(link, store))
        done.append(time.monotonic())

    threads: list[threading.Thread] = []

    def invite(links: dict[str, str]) -> None:
        threads.append(threading.Thread(target=do, args=(links["ada"],)))
        threads[0].start()

    settings = LabellingSettings(annotators=("ada",), port=0, catch_share=0.0)
    held = collect(with_films, store, settings, comparisons=1, invite=invite, **arguments)
    ended = time.monotonic()
    threads[0].join()
    return held, ended - done[0]


def answer_one(page: Page) -> dict[str, Any]:
    while not (questions := page.ask()["questions"]):
        time.sleep(0.02)
    page.answer(questions[0], "left")
    return questions[0]  # type: ignore[no-any-return]


@pytest.mark.slow
def test_the_server_stays_until_every_open_page_knows_that_the_work_is_done(tmp_path: Path) -> None:
    untold: list[int] = []

    def work(page: Page) -> None:
        answer_one(page)
        time.sleep(1.5)  # a page that asks late
        progress = page.ask()["progress"]
        assert progress["ended"]
        assert progress["over"].startswith("All labels are in")

    held, after = collect_from(tmp_path / "labels", work, on_end=untold.append)
    assert held == 1
    assert after < 1.0
    assert set(untold) == {1}


def test_the_server_waits_for_no_page_that_is_closed_or_has_vanished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close(page: Page) -> None:
        answer_one(page)
        page.post("/api/leases/release", {"leases": [], "page": page.page})

    assert collect_from(tmp_path / "closed", close)[1] < 1.0
    monkeypatch.setattr("rlhf_ray.labelling.open_pages.OPEN_FOR", 0.3)  # instead of a minute
    assert collect_from(tmp_path / "vanished", answer_one)[1] < 2.0


def test_an_answer_taken_back_at_the_end_is_asked_for_again(tmp_path: Path) -> None:
    def work(page: Page) -> None:
        question = answer_one(page)
        again = page.post("/api/undo", {"event_id": secrets.token_hex(16), "page": page.page})["question"]
        assert {again["left"]["id"], again["right"]["id"]} == {question["left"]["id"], question["right"]["id"]}
        time.sleep(1.2)  # counts are up to a second old
        page.answer(again, "right")
        while not page.ask()["progress"]["over"]:  # the server may close as soon as a page shows this
            time.sleep(0.02)

    assert collect_from(tmp_path / "labels", work)[0] == 1


def test_stopped_work_is_told_too(tmp_path: Path) -> None:
    stop = threading.Event()
    heard: list[str] = []

    def work(page: Page) -> None:
        page.ask()
        stop.set()
        while not (over := page.ask()["progress"]["over"]):
            time.sleep(0.02)
        heard.append(over)

    assert collect_from(tmp_path / "labels", work, stop=stop.is_set)[0] == 0
    assert heard[0].startswith("The run was stopped, and your answers are saved")
