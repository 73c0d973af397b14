"""Odd surroundings: closed streams, a locale that isn't UTF-8, no home for a token, a temporary folder too long for sockets."""

import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlhf_ray.actors.access import make_token
from rlhf_ray.actors.cluster import _LONGEST_SOCKET, _sockets


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_a_command_with_closed_streams_ends_well_and_prints_into_no_file(closed, tmp_path):
    script = f'exec {sys.executable} -c "$1" {tmp_path}/file {closed}'
    program = (
        "import os, sys; from rlhf_ray.cli import main; main(['--version']); file = open(sys.argv[1], 'w'); "
        "print('printed'); os.write(2, b'written'); os.write(1, b'written'); file.write('own'); file.close()"
    )
    done = subprocess.run(["sh", "-c", script, "sh", program], capture_output=True, timeout=60)
    assert done.returncode == 0
    assert (tmp_path / "file").read_text() == "own"


def test_file_names_are_utf8_whatever_the_locale_and_the_terminal_keeps_its_encoding():
    program = (
        "import sys; from rlhf_ray.cli import run_in_utf8; run_in_utf8(); "
        "print(ascii(sys.argv[1]), sys.getfilesystemencoding(), sys.stdout.encoding)"
    )
    environment = {"PATH": os.environ["PATH"], "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    done = subprocess.run([sys.executable, "-c", program, "runs/ü"], env=environment, capture_output=True, timeout=60)
    assert done.stdout.split() == [b"'runs/\\xfc'", b"utf-8", b"ascii"], done.stderr


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
