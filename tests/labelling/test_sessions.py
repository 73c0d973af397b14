import os
import stat
import time
from dataclasses import replace

import pytest

from rlhf_ray import cli
from rlhf_ray.data.places import JOB
from rlhf_ray.labelling.serve import links
from rlhf_ray.labelling.sessions import LASTS_S, LONGEST_NAME, Person, Sessions, invitation
from rlhf_ray.settings import LabellingSettings
from tests.command_line import fails_with


def test_a_token_is_exchanged_for_its_person_and_no_other(sessions):
    ada, grace = sessions.people["ada"], sessions.people["grace"]
    assert sessions.exchange(ada.token) == ada
    assert sessions.exchange(grace.token) == grace
    for wrong in ("", ada.token[:-1], ada.token + "x", "ada", "ü", "\ud800"):
        assert sessions.exchange(wrong) is None


def test_a_cookie_says_who_and_cannot_be_changed(sessions):
    ada = sessions.people["ada"]
    cookie = sessions.sign(ada)
    for people in (sessions, Sessions.create(["Ada Łovelace", "猫"])):
        assert all(people.who(people.sign(person)) == person for person in people.people.values())
    name, _, signature = cookie.partition(".")
    other = sessions.sign(sessions.people["grace"]).partition(".")[0]
    for forged in (f"{other}.{signature}", f"{name}.", name, f"{name}.{signature}0", f"{name}.é"):
        assert sessions.who(forged) is None
    for nonsense in ("", ".", "é.é", "====.x", None):
        assert sessions.who(nonsense) is None


def test_a_new_token_or_secret_makes_old_cookies_void(sessions):
    ada = sessions.people["ada"]
    cookie = sessions.sign(ada)
    renewed = Sessions(sessions._secret, {"ada": Person("ada", "another token", owner=True)})
    assert renewed.who(cookie) is None
    assert Sessions(b"\0" * 32, sessions.people).who(cookie) is None


def test_saved_for_the_owner_alone_and_loaded_again(sessions, tmp_path):
    path = tmp_path / "labelling.json"
    before = os.umask(0)
    try:
        sessions.save(path)
        sessions.save(path)  # over an older one too
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(tmp_path) == ["labelling.json"]
    again = Sessions.load(path)
    assert again.people == sessions.people
    assert again.cookie_name == sessions.cookie_name
    assert again.who(sessions.sign(sessions.people["grace"])) == sessions.people["grace"]


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"secret": "00", "people": {}}', '{"secret": "zz", "people": {}}', '{"people": 3}']
)
def test_another_file_is_refused_with_its_name(text, tmp_path):
    path = tmp_path / "labelling.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"labelling\.json is not a file of annotators"):
        Sessions.load(path)


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(ValueError, match="each only once"):
        Sessions.create(["ada", "ada"])
    with pytest.raises(ValueError, match="at least one name"):
        Sessions.create([])
    for name in ("", "a\nb", "x" * (LONGEST_NAME + 1)):
        with pytest.raises(ValueError, match="printable"):
            Sessions.create([name])
    with pytest.raises(ValueError, match="same token"):
        Sessions(b"\0" * 32, {"a": Person("a", "t"), "b": Person("b", "t")})
    with pytest.raises(ValueError, match="32"):
        Sessions(b"short", {})


def test_the_link_hides_the_token_from_servers(sessions):
    assert (
        sessions.link("ada", "http://127.0.0.1:8000/") == f"http://127.0.0.1:8000/#token={sessions.people['ada'].token}"
    )


def test_two_runs_on_one_host_keep_their_cookies_apart(sessions):
    assert sessions.cookie_name != Sessions.create(["ada"]).cookie_name


def test_links_and_sessions_end(sessions, monkeypatch):
    ada = sessions.people["ada"]
    cookie = sessions.sign(ada)
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + LASTS_S - 60)
    assert sessions.exchange(ada.token) == ada
    assert sessions.who(cookie) == ada
    later = sessions.sign(ada)
    monkeypatch.setattr(time, "time", lambda: now + LASTS_S + 60)
    assert sessions.exchange(ada.token) is None
    assert sessions.who(cookie) is None
    assert sessions.who(later) == ada
    (name, _, signature), (_, given, _) = cookie.split("."), later.split(".")
    assert sessions.who(f"{name}.{given}.{signature}") is None
    monkeypatch.setattr(time, "time", lambda: now - 90)  # the clock was set back
    assert sessions.who(cookie) == sessions.who(later) == ada


