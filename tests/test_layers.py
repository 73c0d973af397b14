"""Who may import whom, and what no module may do: the rules of docs/architecture.md, read off the source."""

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("rlhf_ray", "actors", "tune_configs", "benchmarks", "examples", "tests")
MAX_LINES = 600

# What each floor may not import; a name stands for everything below it.
FORBIDDEN: dict[float, tuple[str, ...]] = {
    1: ("ray", "actors", "rlhf_ray.wrappers", "rlhf_ray.cluster", "rlhf_ray.rllib", "rlhf_ray.cli", "tune_configs"),
    2: (
        "ray.rllib",
        "ray.tune",
        "rlhf_ray.wrappers",
        "rlhf_ray.cluster",
        "rlhf_ray.rllib",
        "rlhf_ray.cli",
        "tune_configs",
    ),
    2.5: ("ray.rllib", "ray.tune", "rlhf_ray.rllib", "rlhf_ray.cli", "tune_configs"),
    3: ("rlhf_ray.cli", "tune_configs"),
    4: (),
}
# The folders whose files users keep and share: no pickle in them.
SHIPPED = ("rlhf_ray", "actors", "tune_configs")
PICKLES = frozenset({"pickle", "_pickle", "cloudpickle", "dill", "joblib"})
# Imports other projects' files, by an unpickler that knows only stand-ins; tests/store/test_exchange.py tries to fool it.
READS_PICKLES = "rlhf_ray/store/foreign.py"


@dataclass(frozen=True, order=True)
class Violation:
    path: str
    line: int
    rule: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}"


def floor_of(path: str) -> float:
    """The floor a file stands on. What is new under rlhf_ray/ stands on the lowest, where the least is allowed."""
    if path.startswith(("rlhf_ray/wrappers/", "rlhf_ray/cluster/")):
        return 2.5
    if path.startswith("rlhf_ray/rllib/"):
        return 3
    if path.startswith("rlhf_ray/") and path != "rlhf_ray/cli.py":
        return 1
    return 2 if path.startswith("actors/") else 4


def absolute(path: str, node: ast.ImportFrom) -> str:
    """The module that a `from … import` names, with leading dots resolved against the file's own package."""
    if node.level == 0:
        return node.module or ""
    package = PurePosixPath(path).parts[:-1]  # of module.py and of __init__.py alike
    above = package[: len(package) - (node.level - 1)]
    return ".".join([*above, node.module] if node.module else above)


def bindings(path: str, tree: ast.AST) -> dict[str, str]:
    """What each imported name stands for: `import torch as th` gives {"th": "torch"}."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found[alias.asname or alias.name] = f"{absolute(path, node)}.{alias.name}"
    return found


def called(node: ast.Call, names: dict[str, str]) -> str:
    """The full name of what is called, as far as the file's imports tell; "" for anything but a dotted name."""
    parts: list[str] = []
    function = node.func
    while isinstance(function, ast.Attribute):
        parts.append(function.attr)
        function = function.value
    if not isinstance(function, ast.Name):
        return ""
    return ".".join([names.get(function.id, function.id), *reversed(parts)])


