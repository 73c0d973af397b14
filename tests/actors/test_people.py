"""The ring with people in it, with real Ray actors; and its page, which comes back when it is killed."""

import dataclasses
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import cloudpickle
import httpx
import pytest
import ray
from playwright.sync_api import expect

from rlhf_ray.actors import people
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.store import PreferenceStore
from tests.actors.rings import LABELLING, PEOPLE_S, Heard, at, links, people_ring
from tests.labelling.at_the_page import press, wait_for_pair, wait_saved
from tests.labelling.person import Person
from tests.made_up import labels_in, wait_for

pytestmark = pytest.mark.usefixtures("ray_session")


@contextmanager
def _person(ring: Any, folder: Path, who: str = "ada") -> Iterator[Person]:
    person, stopped = Person(links(ring)[who], folder / "store"), threading.Event()
    thread = person.start(stopped.is_set)
    try:
        yield person
    finally:
        stopped.set()
        thread.join(30)


def _all_once(person: Person, folder: Path) -> None:
    """Everything that was acknowledged is stored, once."""
    events = PreferenceStore(folder / "store", create=False).events()["event_id"].to_pylist()
    assert len(set(events)) == len(events)
    assert set(person.acknowledged) <= set(events)


@contextmanager
def _what_actors_are_made_from() -> Iterator[list[bytes]]:
    """Ray shows it to everyone with the cluster's token."""
    made: list[bytes] = []
    remote = ray.remote

    def watched(**options: Any) -> Any:
        def wrap(kind: type) -> Any:
            actor = remote(**options)(kind)
            return SimpleNamespace(
                remote=lambda *given: (made.append(cloudpickle.dumps(given)), actor.remote(*given))[1]
            )

        return wrap

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rlhf_ray.actors.ray_executor.ray.remote", watched)
        yield made


def _strangers_are_refused(ring: Any, folder: Path) -> None:
    """And whoever is shut out, at once; the others stay."""
    base = links(ring)["ada"].split("/#")[0]
    assert httpx.get(f"{base}/api/progress").status_code == 401
    assert httpx.get(f"{base}/api/progress", headers={"host": "evil.example"}).status_code in (400, 421)
    person, other = (Person(links(ring)[who], folder / "store") for who in ("bob", "ada"))
    sessions = Sessions.load(folder / "labelling.json")
    sessions.revoke("bob")
    sessions.save(folder / "labelling.json")
    assert person.client.get("/api/me").status_code == 401
    assert other.client.get("/api/me").status_code == 200


def _a_suspicion_reaches_the_owner(ring: Any, person: Person) -> None:
    """Whose answer the store has at once."""
    stored = labels_in(person.store)
    ring.people.suspect({(stored.pairs.ids[0], "ada"): 0.9})
    events = PreferenceStore(person.store, create=False).events()
    of_pair = dict(zip(events["pair_id"].to_pylist(), events["event_id"].to_pylist(), strict=True))
    doubts = lambda: person.client.get("/api/doubts").json()["doubts"]  # noqa: E731  before it, those of the last fit
    wait_for(lambda: [doubt["event_id"] for doubt in doubts()] == [of_pair[stored.pairs.ids[0]]])
    assert person.client.get("/api/progress").json()["doubts"] == 1
    (doubt,) = doubts()
    assert person.client.get(f"/api/films/{doubt['left']['id']}").status_code == 200
    person.post("/api/reviews", {"event_id": "e" * 32, "target": doubt["event_id"], "answer": "equal"})
    assert doubts() == []
    store = PreferenceStore(person.store)
    changed = store.load()
    assert changed is not None
    assert dict(zip(changed.pairs.ids, changed.preferences.tolist(), strict=True))[stored.pairs.ids[0]] == 0.5
    wait_for(lambda: ring.actors.read == store.tally().last)  # another fit


