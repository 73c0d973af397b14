"""The page's app: who may ask for what, hosts, origins, bodies, limits, and what the desk says."""

import re
from dataclasses import asdict
from functools import partial

import pytest
from fastapi.testclient import TestClient

from rlhf_ray.labelling.app import create_app
from rlhf_ray.labelling.guard import LARGEST_BODY, Limiter
from rlhf_ray.labelling.sessions import HEADER
from rlhf_ray.settings import LabellingSettings
from tests.labelling.conftest import enter
from tests.labelling.fake_desk import FakeDesk

FILM = "a" * 64
EVENT = "0" * 31 + "1"


def answer(lease, event=EVENT, **changes):
    return {"event_id": event, "lease": lease, "answer": "left", **changes}


def ask(client, count=1):
    return client.post("/api/questions", json={"count": count, "holding": []}).json()["questions"]


@pytest.fixture
def no_time(monkeypatch):
    """For the limits no time passes: what they let through does not depend on how busy this machine is."""
    for module in ("app", "guard"):
        monkeypatch.setattr(f"rlhf_ray.labelling.{module}.Limiter", partial(Limiter, clock=lambda: 0.0))


# Who may ask for what


def test_every_call_but_entering_needs_a_session(app, stranger):
    operations = [(m, p) for p, item in app.openapi()["paths"].items() for m in item]
    assert len(operations) >= 13
    for method, path in operations:
        if (method, path) == ("post", "/api/session"):
            continue
        url = path.replace("{film_id}", FILM)
        for body in (b"{}", b"broken"):
            reply = stranger.request(method, url, content=body, headers={"content-type": "application/json"})
            assert reply.status_code == 401, (method, path)


def test_what_nobody_has_written_yet_needs_one_too(stranger, ada):
    assert stranger.get("/api/new").status_code == 401
    assert ada.get("/api/new").status_code == 404


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/openapi.json"])
def test_the_schema_is_not_served(path, stranger, ada):
    assert stranger.get(path).status_code == ada.get(path).status_code == 404


def test_a_session_is_also_a_cookie_that_other_sites_do_not_get(stranger, sessions):
    reply = stranger.post("/api/session", json={"token": sessions.people["ada"].token})
    cookie = reply.headers["set-cookie"]
    session = reply.json().pop("session")
    assert reply.json() == {"name": "ada", "owner": True, "session": session}
    assert sessions.who(session) == sessions.people["ada"]
    assert cookie.split(";")[0] == f"{sessions.cookie_name}={session}"
    assert {"HttpOnly", "SameSite=strict", "Path=/"} <= set(cookie.split("; "))
    assert "Secure" not in cookie
    assert sessions.people["ada"].token not in cookie


def test_behind_tls_the_cookie_stays_there(app, sessions):
    client = TestClient(app, base_url="https://label.example.org")
    assert "Secure" in client.post("/api/session", json={"token": sessions.people["ada"].token}).headers["set-cookie"]


def test_leaving_deletes_the_own_cookie_only(ada, sessions):
    assert ada.get("/api/me").json()["name"] == "ada"
    as_grace = {HEADER: sessions.sign(sessions.people["grace"])}
    assert ada.request("DELETE", "/api/session", json={}, headers=as_grace).status_code == 200
    assert ada.get("/api/me").json()["name"] == "ada"
    assert ada.request("DELETE", "/api/session", json={}).status_code == 200
    assert ada.get("/api/me").status_code == 401


def test_a_request_is_of_the_session_in_its_header_whatever_the_cookie(app, ada, sessions, desk):
    """Two tabs of one browser share its cookie: the one that signed in first would label as the other."""
    grace = {HEADER: sessions.sign(sessions.people["grace"])}
    routes = {(method.upper(), path) for path, methods in app.openapi()["paths"].items() for method in methods}
    assert len(routes) == 15
    for method, path in routes - {("POST", "/api/session")}:  # each call, those to come included
        for nobodys in ("", "x", sessions.people["grace"].token):
            assert ada.request(method, path, json={}, headers={HEADER: nobodys}).status_code == 401
    assert ada.get("/api/me", headers=grace).json()["name"] == "grace"
    lease = ada.post("/api/questions", json={"count": 1}, headers=grace).json()["questions"][0]["lease"]
    assert ada.post("/api/answers", json=answer(lease), headers=grace).status_code == 200
    assert [name for name, _, _ in desk.answers] == ["grace"]


def test_guessing_tokens_gets_slow_and_locks_nobody_out(no_time, stranger, sessions):
    tried = [stranger.post("/api/session", json={"token": f"guess {k}"}) for k in range(12)]
    assert [reply.status_code for reply in tried] == [401] * 10 + [429] * 2
    assert int(tried[-1].headers["retry-after"]) >= 1
    assert stranger.post("/api/session", json={"token": sessions.people["ada"].token}).status_code == 200