def test_whoever_is_shut_out_is_so_at_once_and_after_a_restart(sessions, tmp_path):
    path = tmp_path / "labelling.json"
    sessions.save(path)
    page = Sessions.load(path)
    tokens = {name: person.token for name, person in page.people.items()}
    cookies = {name: page.sign(person) for name, person in page.people.items()}
    operator = Sessions.load(path)
    operator.revoke("grace")
    operator.save(path)
    for who in (page, Sessions.keep(path, ["ada", "grace"])):
        assert who.who(cookies["ada"]) == who.exchange(tokens["ada"]) == who.people["ada"]
        assert who.who(cookies["grace"]) is who.exchange(tokens["grace"]) is None
        assert who.exchange(who.people["grace"].token) is None
        assert list(links(who, LabellingSettings(), 8765)) == ["ada"]
    operator.renew("grace")
    operator.save(path)
    assert page.exchange(tokens["grace"]) is None
    assert page.exchange(operator.people["grace"].token) == page.people["grace"]
    path.write_text("half a fi")
    assert page.who(cookies["ada"]) == page.people["ada"]


def test_links_that_have_ended_are_made_anew_at_the_next_start_and_no_others(sessions, tmp_path):
    path = tmp_path / "folder" / "labelling.json"
    kept = Sessions.keep(path, ["ada", "grace"])
    assert Sessions.keep(path, ["ada", "grace"]).people == kept.people
    kept._everybody["ada"] = replace(kept.people["ada"], until=time.time() - 1)
    kept.save(path)
    again = Sessions.keep(path, ["ada", "grace"])
    assert again.people["ada"].token != kept.people["ada"].token
    assert again.people["grace"] == kept.people["grace"]
    assert again.key("leases") == kept.key("leases")


def test_only_those_who_are_named_are_let_in_and_the_file_keeps_all(sessions, tmp_path):
    path = tmp_path / "labelling.json"
    sessions.save(path)
    tokens = {name: person.token for name, person in sessions.people.items()}
    page = Sessions.keep(path, ["grace", "new"])
    assert list(page.people) == ["grace", "new"]
    assert page.exchange(tokens["ada"]) is None
    assert page.exchange(tokens["grace"]).owner
    operator = Sessions.load(path)
    operator.renew("new")
    operator.save(path)
    page.served_at("http://127.0.0.1:1")
    assert list(page.people) == ["grace", "new"]
    assert Sessions.keep(path, ["ada", "new"]).exchange(tokens["ada"]).owner
    assert Sessions.load(path).people["new"] == page.people["new"] == operator.people["new"]


def test_the_command_shows_links_makes_new_ones_and_shuts_out(tmp_path, capsys, monkeypatch):
    sessions = Sessions.create(["ada", "grace"])
    sessions.url = "http://127.0.0.1:9000"
    sessions.save(tmp_path / "labelling.json")
    cli.main(["links", str(tmp_path)])
    shown = capsys.readouterr().out
    assert all(sessions.link(name, "http://127.0.0.1:9000") in shown for name in ("ada", "grace"))
    cli.main(["links", str(tmp_path), "--revoke", "grace", "--renew", "ada"])
    shown = capsys.readouterr().out
    assert "grace: revoked" in shown
    assert sessions.people["ada"].token not in shown
    assert Sessions.load(tmp_path / "labelling.json").link("ada", "http://127.0.0.1:9000") in shown
    for words, problem in ((["--revoke", "bob"], "has no annotator 'bob'"), (["--help-me"], "")):
        assert problem in fails_with(capsys, "links", tmp_path, *words)
    assert "No links found" in fails_with(capsys, "links", tmp_path / "none")
    # A job's output is everybody's who has the cluster's token.
    monkeypatch.setenv(JOB, "{}")
    assert "job's output" in fails_with(capsys, "links", tmp_path)
    (line,) = invitation({"ada": "http://127.0.0.1:9000/#token=secret"}, tmp_path)
    assert "http://127.0.0.1:9000" in line
    assert "secret" not in line
