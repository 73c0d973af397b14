"""Which Python setup.sh takes, with stand-ins for Python, pip and uv."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PYTHON = """#!/bin/sh
case "$1 $2" in
  "--version ") echo "Python 3.{minor}.0" ;;
  *print*) echo "3 {minor}" ;;
  *sys.exit*) exit {refused} ;;
  "-m venv") mkdir -p .venv/bin && cp "$0" .venv/bin/python && echo "venv 3.{minor}" >>calls ;;
  "-m pip") printf 'echo "uv 3.{minor}" >>calls; cp "$0" .venv/bin/rlhf-ray\\n' >.venv/bin/uv && chmod +x .venv/bin/uv ;;
esac
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "setup.sh", tmp_path)
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "constraints.txt").write_text("")
    (tmp_path / "bin").mkdir()
    for minor in (10, 11, 13):
        python = tmp_path / "bin" / f"python3.{minor}"
        python.write_text(PYTHON.format(minor=minor, refused=int(minor < 11)))
        python.chmod(0o755)
    return tmp_path


def setup(folder: Path, python: str = "") -> tuple[list[str], str]:
    """Run setup.sh; return the calls that it makes, and what it prints to stderr."""
    (folder / "calls").write_text("")
    environment = {"PATH": f"{folder / 'bin'}:/usr/bin:/bin", "PYTHON": python, "HOME": str(folder)}
    if "LANG" in os.environ:
        environment["LANG"] = os.environ["LANG"]
    done = subprocess.run(["bash", "setup.sh"], cwd=folder, env=environment, capture_output=True, text=True)
    assert (done.returncode == 0) == (not done.stderr), done.stderr
    return (folder / "calls").read_text().splitlines(), done.stderr


def test_the_python_that_was_named_stays_until_another_is(checkout: Path) -> None:
    assert setup(checkout)[0] == ["venv 3.11", "uv 3.11"]
    assert setup(checkout)[0] == []
    assert setup(checkout, "python3.13")[0] == ["venv 3.13", "uv 3.13"]
    assert (
        setup(checkout)[0] == setup(checkout, "python3.13")[0] == []
    )  # `make test` after `make setup PYTHON=python3.13`
    (checkout / "pyproject.toml").write_text("changed")
    assert setup(checkout)[0] == ["uv 3.13"]
    assert setup(checkout, "python3.11")[0] == ["venv 3.11", "uv 3.11"]


def test_an_old_python_is_refused_and_leaves_what_is_there(checkout: Path) -> None:
    setup(checkout, "python3.13")
    calls, error = setup(checkout, "python3.10")
    assert calls == []
    assert error.startswith("setup: PYTHON=python3.10 is Python 3.10.0; rlhf_ray needs Python 3.11 to 3.14.\n")
    assert setup(checkout)[0] == []
