import os
import stat

import pytest

from rlhf_ray.labelling.sessions import LONGEST_NAME, Person, Sessions


@pytest.fixture
def sessions() -> Sessions:
    return Sessions.create(["ada", "grace"])


def test_a_token_is_exchanged_for_its_person_and_no_other(sessions):
    ada, grace = sessions.people["ada"], sessions.people["grace"]
    assert sessions.exchange(ada.token) == ada
    assert sessions.exchange(grace.token) == grace
    for wrong in ("", ada.token[:-1], ada.token + "x", "ada", "ü", "\ud800"):
        assert sessions.exchange(wrong) is None


def test_the_first_person_is_the_owner(sessions):
    assert [person.owner for person in sessions.people.values()] == [True, False]


def test_a_cookie_says_who_and_cannot_be_changed(sessions):
    ada = sessions.people["ada"]
    cookie = sessions.cookie(ada)
    assert sessions.who(cookie) == ada
    name, _, signature = cookie.partition(".")
    other = sessions.cookie(sessions.people["grace"]).partition(".")[0]
    for forged in (
        f"{other}.{signature}",
        f"{name}.",
        name,
        "",
        ".",
        f"{name}.{signature}0",
        f"{name}.é",
        "é.é",
        "====.x",
        None,
    ):
        assert sessions.who(forged) is None


def test_names_may_be_in_any_script():
    sessions = Sessions.create(["Ada Łovelace", "猫"])
    for person in sessions.people.values():
        assert sessions.who(sessions.cookie(person)) == person


def test_a_new_token_or_secret_makes_old_cookies_void(sessions):
    ada = sessions.people["ada"]
    cookie = sessions.cookie(ada)
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
    assert again.who(sessions.cookie(sessions.people["grace"])) == sessions.people["grace"]


def test_links_are_kept_also_of_those_who_are_not_let_in_this_time(tmp_path):
    path = tmp_path / "labels.labelling.json"
    ada, bob = (Sessions.keep(path, ["ada", "bob"]).people[name] for name in ("ada", "bob"))
    alone = Sessions.keep(path, ["bob"])
    assert alone.people == {"bob": Person("bob", bob.token, owner=True)}
    assert alone.exchange(ada.token) is None
    again = Sessions.keep(path, ["ada", "bob"])
    assert again.people == {"ada": ada, "bob": bob}
    assert again.key("leases") == alone.key("leases")


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"secret": "00", "people": {}}', '{"secret": "zz", "people": {}}', '{"people": 3}']
)
def test_another_file_is_refused_with_its_name(text, tmp_path):
    path = tmp_path / "labelling.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"labelling\.json does not hold"):
        Sessions.load(path)


def test_what_cannot_be_told_apart_is_refused():
    with pytest.raises(ValueError, match="each once"):
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
