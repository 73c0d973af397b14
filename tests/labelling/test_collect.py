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
    monkeypatch.setattr("rlhf_ray.labelling.collect.FAREWELL", 0.04)


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


def test_further_people_leave_the_links_of_the_others_as_they_are(tmp_path: Path) -> None:
    store = tmp_path / "labels"

    def label(link: str) -> None:
        person = Person(link, store)
        person.answer(ask(person), "left")

    first = gather(store, 1, label)
    both = gather(store, 2, label, ("ada", "bob"))
    assert token(both["ada"]) == token(first["ada"]) != token(both["bob"])


def test_where_nothing_can_be_kept_beside_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = PreferenceStore("memory://bucket/labels")
    assert sessions_file(store).parent == tmp_path / "state" / "rlhf_ray"


def test_a_file_that_holds_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "labels.labelling.json").write_text("{}")
    with pytest.raises(SettingError, match=r"labels\.labelling\.json is not a file of annotators .*; delete it"):
        gather(tmp_path / "labels", 1, lambda link: None)
