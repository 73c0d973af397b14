"""Rules of the source that import-linter's contracts (pyproject.toml) can't hold."""

import ast
import importlib.util
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml

import rlhf_ray
from rlhf_ray.runs.metrics_files import DECLARE
from tests.command_line import run_python

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = "rlhf_ray"
MAX_LINES = 450
INTERNALS = ("rlhf_ray/actors/ray_internals.py", "rlhf_ray/rllib/rllib_internals.py")
"""The only files that use private names of Ray."""
RLLIB = ("rlhf_ray/rllib/", "rlhf_ray/sweeps/", "rlhf_ray/runs/", "rlhf_ray/cli/", "rlhf_ray/tune_configs/")
"""Where RLlib and Tune may be imported."""
READS_PICKLES = (
    "rlhf_ray/data/pickles.py",
    "rlhf_ray/reward/functions/imitation.py",
    "rlhf_ray/policies/sb3_file.py",
)
"""Read other projects' files, by unpicklers that build only what they list (tests/store/test_exchange.py,
tests/reward/test_loading.py)."""


CHOOSES_DEVICE = ("rlhf_ray/reward/ensemble.py", "rlhf_ray/interpret/agent/steps/world_model.py")
"""The only files that name a GPU, if there is one or the user asks for it; everywhere else the device is an argument."""


