"""Leases hold all that an answer needs, and nobody can make one."""

import pytest

from rlhf_ray.labelling.leases import Lease, Leases
from rlhf_ray.labelling.questions import Shown

CLIP = "0123456789abcdef" * 4
SHOWN = Shown(CLIP, CLIP[::-1], True, "repeat", 1.0, "e" * 32, True)
LEASE = Lease("ada", SHOWN, 1234.5)


def test_a_lease_is_read_as_it_was_written() -> None:
    leases = Leases(b"secret")
    text = leases.write(LEASE)
    assert leases.read(text, "ada") == LEASE
    assert len(text) <= 600
    assert leases.write(LEASE) != text  # nor can the next one be told from the last


@pytest.mark.parametrize("plain", [Shown("a", "b", False), Shown("a", "b", True), Shown("a", "a", False, "same", 0.5)])
def test_whatever_is_shown_is_told(plain: Shown) -> None:
    leases = Leases(b"secret")
    assert leases.read(leases.write(Lease("bob", plain, 0.0)), "bob").shown == plain


def test_a_lease_is_nobody_elses() -> None:
    with pytest.raises(ValueError, match="somebody else's"):
        Leases(b"secret").read(Leases(b"secret").write(LEASE), "bob")


@pytest.mark.parametrize("change", [lambda t: t[:-2], lambda t: "A" + t[1:], lambda t: t[:40] + "é", lambda t: ""])
def test_a_changed_lease_is_refused(change) -> None:  # type: ignore[no-untyped-def]
    text = Leases(b"secret").write(LEASE)
    with pytest.raises(ValueError, match="not one of this page's"):
        Leases(b"secret").read(change(text), "ada")


def test_another_secret_makes_other_leases() -> None:
    with pytest.raises(ValueError, match="not one of this page's"):
        Leases(b"other").read(Leases(b"secret").write(LEASE), "ada")
