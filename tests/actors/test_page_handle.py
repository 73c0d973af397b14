"""The labelling page is killed: it comes back where it was, and knows at once what it knew before."""

import os
import signal
import socket
from pathlib import Path
from typing import Any

import pytest
import ray
from playwright.sync_api import Browser, expect

from rlhf_ray.actors import people
from rlhf_ray.labelling.sessions import Sessions
from rlhf_ray.store import PreferenceStore
from tests.actors.people_ring import LABELLING, links, people_ring
from tests.actors.rings import Heard
from tests.labelling.at_the_page import press, wait_for_pair, wait_saved
from tests.labelling.conftest import browser as browser  # a fixture
from tests.labelling.person import Person
from tests.made_up import wait_for

pytestmark = pytest.mark.usefixtures("ray_session")


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
def test_a_killed_page_waits_for_its_port_and_open_pages_deliver_what_they_kept(
    tmp_path: Path, browser: Browser, caplog: pytest.LogCaptureFixture
) -> None:
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
