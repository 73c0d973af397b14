"""The parts of the pages that are made from the code: the help of commands, and tables of what the reference documents.

Pages are read in two places. GitHub shows the Markdown as it is, so these parts are kept in the files; the site (`make docs`) shows
the whole docstrings instead of the tables. A part stands between two comments, which nobody sees:

    <!-- help: evaluate -->            what `rlhf-ray evaluate --help` prints, in 80 columns
    <!-- end -->

    <!-- code: rlhf_ray.store.Event -->   the source of a class, function or method
    <!-- end -->

    <!-- site: eval-rst                Sphinx's directives, for the site alone; below, the table of the same things
    .. autoclass:: rlhf_ray.store.Event
    -->
    <!-- end -->

    <!-- public: learn Run -->      these names of `import rlhf_ray as rr`
    <!-- end -->

    <!-- presets -->                the presets, each with its recorded runs in benchmarks/results
    <!-- end -->

A directive without a table has no end: `<!-- site: toctree … -->`.

    python docs/generated.py     # make the parts of all pages anew; `make docs` does so first
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import io
import json
import os
import pkgutil
import pydoc
import re
import statistics
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from rlhf_ray import tune_configs
from rlhf_ray.cli import main

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "results"
KINDS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", bool: "True or False"}
HELP = re.compile(r"(<!-- help: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
CODE = re.compile(r"(<!-- code: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
PRESETS = re.compile(r"(<!-- presets -->\n).*?(<!-- end -->)", re.DOTALL)
PUBLIC = re.compile(r"(<!-- public: (.+?) -->\n).*?(<!-- end -->)", re.DOTALL)
TABLE = re.compile(r"(<!-- site: eval-rst\n(.*?)-->\n).*?(<!-- end -->)", re.DOTALL)
SITE = re.compile(r"<!-- site: ([\w-]+)\n((?:(?!-->).)*)-->(?:\n(?:(?!<!-- ).)*<!-- end -->)?", re.DOTALL)
DIRECTIVE = re.compile(r"^( *)\.\. auto(\w+):: (\S+)\n((?: +:[\w-]+:.*\n)*)", re.MULTILINE)


def for_the_site(text: str) -> str:
    """Put Sphinx's directives in the place of the comments and tables that GitHub gets."""
    return SITE.sub(lambda found: f"```{{{found[1]}}}\n{found[2]}```", text)


def filled(text: str, page: Path) -> str:
    """Return a page's text with its generated parts made anew."""
    text = HELP.sub(lambda found: f"{found[1]}```text\n{help_of(found[2])}\n```\n{found[3]}", text)
    text = PRESETS.sub(lambda found: f"{found[1]}\n{presets()}\n\n{found[2]}", text)
    text = PUBLIC.sub(lambda found: f"{found[1]}\n{public(found[2].split(), page)}\n\n{found[3]}", text)
    text = CODE.sub(lambda found: f"{found[1]}```py\n{source(found[2])}```\n{found[3]}", text)
    return TABLE.sub(lambda found: f"{found[1]}\n{table(found[2], page)}\n\n{found[3]}", text)


def presets() -> str:
    """A table of the presets: what each is, and what its recorded runs reached."""
    rows = ["| preset | | true return at the end, as recorded |", "|---|---|---|"]
    for name in tune_configs.names():
        about = inspect.getdoc(tune_configs.load(name)) or ""
        rows.append(f"| `{name}` | {_cell(about.partition(chr(10))[0].rstrip('.'))} | {_recorded(name)} |")
    return "\n".join(rows)


def _recorded(name: str) -> str:
    """What the benchmarks' runs of a preset reached that changed none of its settings but the seed."""
    found = re.compile(rf"(?:^|\s)train {name}((?: --[\w.-]+ [\w.-]+)*)$")
    cells = [cell for file in RESULTS.glob("method*.json") for cell in json.loads(file.read_text())["cells"].values()]
    returns: dict[str, list[float]] = {}
    for cell in cells:
        words = found.search(cell["command"])
        given = dict(pair.split() for pair in words[1].split(" --")[1:]) if words else {}
        if words and all(_is_own(tune_configs.load(name).experiment, *pair) for pair in given.items()):
            returns.setdefault(cell["commit"], []).append(cell["return"])
    if not returns:
        return "not measured"
    commit, values = max(returns.items(), key=lambda item: len(item[1]))
    runs = f"{len(values)} runs" if len(values) > 1 else "1 run"
    return f"median {_number(statistics.median(values))}, worst {_number(min(values))} ({runs}, {commit[:7]})"


def _is_own(experiment: Any, setting: str, value: str) -> bool:
    """Whether an option of a recorded command leaves the preset as it is."""
    if setting in ("seed", "evaluation-episodes"):
        return True
    for part in setting.replace("-", "_").split("."):
        experiment = getattr(experiment, part, None)
    return str(experiment) == value


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")


