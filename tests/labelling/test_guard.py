"""What the guard of the labelling page lets through: hosts, origins, bodies; and the limiter."""

import pytest

from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.guard import LARGEST_BODY, Limiter
from rlhf_ray.settings import LabellingSettings
from tests.labelling.at_the_app import answer, ask, enter

HOSTILE = (
    "http://evil.example",
    "https://127.0.0.1",
    "http://127.0.0.1:9999",
    "http://localhost:3000",
    "null",
    "file://",
    "http://[",
    "",
)


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "169.254.169.254", "127.0.0.2"])
def test_other_hosts_are_turned_away(host, stranger, ada):
    for client in (stranger, ada):
        assert client.get("/", headers={"host": host}).status_code == 421
        assert client.get("/api/me", headers={"host": f"{host}:8000"}).status_code == 421


OWN = ("127.0.0.1", "localhost:1234", "LOCALHOST", "[::1]:8000", "label.example.org", "label.example.org:444")
BROKEN = ("", "a b", "localhost:99999999", "localhost:x", "user@localhost", "[::1", "localhost/")


@pytest.mark.parametrize(("host", "status"), [*((host, 200) for host in OWN), *((host, 400) for host in BROKEN)])
def test_own_and_given_hosts_are_served_and_broken_ones_refused(host, status, stranger):
    assert stranger.get("/", headers={"host": host}).status_code == status


def test_a_host_that_is_none_is_refused_at_the_start(desk, sessions):
    with pytest.raises(ValueError, match=r"http://x.*browsers show"):
        create_app(desk, sessions, LabellingSettings(hosts=("http://x",)), "")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://127.0.0.1:8000", "sec-fetch-site": "same-origin"}, 200),
        ({"origin": "https://label.example.org"}, 200),  # a given host may be another than a proxy sends
        *(({"origin": origin}, 403) for origin in HOSTILE),
        *(({"sec-fetch-site": site}, 403) for site in ("cross-site", "same-site", "none")),
    ],
)
def test_the_page_itself_may_change_something_and_other_sites_may_not(headers, status, ada, desk):
    lease = ask(ada)[0]["lease"]
    assert ada.post("/api/answers", json=answer(lease), headers=headers).status_code == status
    assert len(desk.answers) == (status == 200)


def test_other_programs_of_this_machine_are_other_sites(desk, sessions):
    """Also where the names of this machine were given, as `allowed_hosts` does."""
    settings = LabellingSettings(host="10.0.0.5", hosts=("label.example.org",))
    client = enter(create_app(desk, sessions, settings, ""), sessions, "ada")

    def code(origin, host):
        headers = {"origin": origin, "host": host}
        return client.post("/api/questions", json={}, headers=headers).status_code

    assert code("http://127.0.0.1:8000", "127.0.0.1:8000") == code("http://10.0.0.5:8000", "10.0.0.5:8000") == 200
    assert code("http://127.0.0.1:9999", "127.0.0.1:8000") == code("http://localhost:3000", "127.0.0.1:8000") == 403
    assert code("http://[::1]:9999", "[::1]:8000") == code("http://10.0.0.5:9999", "10.0.0.5:8000") == 403
    # Through proxies: one that names itself, with and without the browser's port, and one that does not.
    assert code("https://label.example.org", "label.example.org") == 200
    assert code("https://label.example.org:8443", "label.example.org") == 200
    assert code("https://label.example.org", "127.0.0.1:8000") == 200


def test_what_a_proxy_without_settings_is_refused_with_names_the_setting_that_helps(desk, sessions):
    def client(*hosts):
        return enter(create_app(desk, sessions, LabellingSettings(hosts=hosts), ""), sessions, "ada")

    for origin, host in (
        ("https://label.example.org", "label.example.org"),
        ("http://localhost:8080", "localhost:8080"),
    ):
        headers = {"origin": origin}  # and the Host of the server behind it, as nginx sends without proxy_set_header
        refused = client().post("/api/questions", json={}, headers=headers)
        assert refused.status_code == 403
        assert f"restart with --labelling.hosts {host}, or let it pass on the Host header" in refused.json()["detail"]
        assert client(host).post("/api/questions", json={}, headers=headers).status_code == 200
    refused = client().get("/", headers={"host": "label.example.org"})
    assert "restart with --labelling.hosts label.example.org" in refused.json()["detail"]
    # Another port of the name that the server has can't be given: what is left is the header.
    refused = client("127.0.0.1:9").post("/api/questions", json={}, headers={"origin": "http://127.0.0.1:9"})
    assert refused.status_code == 403
    assert "--labelling.hosts" not in refused.json()["detail"]


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", "", "application/jsonx"]
)
def test_forms_of_other_pages_are_no_json(kind, ada):
    reply = ada.post("/api/questions", content=b"{}", headers={"content-type": kind})
    assert reply.status_code == 415


def test_large_bodies_and_those_of_unknown_length_are_refused(ada):
    large = b'{"count": 1, "holding": []' + b" " * LARGEST_BODY + b"}"
    headers = {"content-type": "application/json"}
    assert ada.post("/api/questions", content=large, headers=headers).status_code == 413
    assert ada.post("/api/questions", content=iter([b"{}"]), headers=headers).status_code == 411
    assert (
        ada.post("/api/questions", content=b"{}", headers=headers | {"content-length": "9" * 5000}).status_code == 411
    )


def test_the_limiter_fills_again_and_forgets():
    now = [0.0]
    limiter = Limiter(rate=2, burst=3, clock=lambda: now[0], keys=2)
    assert [limiter.wait("a") for _ in range(4)] == [0, 0, 0, 0.5]
    assert limiter.wait("b") == 0
    now[0] = 0.5
    assert limiter.wait("a") == 0
    assert limiter.wait("a") == pytest.approx(0.5)
    limiter.wait("b")
    limiter.wait("c")  # "a" is the least used
    assert len(limiter._buckets) == 2
    assert limiter.wait("a") == 0