@pytest.mark.slow
def test_people_are_asked_strangers_are_not_and_the_reward_is_fitted_to_what_people_say(tmp_path: Path) -> None:
    with _what_actors_are_made_from() as made, people_ring(tmp_path) as ring, _person(ring, tmp_path) as person:
        kept = json.loads((tmp_path / "labelling.json").read_text())
        secrets = [bytes.fromhex(kept["secret"]), *(of["token"].encode() for of in kept["people"].values())]
        assert len(made) >= 4
        assert not [secret for secret in secrets if secret in b"".join(made)]
        suspected, suspect = [], ring.people.suspect
        ring.people.suspect = lambda suspicions: (suspect(suspicions), suspected.append(suspicions))
        first = ring.begin(200)
        assert first.fit is not None
        assert first.answered >= 6
        # Label 7 of 20 falls due at 1/28 of the way: 36 iterations of this pace.
        for i in range(3):
            ring.advance(at(i / 1000, 200 + i))
            time.sleep(0.3)
        wait_for(lambda: "Next pair in" in (person.client.get("/api/progress").json()["reason"] or ""))
        assert person.client.get("/api/progress").json()["first_labels"] is None
        ring.advance(at(1.0, 1000))
        wait_for(lambda: ring.answered >= 20)
        wait_for(lambda: ring.rounds_held == 5)
        assert ring.env_steps == 240
        episode = person.client.get("/api/episode").json()
        assert episode["steps"] == 20
        sheet = person.client.get(f"/api/films/{episode['film']['id']}")
        assert sheet.headers["content-type"] == "image/webp"
        progress = person.client.get("/api/progress").json()
        assert (progress["wanted"], progress["total_env_steps"]) == (20, 1000)
        # A fit that is still under way would replace the suspicion below with its own.
        stored = PreferenceStore(person.store)
        wait_for(lambda: ring.actors.read == stored.tally().last and len(suspected) == ring.version)
        _a_suspicion_reaches_the_owner(ring, person)
        _strangers_are_refused(ring, tmp_path)
    _all_once(person, tmp_path)
    stored = labels_in(tmp_path / "store")
    assert set(stored.annotators) == {"ada"}
    decided = stored.preferences != 0.5
    returns = stored.pairs.left.returns() - stored.pairs.right.returns()
    assert ((returns > 0) == (stored.preferences == 1))[decided].all()


@pytest.mark.soak  # in `make test`, another test kills the page, and test_local what the others share
@pytest.mark.parametrize("victim", ["page", "store", "trainer", "pool", "collector"])
def test_each_actor_may_be_killed_and_nothing_is_lost(tmp_path: Path, victim: str) -> None:
    with people_ring(tmp_path) as ring, _person(ring, tmp_path) as person:
        assert ring.begin(200) is not None
        actor = {"page": ring.people.page.actor, "collector": ring.source.collector}.get(victim)
        actor = actor or getattr(ring.actors, victim)
        pid = ray.get(actor.run(lambda self: os.getpid()))
        ring.advance(at(0.6, 700))
        os.kill(pid, signal.SIGKILL)
        ring.advance(at(1.0, 1000))

        def all_labels() -> bool:
            """As the agent does while it goes on: what a lost pool held is made anew."""
            ring.source.offer(at(1.0, 1000), 4, wait=True)
            ring.advance(at(1.0, 1000))
            return bool(ring.answered >= 20)

        wait_for(all_labels)
        wait_for(lambda: ring.rounds_held == 5)
    _all_once(person, tmp_path)
    stored = labels_in(tmp_path / "store")
    assert len(set(zip(stored.pairs.ids, stored.annotators, strict=True))) == len(stored)


@pytest.mark.soak
def test_waiting_for_people_can_be_stopped(tmp_path: Path) -> None:
    rounds = dataclasses.replace(PEOPLE_S, mode="synchronous")
    heard = Heard()
    with people_ring(tmp_path, rounds, callbacks=heard) as ring:
        started = time.monotonic()
        report = ring.begin(200, stop=lambda: time.monotonic() - started > 3)
        assert report.answered == 0
        assert report.fit is None
        assert all((wait.answered, wait.wanted) == (0, 6) for wait in heard.waits)


