"""The built wheel and source distribution hold everything that runs and shadow nothing; and which Python setup.sh takes."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.command_line import run_python
from tests.whole_runs import with_path

ROOT = Path(__file__).resolve().parents[1]
BUILD = """
import sys
from setuptools import build_meta
folder = sys.argv[1]  # setuptools changes what it stands for
build_meta.build_sdist(folder)
build_meta.build_wheel(folder)
"""
SMALLEST = shlex.split(
    """--total-env-steps 1000 --fragments.initial-env-steps 400 --preferences.comparisons 20
    --preferences.initial-comparisons 20 --preferences.rounds 0 --ppo.num-envs 2 --evaluation-episodes 1 --run-dir run"""
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The source distribution and the wheel, of a copy of what the repository keeps, without symbolic links.

    A zip of the tree, or a checkout where git makes no links, holds a text file with its target in the place of each.
    """
    folder = tmp_path_factory.mktemp("build")
    kept = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if kept.returncode:
        pytest.skip("not in a git checkout")
    words = ["tar", "-cf", str(folder / "kept.tar"), "--null", "-T", "-"]
    subprocess.run(words, cwd=ROOT, input=kept.stdout, text=True, check=True)
    copy = folder / "copy"
    with tarfile.open(folder / "kept.tar") as kept_files:
        kept_files.extractall(copy, filter="fully_trusted")
    links = [file for file in copy.rglob("*") if file.is_symlink()]
    assert {"actors", "tune_configs"} <= {link.name for link in links}
    for link in links:
        target = os.readlink(link)
        link.unlink()
        link.write_text(target)
    run_python(BUILD, folder, cwd=copy)
    (sdist,), (wheel,) = folder.glob("*.tar.gz"), folder.glob("*.whl")
    return sdist, wheel


def test_the_wheel_claims_one_name_and_holds_every_module(built: tuple[Path, Path]) -> None:
    sdist, wheel = built
    files = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.split("/")[0] for name in files} == {"rlhf_ray"}
    kept = {str(file.relative_to(ROOT)) for file in (ROOT / "rlhf_ray").glob("**/*.py")}
    assert kept <= files
    assert {"rlhf_ray/actors/ring.py", "rlhf_ray/tune_configs/pendulum.py"} <= files
    assert {
        f"rlhf_ray/{name}" for name in ("py.typed", "labelling/static/index.html", "labelling/languages/de.json")
    } <= files
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name for name in files if name.endswith((".py", ".js", ".css", ".html"))} <= names


@pytest.mark.slow
@pytest.mark.ray
def test_the_wheel_trains_beside_a_users_folders_of_the_same_names(built: tuple[Path, Path], tmp_path: Path) -> None:
    with zipfile.ZipFile(built[1]) as wheel:
        wheel.extractall(tmp_path / "installed")
    project = tmp_path / "project"
    for name in ("actors", "tune_configs"):
        (project / name).mkdir(parents=True)
        (project / name / "__init__.py").write_text("raise RuntimeError('nobody but the user imports this')\n")
    environment = with_path(tmp_path / "installed") | {"RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(
        [sys.executable, "-m", "rlhf_ray", "train", "pendulum", *SMALLEST],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (project / "run" / "report.html").exists()


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
