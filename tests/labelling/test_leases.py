"""Leases hold all that an answer needs; nobody can make one, nor read from it what the right answer is."""

import base64
import time
from typing import Any

import pytest

from rlhf_ray.labelling import messages as module
from rlhf_ray.labelling.messages import Lease, Leases
from rlhf_ray.labelling.questions import Shown

CLIP = "0123456789abcdef" * 4
SHOWN = Shown(CLIP, CLIP[::-1], True, "repeat", 1.0, "e" * 32, True)
NOW = round(time.time(), 3)
LEASE = Lease("ada", SHOWN, NOW)


def test_a_lease_is_read_as_it_was_written() -> None:
    leases = Leases(b"secret")
    text = leases.write(LEASE)
    assert leases.read(text, "ada") == LEASE
    assert len(text) <= 400
    assert leases.write(LEASE) != text  # nor can the next one be told from the last
    assert Lease("ada", SHOWN, NOW).id != LEASE.id


@pytest.mark.parametrize("plain", [Shown("a", "b", False), Shown("a", "b", True), Shown("a", "a", False, "same", 0.5)])
def test_whatever_is_shown_is_told(plain: Shown) -> None:
    leases = Leases(b"secret")
    assert leases.read(leases.write(Lease("bob", plain, NOW)), "bob").shown == plain


def test_nobody_can_tell_a_check_from_a_question() -> None:
    leases = Leases(b"secret")
    question, check = (leases.write(Lease("ada", shown, NOW)) for shown in (Shown(CLIP, CLIP[::-1], False), SHOWN))
    assert len(question) == len(check)
    for text in (question, check):
        assert not any(word in base64.urlsafe_b64decode(text) for word in (b"repeat", b"ada", CLIP.encode(), b"e" * 8))


def test_a_lease_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    text = Leases(b"secret").write(LEASE)
    monkeypatch.setattr(module.time, "time", lambda: NOW + module.GOOD_FOR + 1)
    with pytest.raises(ValueError, match="7 days ago"):
        Leases(b"secret").read(text, "ada")


@pytest.mark.parametrize(
    ("change", "reader", "secret"),
    [
        *(
            (change, "ada", b"secret")
            for change in (lambda t: t[:-2], lambda t: "A" + t[1:], lambda t: t[:40] + "é", lambda t: "")
        ),
        (str, "bob", b"secret"),
        (str, "ada", b"other"),
    ],
)
def test_a_changed_lease_another_s_and_one_of_another_secret_are_refused(
    change: Any, reader: str, secret: bytes
) -> None:
    text = Leases(b"secret").write(LEASE)
    with pytest.raises(ValueError, match="belongs to another page or annotator"):
        Leases(secret).read(change(text), reader)
