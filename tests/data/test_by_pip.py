"""The commands that install with pip what pip itself can't put beside Ray."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from rlhf_ray.data import by_pip

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
COMMANDS = [by_pip.PROCGEN, by_pip.IMITATION]


def halves(command: str) -> list[list[Requirement]]:
    """What a command installs without dependencies, and what it installs with them."""
    alone, others = command.split(" && ")
    assert alone.startswith("pip install --no-deps ")
    return [
        [Requirement(word) for word in re.sub("'|pip install |--no-deps ", "", half).split()]
        for half in (alone, others)
    ]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_installs_all_that_its_packages_need(command):
    alone, others = halves(command)
    there = {
        canonicalize_name(r.name) for r in [*alone, *others, *map(Requirement, PROJECT["project"]["dependencies"])]
    }
    for package in alone:
        try:
            needs = map(Requirement, importlib.metadata.requires(package.name) or [])
        except importlib.metadata.PackageNotFoundError:
            pytest.skip(f"{package.name} is not installed")
        needed = {canonicalize_name(r.name) for r in needs if r.marker is None or r.marker.evaluate({"extra": ""})}
        assert needed
        assert needed <= there, needed - there


@pytest.mark.parametrize(("extra", "command"), zip(("procgen", "imitation"), COMMANDS, strict=True))
def test_a_command_names_the_versions_of_the_extra_and_of_the_overrides(extra, command):
    alone, others = halves(command)
    wanted = {r.name: r.specifier for r in map(Requirement, PROJECT["project"]["optional-dependencies"][extra])}
    has = {r.name: r.specifier for r in [*alone, *others]}
    assert wanted.items() <= has.items()
    overrides = {r.name: r.specifier for r in map(Requirement, PROJECT["tool"]["uv"]["override-dependencies"])}
    assert all(has[name] in (overrides[name], "") for name in has.keys() & overrides.keys())


def test_the_documentation_has_both_commands():
    page = (ROOT / "docs" / "getting_started.md").read_text(encoding="utf-8")
    assert all(command.replace(" && ", "\n") in page for command in COMMANDS)