def test_the_name_comes_from_the_session_alone(ada, desk):
    lease = ask(ada)[0]["lease"]
    assert ada.post("/api/answers", json=answer(lease, annotator="grace")).status_code == 422
    assert ada.post("/api/answers", json=answer(lease)).json() == {"saved": True}
    assert [name for name, _, _ in desk.answers] == ["ada"]


def test_only_the_owner_weighs(ada, grace, desk):
    assert grace.post("/api/weights", json={"annotator": "ada", "weight": 0}).status_code == 403
    assert ada.post("/api/weights", json={"annotator": "hurried", "weight": 0.5}).status_code == 200
    assert desk.weights == {"hurried": 0.5}
    assert ada.post("/api/weights", json={"annotator": "nobody", "weight": 0.5}).status_code == 404
    assert "nobody" not in desk.weights
    for weight in ("-1", "2", "NaN", "Infinity", "1e999", '"x"', "null"):
        reply = ada.post(
            "/api/weights",
            content=f'{{"annotator": "ada", "weight": {weight}}}',
            headers={"content-type": "application/json"},
        )
        assert reply.status_code == 422, weight


@pytest.mark.parametrize("method", ["PUT", "PATCH", "OPTIONS", "TRACE", "FOO"])
def test_other_methods_are_refused(method, ada):
    assert ada.request(method, "/api/questions").status_code == 405


def test_every_answer_keeps_other_pages_out(stranger, ada, desk):
    ask(ada)
    strangers = ((stranger, path) for path in ("/", "/static/main.js", "/api/me", "/nowhere"))
    for client, path in (*strangers, (ada, "/api/me")):
        headers = client.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert headers["x-frame-options"] == "DENY"
        assert headers["cross-origin-resource-policy"] == "same-origin"
        assert "access-control-allow-origin" not in headers


def test_what_may_be_kept(stranger, ada, desk):
    film = ask(ada)[0]["left"]["id"]
    assert ada.get("/api/me").headers["cache-control"] == "no-store"
    reply = ada.get(f"/api/films/{film}")
    assert reply.content == desk.sheets[film]
    assert reply.headers["content-type"] == "image/webp"
    assert {"private", "immutable"} <= set(reply.headers["cache-control"].split(", "))
    page = stranger.get("/static/main.js")
    assert page.headers["content-type"].startswith("text/javascript")
    assert stranger.get("/static/main.js", headers={"if-none-match": page.headers["etag"]}).status_code == 304


