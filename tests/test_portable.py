"""The code runs on macOS and on later Pythons as far as its text can tell.

Nothing but `rlhf_ray.data.system` uses what Linux has and macOS lacks. What a system's Python lacks is read from the stubs of the
standard library that come with mypy, for one system and the other.
"""

import ast
import functools
import re
import symtable
import sys
from pathlib import Path
from types import SimpleNamespace

import mypy
import pytest

from tests.test_rules import PRODUCT, dotted, imported, sources

STUBS = Path(mypy.__file__).parent / "typeshed" / "stdlib"
MODULES = ("os", "signal", "socket", "select", "resource", "mmap", "fcntl", "time", "sys")
"""Modules of the standard library that differ, and whose stubs define them."""
OTHER_UNITS = ("ru_maxrss",)
"""The same name with another unit: kB on Linux, bytes on macOS."""
WORDS = re.compile(r"/(proc|sys|dev/shm)(/.*)?|lib\w+\.so[.\d]*|egl|osmesa|fork|forkserver|LD_(PRELOAD|LIBRARY_PATH)")
"""Constants that stand for Linux's own files, libraries, ways to draw and ways to start a process."""
COMMANDS = {"nproc", "taskset", "ionice", "chrt", "lscpu", "free", "ldconfig", "xdg-open"}
COMMANDS |= {"systemctl", "apt-get", "setsid"}
"""Programs of Linux, as the first word of a command."""


def defined(body: list[ast.stmt], platform: str) -> set[str]:
    """The names that a stub defines on a system, those inside its classes included."""
    names: set[str] = set()
    for node in body:
        if isinstance(node, ast.If):
            system = SimpleNamespace(platform=platform, version_info=sys.version_info)
            holds = eval(compile(ast.Expression(node.test), "stub", "eval"), {"sys": system})
            names |= defined(node.body if holds else node.orelse, platform)
        elif isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            names.add(node.name)
            names |= defined(node.body, platform) if isinstance(node, ast.ClassDef) else set()
        elif isinstance(node, (ast.AnnAssign, ast.Assign)):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            names |= {target.id for target in targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
    return names


@functools.cache
def only_linux() -> frozenset[str]:
    """What the standard library has on Linux and not on macOS, such as ``os.sched_getaffinity``."""
    names = set()
    for module in MODULES:
        stubs = (module, f"_{module}")
        paths = [
            path for stub in stubs for path in (STUBS / f"{stub}.pyi", STUBS / stub / "__init__.pyi") if path.exists()
        ]
        bodies = [ast.parse(path.read_text()).body for path in paths]
        has, lacks = ({n for body in bodies for n in defined(body, system)} for system in ("linux", "darwin"))
        names |= {f"{module}.{name}" for name in has - lacks}
    return frozenset(names)


def not_on_macos(tree: ast.AST) -> set[str]:
    """What a file uses that macOS lacks or has in other units."""
    nodes = list(ast.walk(tree))
    prose = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    attributes = [node for node in nodes if isinstance(node, ast.Attribute)]
    found = only_linux() & {*imported(tree), *(dotted(node) for node in attributes)}
    found |= {node.attr for node in attributes if node.attr in OTHER_UNITS}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            found |= {node.value} if WORDS.fullmatch(node.value) else set()
        if isinstance(node, ast.List) and node.elts and isinstance(node.elts[0], ast.Constant):
            found |= {node.elts[0].value} & COMMANDS
    return found


@pytest.mark.slow
def test_what_macos_lacks_is_used_in_one_file() -> None:
    found = {path: not_on_macos(ast.parse(text)) for path, text in sources(PRODUCT)}
    assert found.pop(f"{PRODUCT}/data/system.py") >= {"os.sched_getaffinity", "/proc/meminfo", "egl"}
    assert not {path: names for path, names in found.items() if names}


COMPREHENSIONS = ("listcomp", "dictcomp", "setcomp")


def mixed_up(table: symtable.SymbolTable) -> set[str]:
    """Names that one comprehension of a function sets and another takes from around the function.

    Python 3.12 to 3.14 end such a function with an UnboundLocalError; Python 3.11 does not.
    """
    within = [child for child in table.get_children() if child.get_name() in COMPREHENSIONS]
    symbols = [symbol for child in within for symbol in child.get_symbols()]
    names = {symbol.get_name() for symbol in symbols if symbol.is_local()} & {
        s.get_name() for s in symbols if s.is_free()
    }
    if table.get_type() != "function" or table.get_name() in COMPREHENSIONS:
        names = set()
    assigned = {symbol.get_name() for symbol in table.get_symbols() if symbol.is_local()}
    return (names - assigned).union(*map(mixed_up, table.get_children()))


@pytest.mark.slow
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="later Pythons count a comprehension's names to its function")
def test_no_comprehension_hides_a_name_that_another_takes_from_around_the_function() -> None:
    text = (
        "def run(other):\n def inner():\n  {other: 1 for other in []}\n  return [other for _ in []]\n return inner()\n"
    )
    assert mixed_up(symtable.symtable(text, "text", "exec")) == {"other"}
    assert not mixed_up(symtable.symtable(text.replace("{other: 1 for other", "{each: 1 for each"), "text", "exec"))
    found = {
        path: mixed_up(symtable.symtable(text, path, "exec"))
        for path, text in sources(PRODUCT, "benchmarks", "examples")
    }
    assert not {path: names for path, names in found.items() if names}