def help_of(command: str) -> str:
    """What a command prints for --help."""
    printed, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "80"
    try:
        with contextlib.redirect_stdout(printed), contextlib.suppress(SystemExit):
            main([*command.split(), "--help"])
    finally:
        os.environ.pop("COLUMNS")
        os.environ |= {} if before is None else {"COLUMNS": before}
    return "\n".join(line.rstrip() for line in printed.getvalue().rstrip().splitlines())


def source(name: str) -> str:
    """The source of what ``name`` stands for, without the indentation of its class."""
    return textwrap.dedent(inspect.getsource(pydoc.locate(name)))  # type: ignore[arg-type]


def table(directives: str, page: Path) -> str:
    """What the directives document, as Markdown tables: settings with their defaults, anything else with its first sentence."""
    found = [(match[2], match[3], match[4]) for match in DIRECTIVE.finditer(directives)]
    if len(found) == 1 and found[0][0] == "class" and ":undoc-members:" in found[0][2]:
        return _settings(pkgutil.resolve_name(found[0][1]))
    rows, owner = ["| | |", "|---|---|"], ""
    for kind, name, given in found:
        if kind in ("method", "property", "attribute"):
            rows.append(_row(f"{owner}.{name}", page))
            continue
        owner = name
        rows += [_row(each, page) for each in (name, *_members(kind, name, given))]
    return "\n".join(rows)


def public(names: list[str], page: Path) -> str:
    """A table of public names, each with its first sentence."""
    return "\n".join(["| | |", "|---|---|", *(_row(f"rlhf_ray.{name}", page, f"rr.{name}") for name in names)])


def _settings(kind: Any) -> str:
    """A table of a dataclass's own settings."""
    rows = ["| setting | takes | default | |", "|---|---|---|---|"]
    said, hints = documented(kind), typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        default = " ".join(map(str, field.default)) if isinstance(field.default, tuple) else str(field.default)
        takes = _takes(hints[field.name])
        if field.default is not dataclasses.MISSING:
            rows.append(f"| `{field.name}` | {_cell(takes)} | {_cell(default)} | {_cell(said.get(field.name, ''))} |")
    return "\n".join(rows)


def _takes(kind: Any) -> str:
    """The form of a value of type ``kind``."""
    if get_origin(kind) in (Union, UnionType):
        return "|".join("None" if part is NoneType else _takes(part) for part in get_args(kind))
    if get_origin(kind) is Literal:
        return "|".join(map(str, get_args(kind)))
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        many = inner[-1] is Ellipsis
        return f"{_takes(inner[0])} …" if many else " ".join(_takes(part) for part in inner)
    return KINDS.get(kind, "TEXT")


@functools.cache
def documented(kind: type) -> dict[str, str]:
    """Return the docstrings of the fields of a dataclass, those of its bases included, each as one paragraph."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        if not dataclasses.is_dataclass(base):
            continue
        (of,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(of, ast.ClassDef)
        for line, after in zip(of.body, of.body[1:], strict=False):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                text = after.value if isinstance(after, ast.Expr) else None
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    found[line.target.id] = " ".join(text.value.split())
    return found


def _members(kind: str, name: str, given: str) -> Iterator[str]:
    """The names of a class's or module's public members that the directive lists, in their order."""
    said = re.search(r":members:(.*)", given)
    if said is None:
        return
    wanted = [each.strip() for each in said[1].split(",") if each.strip()]
    left_out = re.search(r":exclude-members:(.*)", given)
    never = {each.strip() for each in left_out[1].split(",")} if left_out else set()
    of = pkgutil.resolve_name(name)
    for each in wanted or (getattr(of, "__all__", None) or vars(of)):
        member = inspect.getattr_static(of, each, None)
        callable_ = (
            inspect.isroutine(member)
            or inspect.isclass(member)
            or isinstance(member, property | staticmethod | classmethod)
        )
        mine = kind != "module" or getattr(member, "__module__", "").startswith("rlhf_ray")
        if callable_ and mine and not each.startswith("_") and each not in never and inspect.getdoc(getattr(of, each)):
            yield f"{name}.{each}"


def _row(name: str, page: Path, shown: str | None = None) -> str:
    """A thing, linked to its file, and its first sentences; ``shown``: under another name."""
    of, (owner, _, last) = pkgutil.resolve_name(name), name.rpartition(".")
    said = " ".join((inspect.getdoc(of) or "").partition("\n\n")[0].split())
    within = pkgutil.resolve_name(owner)
    shown = shown or (f"{within.__name__}.{last}" if inspect.isclass(within) else last)
    try:
        file = inspect.getsourcefile(inspect.unwrap(of))
    except TypeError:  # a property or a constant
        file = inspect.getsourcefile(within)
    return f"| [`{shown}`]({os.path.relpath(file or '', page.parent)}) | {_cell(said)} |"


def _cell(text: str) -> str:
    """Text in a table: reST's double backticks as Markdown's."""
    return text.replace("``", "`").replace("|", "\\|")


def pages() -> list[Path]:
    """All pages."""
    return sorted(DOCS.rglob("*.md"))


if __name__ == "__main__":
    for each in pages():
        text = each.read_text()
        if (made := filled(text, each)) != text:
            each.write_text(made)
            print(f"{each.relative_to(DOCS.parent)}: made anew")