def sources(*folders: str) -> list[tuple[str, str]]:
    """(path, text) of each Python file below."""
    files = sorted(file for folder in folders for file in (ROOT / folder).rglob("*.py"))
    return [(file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")) for file in files]


def imported(tree: ast.AST) -> Iterator[str]:
    """The full name of each thing imported anywhere in a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def dotted(node: ast.AST) -> str:
    """``a.b.c`` as written; "" for anything but a dotted name."""
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def private_ray(tree: ast.AST) -> set[str]:
    """Private names of Ray that are imported, or reached through ``ray``."""
    names = {*imported(tree), *(dotted(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute))}
    return {name for name in names if name.startswith("ray.") and "._" in name.replace(".__", ".")}


def pickles(tree: ast.AST) -> set[str]:
    """Ways to write or read a pickle."""
    found = {name for name in imported(tree) if name.partition(".")[0] in ("pickle", "_pickle")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and dotted(node.func) in ("torch.save", "torch.load"):
            found.add(dotted(node.func))
        if isinstance(node, ast.keyword) and node.arg == "allow_pickle" and ast.unparse(node.value) != "False":
            found.add("allow_pickle")
    return found


def test_files_are_short() -> None:
    lines = {path: len(text.splitlines()) for path, text in sources(PRODUCT, "benchmarks", "examples", "tests")}
    assert len(lines) > 200
    assert not {path: count for path, count in lines.items() if count > MAX_LINES}


@pytest.mark.slow
def test_no_class_name_is_there_twice() -> None:
    where = defaultdict(list)
    for path, text in sources(PRODUCT):
        for node in ast.parse(text).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                where[node.name].append(path)
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}


@pytest.mark.slow
def test_private_names_of_ray_are_in_the_two_files_made_for_them() -> None:
    found = {path: private_ray(ast.parse(text)) for path, text in sources(PRODUCT)}
    assert all(found.pop(path) for path in INTERNALS)
    assert not {path: names for path, names in found.items() if names}


@pytest.mark.slow
def test_the_actors_and_what_lies_below_import_no_rllib_and_no_tune() -> None:
    for path, text in sources(PRODUCT):
        names = {name for name in imported(ast.parse(text)) if name.startswith(("ray.rllib", "ray.tune"))}
        assert not names or path.startswith(RLLIB), path


@pytest.mark.slow
def test_nothing_is_pickled() -> None:
    found = {path: pickles(ast.parse(text)) for path, text in sources(PRODUCT)}
    assert all(found.pop(path) for path in READS_PICKLES)
    assert not {path: names for path, names in found.items() if names}


def gpus(tree: ast.AST) -> set[str]:
    """Ways to put something on a GPU."""
    nodes = list(ast.walk(tree))
    constants = {str(node.value) for node in nodes if isinstance(node, ast.Constant)}
    return {text for text in constants if re.fullmatch(r"cuda(:\d+)?", text)} | {
        ".cuda()"
        for node in nodes
        if isinstance(node, ast.Attribute) and node.attr == "cuda" and dotted(node) != "torch.cuda"
    }


@pytest.mark.slow
def test_no_gpu_is_taken_for_granted() -> None:
    found = {path: gpus(ast.parse(text)) for path, text in sources(PRODUCT, "benchmarks", "examples")}
    assert all(found.pop(path) for path in CHOOSES_DEVICE)
    assert not {path: names for path, names in found.items() if names}
    assert gpus(ast.parse("model.cuda().to('cuda:0')")) == {".cuda()", "cuda:0"}


def loaded(name: str, modules: Mapping[str, str]) -> set[str]:
    """The modules that the module ``name`` imports, names in a string, or loads by their name in a package: f"{__name__}.{part}".

    Of such a package these are the modules that the file names in its strings, or all, where it looks through the folder.
    """
    tree = ast.parse(modules[name])
    found = {*imported(tree), name.rpartition(".")[0]}
    strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)]
    found |= {match[0] for text in strings if (match := re.match(rf"{PRODUCT}(\.\w+)+", text))}
    listed = {text.partition(":")[0] for text in strings}
    for node in ast.walk(tree):
        written = ast.unparse(node).replace("{__name__}", name) if isinstance(node, ast.JoinedStr) else ""
        if match := re.match(rf"f.({PRODUCT}[.\w]*)\.{{", written):
            parts = {part for part in modules if part.rpartition(".")[0] == match[1]}
            every = "iter_modules(__path__)" in modules[name]
            found |= {part for part in parts if every or part.rpartition(".")[2] in listed}
    return {known for full in found for known in (full, full.rpartition(".")[0]) if known in modules}


def reached(loads: Mapping[str, set[str]], roots: Iterable[str]) -> set[str]:
    """The modules that are loaded where ``roots`` are, at once or later."""
    seen: set[str] = set()
    left = {name for name in roots if name in loads}
    while left:
        seen |= left
        left = {more for name in left for more in loads[name]} - seen
    return seen


@pytest.mark.slow
def test_each_module_is_used_by_a_command_or_by_what_the_documentation_and_the_examples_show() -> None:
    """A module that only tests and benchmarks import belongs to them."""
    modules = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text for path, text in sources(PRODUCT)
    }
    loads = {name: loaded(name, modules) for name in modules}
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"].values()
    roots = {script.partition(":")[0] for script in scripts} | {f"{PRODUCT}.__main__"}
    assert len(reached(loads, roots)) > 350
    shown = [path.read_text(encoding="utf-8") for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]]
    for text in [*shown, *(text for _, text in sources("examples"))]:
        for name in re.findall(rf"{PRODUCT}(?:\.\w+)+", text):
            roots |= {name, name.rpartition(".")[0]}
    assert set(modules) - reached(loads, roots) == set()


PROGRAM = """
import os, random, signal, sys, gymnasium, numpy, torch

def everything():
    streams = random.getstate(), numpy.random.get_state()[1].tolist(), torch.random.get_rng_state().tolist()
    handlers = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    return torch.get_num_threads(), dict(os.environ), streams, handlers

before = everything()
import rlhf_ray, rlhf_ray.reward, rlhf_ray.store, rlhf_ray.envs
import rlhf_ray.queries.pool, rlhf_ray.labelling.desk, rlhf_ray.agents.true_return
print(before == everything(), "ray" in sys.modules)

from rlhf_ray.optim import Adam, AdamW
for kind in (Adam, AdamW):
    network = torch.nn.Linear(3, 2)
    optimizer = kind(network.parameters(), lr=0.1)
    optimizer.zero_grad(); network(torch.ones(1, 3)).sum().backward(); optimizer.step()
    optimizer.load_state_dict(optimizer.state_dict())
print("torch._dynamo" in sys.modules)
"""


@pytest.mark.slow
def test_importing_the_method_changes_nothing_process_wide_and_neither_ray_nor_torchs_compiler_is_imported() -> None:
    """Not by a gradient step either: to import the compiler takes longer than to import torch, in each process that fits."""
    assert run_python(PROGRAM).stdout.split() == ["True", "False", "False"]


@pytest.mark.parametrize(("link", "module"), [("actors", "actors.ring"), ("tune_configs", "tune_configs.pendulum")])
def test_the_links_at_the_top_are_no_second_modules(link: str, module: str) -> None:
    program = f"import sys; sys.path.insert(0, {str(ROOT)!r}); import {module}"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    if (ROOT / link).exists():  # a zip or a checkout without links has none
        assert f"ImportError: {link} is a link to rlhf_ray.{link}" in done.stderr
        assert done.stderr.rstrip().endswith(f"import rlhf_ray.{link}.")


def test_every_module_that_declares_metrics_is_read() -> None:
    declaring = {path.removesuffix(".py").replace("/", ".") for path, text in sources(PRODUCT) if "\ndeclare(" in text}
    assert declaring - {"rlhf_ray.data.metrics"} == set(DECLARE)


def test_scripts_import_what_is_there() -> None:
    """No other test imports most of them; what they can't import, they can't run."""
    names = {name for _, text in sources("benchmarks", "examples") for name in imported(ast.parse(text))}
    own = sorted(name for name in names if name.startswith(("rlhf_ray.", "benchmarks.")))
    lacking = []
    for name in own:
        module, _, rest = name.rpartition(".")
        if importlib.util.find_spec(module) is None or (
            not hasattr(importlib.import_module(module), rest) and importlib.util.find_spec(name) is None
        ):
            lacking.append(name)
    assert len(own) > 100
    assert not lacking


def test_documents_name_what_is_there() -> None:
    known = {
        path.removesuffix(".py").removesuffix("/__init__").replace("/", "."): text for path, text in sources(PRODUCT)
    }
    lacking, found = set(), 0
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        text = document.read_text(encoding="utf-8")
        for name in re.findall(r"\brlhf_ray(?:\.\w+)+(?!\.?[\w/])", text):
            if name.endswith((".py", ".preferences")):  # a file; the store's format
                continue
            module, _, rest = name.rpartition(".")
            found += 1
            if name not in known and not re.search(
                rf"\b{rest}\b", known.get(module, known.get(module.rpartition(".")[0], ""))
            ):
                lacking.add((document.name, name))
        for path in re.findall(r"`((?:rlhf_ray|tests|benchmarks|examples)/[\w/]+\.py)\b", text):
            found += 1
            if not (ROOT / path).is_file():
                lacking.add((document.name, path))
    files = {path.rpartition("/")[2] for path, _ in sources(PRODUCT)}
    short = re.findall(r"`([a-z_]+\.py)`", (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8"))
    lacking |= {("architecture.md", name) for name in short if name not in files}
    assert found > 40
    assert not lacking


def test_one_place_names_version_and_hosting() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["repository-code"] == project["urls"]["Repository"]
    assert citation["version"] == project["version"] == rlhf_ray.__version__
    named = [
        path
        for path, text in sources(PRODUCT, "docs", "benchmarks", "examples")
        if project["urls"]["Repository"] in text
    ]
    assert not named, "read it from pyproject.toml"


def test_no_folder_has_more_lines_than_its_budget() -> None:
    """pyproject.toml holds the lines of Python allowed for each folder. Raising one needs a sentence in CHANGELOG.md."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    budget = settings["tool"]["rlhf_ray"]["lines"]
    packages = {f"rlhf_ray/{path.name}" for path in (ROOT / "rlhf_ray").iterdir() if (path / "__init__.py").exists()}
    assert packages <= set(budget), "a folder without a budget"
    files = {name: [ROOT / name] if name.endswith(".py") else [*(ROOT / name).rglob("*.py")] for name in budget}
    used = {name: sum(len(path.read_text().splitlines()) for path in paths) for name, paths in files.items()}
    assert {folder: (used[folder], most) for folder, most in budget.items() if used[folder] > most} == {}