@pytest.mark.soak
def test_a_ring_goes_on_from_its_state_with_the_questions_that_are_open(tmp_path: Path) -> None:
    sessions = Sessions.create(LABELLING.annotators)
    with people_ring(tmp_path, sessions=sessions) as ring:
        with _person(ring, tmp_path) as person:
            assert ring.begin(200) is not None
        ring.advance(at(0.5, 600))
        held: list[Any] = []
        wait_for(lambda: bool(held.append(person.question()) or held[-1]))
        (tmp_path / "checkpoint").mkdir()
        ring.save(tmp_path / "checkpoint")
        answered = ring.answered
    with people_ring(tmp_path, sessions=sessions) as ring:
        ring.load(tmp_path / "checkpoint")
        assert ring.answered == answered
        again = Person(links(ring)["ada"], tmp_path / "store")
        (of,) = again.client.get("/api/statistics").json()["annotators"]
        assert of["error_rate"] == ring.people.error_rates["ada"].rate
        wait_for(lambda: again.question() is not None)
        again.answer(held[-1], "left")  # the lease is of before
        wait_for(lambda: ring.answered == answered + 1)


def _port(ring: Any) -> int:
    return int(links(ring)["ada"].split("/#")[0].rpartition(":")[2])


def _kill_and_take_the_port(ring: Any) -> socket.socket:
    """Kill the page; another process has its port the moment it is free."""
    pid, port = ray.get(ring.people.page.actor.run(lambda self: os.getpid())), _port(ring)
    os.kill(pid, signal.SIGKILL)
    taken = socket.socket()
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)

    def take() -> bool:
        try:
            taken.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True

    wait_for(take)
    taken.listen()
    return taken


@pytest.mark.slow
def test_a_killed_page_waits_for_its_port_and_open_pages_deliver_what_they_kept(tmp_path, browser, caplog):
    with people_ring(tmp_path) as ring:
        ring.start(200)
        wait_for(lambda: ring.source.share == 1.0)  # all pairs are there
        link = links(ring)["ada"]
        page = browser.new_page()
        page.goto(link)
        wait_for_pair(page)
        press(page, "ArrowLeft")
        wait_saved(page)
        before = page.locator("#numbers").inner_text()
        assert "of 20" in before
        assert "of 1,000" in before
        expect(page.locator("#episode")).to_be_visible(timeout=20_000)
        taken = _kill_and_take_the_port(ring)
        for _ in range(2):
            press(page, "ArrowLeft")
        expect(page.locator("#saved")).not_to_have_attribute("data-waiting", "0")
        wait_for(lambda: "Waiting up to" in caplog.text)
        assert links(ring)["ada"] == link
        taken.close()
        wait_saved(page)
        assert links(ring)["ada"] == link
        # PPO has not stepped meanwhile, and yet the page knows all that it knew.
        person = Person(link, tmp_path / "store")
        progress = person.client.get("/api/progress").json()
        assert (progress["wanted"], progress["total_env_steps"]) == (20, 1000)
        assert person.client.get("/api/episode").json()["steps"] == 20
        page.close()
    assert len(PreferenceStore(tmp_path / "store").events()) == 3


@pytest.mark.soak
def test_a_page_whose_port_stays_taken_says_its_new_link(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(people, "PORT_WITHIN", 0.5)
    sessions, heard = Sessions.create(LABELLING.annotators), Heard()
    with people_ring(tmp_path, sessions=sessions, callbacks=heard) as ring:
        ring.start(200)
        old = _port(ring)
        with _kill_and_take_the_port(ring):
            wait_for(lambda: heard.links)
            assert heard.links == [links(ring)]
            assert _port(ring) != old
            wait_for(Person(links(ring)["ada"], tmp_path / "store").question)
        port = _port(ring)
    # A run that is resumed serves it there, too: the settings' port is any.
    with people_ring(tmp_path, sessions=sessions) as ring:
        assert _port(ring) == port