def imports(path: str, tree: ast.AST, names: dict[str, str]) -> Iterator[tuple[int, str]]:
    """(line, full name) of every import anywhere in the file, also in functions and through importlib.

    `from a import b` gives `a.b`, which stands for both: b may be a module of the package a.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{absolute(path, node)}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and called(node, names) in {"importlib.import_module", "__import__"}:
            first = node.args[0] if node.args else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                yield node.lineno, first.value


def allows_pickle(node: ast.Call, function: str) -> bool:
    """Whether the call hands allow_pickle over as anything but a plain False."""
    values = [keyword.value for keyword in node.keywords if keyword.arg == "allow_pickle"]
    if function == "numpy.load":
        values += node.args[2:3]  # np.load(file, mmap_mode, allow_pickle)
    return any(not (isinstance(value, ast.Constant) and value.value is False) for value in values)


def violations_of(path: str, source: str) -> Iterator[Violation]:
    lines = len(source.splitlines())
    if lines > MAX_LINES:
        yield Violation(path, MAX_LINES + 1, f"the file has {lines} lines, more than {MAX_LINES}")
    tree = ast.parse(source, path)
    names = bindings(path, tree)
    floor = floor_of(path)
    shipped = path.startswith(tuple(f"{folder}/" for folder in SHIPPED))
    for line, name in imports(path, tree, names):
        for banned in FORBIDDEN[floor]:
            if f"{name}.".startswith(f"{banned}."):
                yield Violation(path, line, f"floor {floor} may not import {banned}")
        if shipped and path != READS_PICKLES and PICKLES.intersection(name.split(".")):
            yield Violation(path, line, f"no pickle: {name}")
    for node in ast.walk(tree):
        if shipped and isinstance(node, ast.Call):
            function = called(node, names)
            if function == "torch.save":
                yield Violation(path, node.lineno, "no pickle: torch.save")
            if allows_pickle(node, function):
                yield Violation(path, node.lineno, "no pickle: allow_pickle")


def check(files: Iterable[tuple[str, str]]) -> list[Violation]:
    """Every breach of the rules in (path, source) pairs; paths are relative to the repository, with slashes."""
    return sorted({violation for path, source in files for violation in violations_of(path, source)})


FILES = sorted(file.relative_to(ROOT).as_posix() for folder in FOLDERS for file in (ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("path", FILES)
def test_file_keeps_the_rules(path: str) -> None:
    found = check([(path, (ROOT / path).read_text(encoding="utf-8"))])
    assert not found, "\n" + "\n".join(map(str, found))


def test_the_files_are_found() -> None:
    assert {"rlhf_ray/__init__.py", "actors/__init__.py", "tune_configs/__init__.py"} <= set(FILES)


RAY = "floor 1 may not import ray"
OFFENCES = [
    ("rlhf_ray/store.py", "import ray", 1, RAY),
    ("rlhf_ray/store.py", "import os, ray.util as ru", 1, RAY),
    ("rlhf_ray/envs/dot.py", "from ray.util import queue", 1, RAY),
    ("rlhf_ray/labelling/app.py", "def f():\n    import ray", 2, RAY),
    ("rlhf_ray/something_new/x.py", "try:\n    import ray\nexcept ImportError:\n    pass", 2, RAY),
    ("rlhf_ray/store.py", "import importlib\nimportlib.import_module('ray')", 2, RAY),
    ("rlhf_ray/store.py", "from importlib import import_module as load\nload('ray.util')", 2, RAY),
    ("rlhf_ray/store.py", "ray = __import__('ray')", 1, RAY),
    ("rlhf_ray/store.py", "from actors import pipeline", 1, "floor 1 may not import actors"),
    ("rlhf_ray/store.py", "from . import cli", 1, "floor 1 may not import rlhf_ray.cli"),
    ("rlhf_ray/__init__.py", "from .rllib import PreferencePPO", 1, "floor 1 may not import rlhf_ray.rllib"),
    ("rlhf_ray/__init__.py", "from . import rllib", 1, "floor 1 may not import rlhf_ray.rllib"),
    ("rlhf_ray/reward/trainer.py", "from ..rllib.config import C", 1, "floor 1 may not import rlhf_ray.rllib"),
    ("rlhf_ray/reward/__init__.py", "from .. import cli", 1, "floor 1 may not import rlhf_ray.cli"),
    ("rlhf_ray/runs/report/run_report.py", "import tune_configs.pong", 1, "floor 1 may not import tune_configs"),
    ("actors/gatherer.py", "from ray import rllib", 1, "floor 2 may not import ray.rllib"),
    ("actors/gatherer.py", "from ray.rllib.algorithms.ppo import PPO", 1, "floor 2 may not import ray.rllib"),
    ("actors/gatherer.py", "import ray.tune", 1, "floor 2 may not import ray.tune"),
    ("actors/gatherer.py", "from rlhf_ray.rllib import config", 1, "floor 2 may not import rlhf_ray.rllib"),
    ("actors/pipeline.py", "from rlhf_ray.cli import main", 1, "floor 2 may not import rlhf_ray.cli"),
    ("actors/pipeline.py", "import tune_configs", 1, "floor 2 may not import tune_configs"),
    ("actors/pipeline.py", "import rlhf_ray.wrappers.ring", 1, "floor 2 may not import rlhf_ray.wrappers"),
    ("rlhf_ray/store.py", "from rlhf_ray import wrappers", 1, "floor 1 may not import rlhf_ray.wrappers"),
    ("actors/pipeline.py", "import rlhf_ray.cluster.jobs", 1, "floor 2 may not import rlhf_ray.cluster"),
    ("rlhf_ray/cluster/jobs.py", "import ray.rllib", 1, "floor 2.5 may not import ray.rllib"),
    ("rlhf_ray/wrappers/ring.py", "import ray.rllib", 1, "floor 2.5 may not import ray.rllib"),
    ("rlhf_ray/wrappers/ring.py", "from rlhf_ray import rllib", 1, "floor 2.5 may not import rlhf_ray.rllib"),
    ("rlhf_ray/wrappers/ring.py", "import pickle", 1, "no pickle: pickle"),
    ("rlhf_ray/rllib/config.py", "from rlhf_ray import cli", 1, "floor 3 may not import rlhf_ray.cli"),
    ("rlhf_ray/rllib/config.py", "from ..cli import main", 1, "floor 3 may not import rlhf_ray.cli"),
    ("rlhf_ray/rllib/config.py", "from tune_configs import pong", 1, "floor 3 may not import tune_configs"),
    ("rlhf_ray/store.py", "import pickle", 1, "no pickle: pickle"),
    ("actors/store.py", "from cloudpickle import dumps", 1, "no pickle: cloudpickle.dumps"),
    ("actors/store.py", "import ray.cloudpickle as cp", 1, "no pickle: ray.cloudpickle"),
    ("tune_configs/pong.py", "import joblib", 1, "no pickle: joblib"),
    ("rlhf_ray/cli.py", "def f():\n    import dill", 2, "no pickle: dill"),
    ("rlhf_ray/reward/files.py", "import torch\n\ntorch.save({}, 'f')", 3, "no pickle: torch.save"),
    ("rlhf_ray/reward/files.py", "import torch as th\nth.save({}, 'f')", 2, "no pickle: torch.save"),
    ("rlhf_ray/reward/files.py", "from torch import save as keep\nkeep({}, 'f')", 2, "no pickle: torch.save"),
    ("rlhf_ray/store.py", "import numpy as np\nnp.load('f', allow_pickle=True)", 2, "no pickle: allow_pickle"),
    ("rlhf_ray/store.py", "import numpy as np\nnp.load('f', None, True)", 2, "no pickle: allow_pickle"),
    ("rlhf_ray/store.py", "from numpy import load\nload('f', allow_pickle=x)", 2, "no pickle: allow_pickle"),
    ("tests/test_x.py", "x = 1\n" * 601, 601, "the file has 601 lines, more than 600"),
]


@pytest.mark.parametrize(("path", "source", "line", "rule"), OFFENCES)
def test_an_offence_is_found(path: str, source: str, line: int, rule: str) -> None:
    assert check([(path, source)]) == [Violation(path, line, rule)]


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("rlhf_ray/store.py", "import raylike, rayon.rllib\nfrom rlhf_ray import client, schedules"),
        ("rlhf_ray/reward/trainer.py", "from . import losses\nfrom ..fragments import Fragments"),
        ("rlhf_ray/store.py", "import numpy as np\nnp.load('f')\nnp.load('f', allow_pickle=False)"),
        ("rlhf_ray/reward/files.py", "from safetensors.torch import save\nsave({})\nmodel.save('f')"),
        ("rlhf_ray/store.py", "# import ray\n'import ray'"),
        ("rlhf_ray/wrappers/ring.py", "import ray, actors.pipeline\nfrom rlhf_ray.wrappers import saved"),
        ("actors/gatherer.py", "import ray\nfrom ray.util import queue\nfrom rlhf_ray.reward import trainer"),
        ("rlhf_ray/rllib/config.py", "import ray.rllib, ray.tune, actors.pipeline\nfrom ..reward import trainer"),
        ("rlhf_ray/cli.py", "import ray.tune, tune_configs\nfrom rlhf_ray.rllib import config"),
        ("tune_configs/pong.py", "from ray import tune\nimport rlhf_ray.rllib"),
        ("benchmarks/peer.py", "import pickle, torch, ray.rllib\ntorch.save({}, 'f')"),
        ("tests/test_x.py", "import pickle, ray.tune, rlhf_ray.cli\n" + "x = 1\n" * 599),
    ],
)
def test_what_is_allowed_is_left_alone(path: str, source: str) -> None:
    assert check([(path, source)]) == []


def test_every_file_of_several_is_checked() -> None:
    found = check([("rlhf_ray/b.py", "import ray"), ("rlhf_ray/ok.py", "import os"), ("rlhf_ray/a.py", "\nimport ray")])
    assert [str(violation) for violation in found] == [f"rlhf_ray/a.py:2: {RAY}", f"rlhf_ray/b.py:1: {RAY}"]