# Broken and hostile requests


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[" * 16000,
        b"\xff\xfe",
        b"null",
        b"[]",
        b'{"count": NaN}',
        b'{"count": 1e400}',
        b'{"holding": ["\\ud800"]}',
        b'{"\\ud800": 1}',
        b'{"holding": [""]}',
        b'{"count": 0}',
        b'{"count": 1000}',
        b'{"count": ' + b"9" * 5000 + b"}",
        b'{"holding": {}}',
    ],
)
def test_broken_json_is_refused_without_an_error(body, ada, desk):
    reply = ada.post("/api/questions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code in (400, 422), reply.text
    assert reply.json()["detail"]
    assert desk.calls == 0


@pytest.mark.parametrize(
    "changes",
    [
        *({"event_id": event} for event in ("x", "A" * 32, EVENT + "\n")),
        *({"lease": lease} for lease in ("x" * 601, 3)),
        *({"view_ms": time} for time in (-1, 2**40)),
        *({"answer": "LEFT"}, {"key": "x" * 33}, {"loops_left": 1.5}),
    ],
)
def test_broken_answers_are_refused(changes, ada, desk):
    reply = ada.post("/api/answers", json={**answer("x"), **changes})
    assert reply.status_code == 422
    assert not desk.answers


@pytest.mark.parametrize(
    "film", ["../../etc/passwd", "%2e%2e%2fetc", FILM.upper(), FILM + "0", FILM + "%0a", "%00", "..%5c"]
)
def test_films_cannot_name_paths(film, ada):
    assert ada.get(f"/api/films/{film}").status_code in (404, 422)
    assert ada.get(f"/api/films/{FILM}").status_code == 404


@pytest.mark.parametrize(
    "name", ["../app.py", "%2e%2e/app.py", "..%2fapp.py", "%00", "x" * 5000, "", ".", "__init__.py"]
)
def test_static_files_cannot_either(name, stranger):
    assert stranger.get(f"/static/{name}").status_code == 404


def test_a_cookie_may_be_anything(app, sessions):
    for value in ("x", "\xff", "a.b", '"', "=" * 9000, "YWRh." + "0" * 64):
        client = TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
        headers = {"cookie": f"{sessions.cookie_name}={value}".encode("latin-1")}
        assert client.get("/api/me", headers=headers).status_code == 401


# What the desk says


def test_an_answer_is_saved_once_and_what_is_not_saved_is_said(ada, desk):
    lease = ask(ada)[0]["lease"]
    desk.fail_answers = 1
    reply = ada.post("/api/answers", json=answer(lease))
    assert (reply.status_code, reply.json()["detail"]) == (503, "not saved; try again")
    assert "disk full" not in reply.text
    full = answer(lease, view_ms=1200, hidden_ms=30, loops_left=2, loops_right=1, key="ArrowLeft")
    assert ada.post("/api/answers", json=full).json() == {"saved": True}
    assert ada.post("/api/answers", json=full).json() == {"saved": True}
    ((name, given, _),) = desk.answers
    assert name == "ada"
    assert given.model_dump() == full


def test_of_an_error_in_another_process_only_what_it_says_is_told(ada, desk, monkeypatch):
    async def weigh(self, annotator, weight):
        raise ValueError('remote::weigh()\n  File "/home/ada/secret.py", line 3\nValueError: no such weight')

    monkeypatch.setattr(FakeDesk, "weigh", weigh)
    reply = ada.post("/api/weights", json={"annotator": "ada", "weight": 1})
    assert (reply.status_code, reply.json()["detail"]) == (400, "ValueError: no such weight")


def test_others_numbers_are_the_owners_alone(ada, grace):
    everybody, own = (client.get("/api/statistics").json() for client in (ada, grace))
    assert [row["name"] for row in everybody["annotators"]] == ["ada", "grace", "hurried", "new"]
    assert own["annotators"] == [everybody["annotators"][1]]
    assert (own["labels"], own["shared_pairs"], own["alpha"], own["raw_agreement"]) == (436, 0, None, None)


def test_only_the_owner_looks_at_answers_again(ada, grace, desk):
    assert ada.get("/api/doubts").json() == {"doubts": []}
    assert ada.get("/api/progress").json()["doubts"] == 0
    doubt = desk.doubt(1, "grace", "left")
    assert ada.get("/api/doubts").json() == {"doubts": [asdict(doubt)]}
    assert ask(ada) != []
    assert [client.get("/api/progress").json()["doubts"] for client in (ada, grace)] == [1, 0]
    review = {"event_id": EVENT, "target": doubt.event_id, "answer": "left"}
    assert grace.get("/api/doubts").status_code == grace.post("/api/reviews", json=review).status_code == 403
    for wrong in ("skip", "flag", "", None):
        assert ada.post("/api/reviews", json=review | {"answer": wrong}).status_code == 422
    desk.fail_answers = 1
    assert ada.post("/api/reviews", json=review).status_code == 503
    assert ada.post("/api/reviews", json=review).json() == {"saved": True}
    assert desk.reviews == [(doubt.event_id, EVENT, "left")]
    assert ada.get("/api/progress").json()["doubts"] == 0
    other = review | {"event_id": "f" * 32, "target": "e" * 32}
    assert ada.post("/api/reviews", json=other).status_code == 400


def test_answers_have_a_speed_limit_for_each_session(no_time, ada, grace):
    replies = [ada.post("/api/answers", json=answer("x")).status_code for _ in range(25)]
    assert replies[:20] == [400] * 20
    assert replies[-1] == 429
    assert grace.post("/api/answers", json=answer("x")).status_code == 400


def test_all_calls_have_one_too(no_time, ada, grace):
    codes = [ada.get("/api/me").status_code for _ in range(202)]
    assert codes == [200] * 200 + [429] * 2
    assert grace.get("/api/me").status_code == 200


# The pages


def test_the_pages_bring_all_they_need_and_nothing_inline(stranger):
    for path in ("/", "/statistics", "/again"):
        html = stranger.get(path).text
        assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son\w+=|https?://", html)
        found = re.findall(r'(?:src|href)="(static/[^"]+)"', html)
        assert found
        for name in found:
            assert stranger.get("/" + name).status_code == 200


def test_modules_are_small_and_import_only_each_other(stranger):
    seen, queue = set(), ["main.js", "statistics.js", "again.js"]
    while queue:
        name = queue.pop()
        seen.add(name)
        text = stranger.get(f"/static/{name}").text
        assert len(text.splitlines()) < 300, name
        assert "innerHTML" not in text
        imports = re.findall(r'^import .* from "(.*)";$', text, re.M)
        assert all(path.startswith("./") for path in imports)
        queue += [path[2:] for path in imports if path[2:] not in seen]
    assert len(seen) >= 10


def test_mounted_elsewhere(app, sessions):
    from starlette.applications import Starlette
    from starlette.routing import Mount

    client = TestClient(Starlette(routes=[Mount("/label", app)]), base_url="http://127.0.0.1:8000")
    assert client.get("/label/").status_code == 200
    assert client.get("/label/api/me").status_code == 401
    reply = client.post("/label/api/session", json={"token": sessions.people["ada"].token})
    assert "Path=/label" in reply.headers["set-cookie"]
    assert client.get("/label/api/me").json()["name"] == "ada"


SITES = ("http://evil.example", "https://127.0.0.1", "http://127.0.0.1:9999", "http://localhost:3000")
HOSTILE = (*SITES, "null", "file://", "http://[", "")


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
