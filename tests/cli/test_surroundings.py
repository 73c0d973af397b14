"""Odd surroundings: no home folder that keeps a token, a temporary folder whose path is too long for sockets."""

import os
import socket
import sys
import tempfile
from pathlib import Path

import pytest

from rlhf_ray.actors.access import make_token
from rlhf_ray.actors.cluster import _LONGEST_SOCKET, _sockets

PROGRAM = str(Path(sys.executable).with_name("rlhf-ray"))


@pytest.mark.parametrize("home", ["/proc", "/dev/null", "somewhere"])
def test_ray_has_a_token_also_where_the_home_folder_keeps_none(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", home if home.startswith("/") else str(tmp_path))
    monkeypatch.setenv("RAY_AUTH_TOKEN", "")
    make_token()
    assert (len(os.environ["RAY_AUTH_TOKEN"]) == 64) == home.startswith("/")
    if home == "somewhere":
        kept = tmp_path / ".ray" / "auth_token"
        assert (len(kept.read_text()), kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (
            64,
            0o600,
            0o700,
        )
        make_token()  # there is one


def test_rays_sockets_are_where_their_paths_fit(monkeypatch):
    monkeypatch.delenv("RAY_TMPDIR", raising=False)
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        found = set()
        for length in range(len(short) + 2, 60):
            folder = Path(short, "x" * (length - len(short) - 1))
            (folder / _LONGEST_SOCKET).parent.mkdir(parents=True)
            monkeypatch.setattr(tempfile, "tempdir", str(folder))
            with socket.socket(socket.AF_UNIX) as bound:
                try:
                    bound.bind(str(folder / _LONGEST_SOCKET))
                    fits = True
                except OSError:
                    fits = False
            assert _sockets() == (None if fits else "/tmp/ray")
            found.add(fits)
        assert found == {True, False}
