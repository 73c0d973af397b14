"""Every block of code in README.md and docs/: Python runs, and commands are real ones.

A comment in the line above a block says what is special about it; readers of the page don't see it:

    <!-- soak -->           it takes minutes: `make soak` runs it
    <!-- not run: why -->   it can't run here

All other Python runs in the tests, a page in one namespace, in a folder as a user has one (`workplace`). Blocks that begin with
`# my_parts.py` are saved as that file. The command line itself parses every command of ours; of other programs, targets and files
have to exist. README's Python counts as soak.
"""

from __future__ import annotations
import __future__

import ast
import contextlib
import dataclasses
import importlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import save_file

from docs import generated
from examples.worlds import CueRunBatch
from rlhf_ray import cli
from rlhf_ray.agents import saved
from rlhf_ray.cli.arguments import parse_arguments
from rlhf_ray.data import modules
from rlhf_ray.data.spaces import space_to_json
from rlhf_ray.policies import ActorCriticNetwork, PolicyShape
from rlhf_ray.queries.gatherers import GATHERERS
from rlhf_ray.queries.schedule import LABEL_RATES
from rlhf_ray.queries.selection import SELECTIONS
from rlhf_ray.reward import RewardEnsemble
from rlhf_ray.reward.likelihood import LOSSES
from rlhf_ray.reward.methods import METHODS
from rlhf_ray.reward.networks import NETWORKS
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, RewardModelSettings, save_experiment
from rlhf_ray.store import PreferenceStore
from rlhf_ray.teachers import TEACHERS
from tests.made_up import some_comparisons
from tests.whole_runs import with_path

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PROGRAMS = r"cat|cd|export|git|gcloud|kubectl|ollama|pip|ray|source|ssh|tensorboard|uv|wandb"
"""Other people's, which pages may name."""
MOST_NOT_RUN = 12
"""Blocks that no test runs. One more has to be worth it."""
RIGHT: set[tuple[str, ...]] = set()
"""Commands that were parsed: several pages have the same ones."""
OBSERVATIONS, ACTIONS = gym.spaces.Box(-8.0, 8.0, (3,), np.float32), gym.spaces.Box(-2.0, 2.0, (1,), np.float32)


@dataclass(frozen=True)
class Block:
    """A block of code: where it is, its language, its mark (soak, not run, or none) with the reason, and its text."""

    page: Path
    line: int
    language: str
    mark: str
    why: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def file(self) -> str | None:
        """The file that it says it is."""
        name = re.match(r"# (\w+\.py)\n", self.text)
        return name[1] if name else None


def blocks(page: Path, *languages: str) -> list[Block]:
    found, lines = [], page.read_text().splitlines()
    starts = [i for i, line in enumerate(lines) if re.fullmatch(rf"```({'|'.join(languages)})", line)]
    for start in starts:
        comment = re.fullmatch(r"<!-- (soak|not run)(?:: (.+))? -->", lines[start - 1])
        mark, why = comment.groups("") if comment else ("", "")
        if page.name == "README.md" and not mark and lines[start] == "```python":
            mark = "soak"
        end = lines.index("```", start)
        found.append(Block(page, start + 2, lines[start][3:], mark, why, "\n".join(lines[start + 1 : end]) + "\n"))
    return found


def commands(block: Block) -> Iterator[list[str]]:
    """The words of each command."""
    text = block.text
    if block.language == "console":
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.shlex(line, posix=True, punctuation_chars=True)
        words.whitespace_split = True
        command: list[str] = []
        for word in words:
            if word in ("|", "&", "&&", ";"):
                yield command
                command = []
            else:
                command += shlex.split(word) if word.startswith("rlhf-ray ") else [word]
        if command:
            yield command


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the pages take for granted: a run, a store, a fitted reward, and the files that blocks of any page are."""
    folder = tmp_path_factory.mktemp("pages")
    options = {"reference": False, "evaluation_episodes": 20}
    run = RunFolder.create(folder / "runs" / "example", Experiment(), options)
    save_experiment(Experiment(), run.path / "best.json")
    store = PreferenceStore(folder / "preferences")
    store.commit(some_comparisons(60, 10, observations=OBSERVATIONS, actions=ACTIONS), annotator="oracle")
    store.copy_to(folder / "labels")
    store.copy_to(run.preferences)
    shutil.copytree(ROOT / "examples" / "worlds", folder / "worlds")
    world = CueRunBatch(1)
    shape = PolicyShape("small", memory="gru", memory_units=8)
    network = ActorCriticNetwork(world.observation_space, world.action_space, shape)
    torch.nn.init.constant_(network.get_submodule("actor").bias[1:2], 9.0)  # run right: short episodes
    cue = RunFolder.create(folder / "runs" / "cuerun", Experiment(environment="worlds:rlhf_ray/CueRun-v0"))
    spaces = {"observation_space": world.observation_space, "action_space": world.action_space}
    about = {"format": saved.FORMAT, "module": saved.ACTOR_CRITIC, "model_config": dataclasses.asdict(shape)}
    about |= {"iteration": 1} | {name: space_to_json(space) for name, space in spaces.items()}
    cue.policy.mkdir()
    (cue.policy / saved.POLICY_FILE).write_text(json.dumps(about))
    save_file(network.state_dict(), cue.policy / saved.WEIGHTS_FILE)
    reward = RewardEnsemble(OBSERVATIONS, ACTIONS, RewardModelSettings())
    for place in (folder / "reward_model", folder / "reward", run.reward_model):
        reward.save(place)
    for block in [block for page in PAGES for block in blocks(page, "python") if block.file]:
        with (folder / str(block.file)).open("a") as file:
            file.write(block.text)
    return folder


@pytest.fixture
def workplace(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of its own with all that, which the test is in."""
    folder = tmp_path / "here"
    shutil.copytree(made, folder)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", [str(folder), *sys.path])
    monkeypatch.setenv(modules.FOLDERS, str(folder))
    before = set(sys.modules)
    yield folder
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", None)).startswith(str(folder)):
            del sys.modules[name]


def concrete(text: str, folder: Path) -> str:
    """``text`` with a path that is there in the place of each that has … in it."""

    def there(path: re.Match[str]) -> str:
        found = sorted(folder.glob(path[0].replace("…", "*")))
        return found[0].relative_to(folder).as_posix() if found else "runs/example"

    return re.sub(r"[\w./-]+/[\w./-]*…[\w./…-]*", there, text)


class ParsedError(BaseException):
    """Raised in the place of running a command whose words are right."""


@pytest.fixture
def parse(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have the command line parse words, and do nothing else."""

    def parsed(*arguments: Any, **options: Any) -> Any:
        parse_arguments(*arguments, **options)
        raise ParsedError

    modules_of_commands = {name.partition(":")[0] for name in cli.COMMANDS.values()}
    for module in modules_of_commands | {"fit_rewards"}:
        monkeypatch.setattr(importlib.import_module(f"rlhf_ray.cli.{module}"), "parse_arguments", parsed)
    resumed = importlib.import_module("rlhf_ray.cli.tune")._resumed
    monkeypatch.setattr("rlhf_ray.cli.tune._resumed", lambda words: parsed_resume(resumed, words))
    monkeypatch.setattr(cli, "sigterm_as_ctrl_c", lambda: None)

    def parsed_resume(resumed: Any, words: list[str]) -> Any:
        resumed(words)
        raise ParsedError

    def parse(words: list[str]) -> None:
        words = [concrete(word, workplace) for word in words if word != "…"]
        words = [re.sub(r"^(RUN|runs/[\w.-]+)(?=/|$)", "runs/example", word) for word in words]
        if words and words[0] == "submit" and "--" in words:
            parse(words[words.index("--") + 1 :])
        with contextlib.suppress(ParsedError):
            cli._run(words)

    return parse


def check_other(words: list[str]) -> None:
    """Check a command of another program: it is one that pages may name, and what it names of ours exists."""
    program, rest = Path(words[0]).name, words[1:]
    if program == "make":
        targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        assert all("=" in word or word in targets for word in rest), words
    elif program in ("python", "pytest"):
        files = [word.partition("::")[0] for word in rest if re.fullmatch(r"[\w/]+\.py(::.*)?|tests/\S+", word)]
        assert all((ROOT / file).exists() for file in files), words
    elif "/" in words[0]:
        assert (ROOT / words[0]).exists(), words
    else:
        assert re.fullmatch(PROGRAMS, program), words


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_real(page: Path, parse: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for block in blocks(page, "bash", "console"):
        for words in commands(block):
            words = [word for i, word in enumerate(words) if i or not re.fullmatch(r"\w+=\S*", word)]
            if tuple(words) in RIGHT:
                continue
            names = [Path(word).name for word in words]
            try:
                if "rlhf-ray" in names:
                    parse(words[names.index("rlhf-ray") + 1 :])
                elif words:
                    check_other(words)
                RIGHT.add(tuple(words))
            except (SystemExit, Exception) as error:
                said = capsys.readouterr().err
                pytest.fail(f"{block}: {shlex.join(words)}: {type(error).__name__}: {error} {said}")


@pytest.mark.slow
def test_commands_in_scripts_are_real(parse: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in the descriptions of examples and benchmarks; words in capitals stand for something that is there."""
    stands_for = {"PRESET": "pendulum", "ENVIRONMENT": "Pendulum-v1", "SEED": "0", "STORE": "preferences",
                  "FOLDER": "reward", "RUN": "runs/cuerun"}  # fmt: skip
    monkeypatch.setattr(sys, "path", [str(ROOT / "examples"), *sys.path])
    monkeypatch.setenv(modules.FOLDERS, f"{Path.cwd()}{os.pathsep}{ROOT / 'examples'}")
    # An example that another test imported would not register its environment again.
    for script in (ROOT / "examples").glob("*.py"):
        monkeypatch.delitem(sys.modules, script.stem, raising=False)
    found = 0
    for script in [*(ROOT / "examples").glob("*.py"), *(ROOT / "benchmarks").rglob("*.py")]:
        said = (ast.get_docstring(ast.parse(script.read_text())) or "").replace("\\\n", " ")
        for line in re.findall(
            r"`((?:rlhf-ray|python)\s\S+\s[^`]+)`|^ *((?:rlhf-ray|python) [^`\n]+)$", said, re.MULTILINE
        ):
            given = shlex.split(re.sub(r"\[[^]]*\]", "", line[0] or line[1]), comments=True)
            words = [stands_for.get(word, word) for word in given]
            try:
                if words[0] == "rlhf-ray":
                    parse(words[1:])
                else:
                    check_other(words)
                    text = (ROOT / words[1]).read_text()
                    known = [word.split("=")[0] for word in words[2:] if word.startswith("--") and "." not in word]
                    assert "parse_known_args" in text or all(f'"{option}"' in text for option in known), words
            except (SystemExit, Exception) as error:
                pytest.fail(f"{script.name}: {shlex.join(words)}: {type(error).__name__}: {error}")
            found += 1
    assert found > 40


@pytest.mark.slow
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=lambda page: page.name)
def test_python_runs(page: Path, workplace: Path) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks(page, "python"):
        text = "\n" * (block.line - 1) + concrete(textwrap.dedent(block.text), workplace)
        code = compile(text, str(page), "exec", __future__.annotations.compiler_flag)
        if block.file:
            importlib.import_module(block.file.removesuffix(".py"))
        elif not block.mark:
            exec(code, namespace)


SOAKED = [page for page in PAGES if "soak" in {block.mark for block in blocks(page, "python", "bash")}]


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("page", SOAKED, ids=lambda page: page.name)
def test_whole_page_runs(page: Path, workplace: Path) -> None:
    """Those of a page's commands that are marked, then all of its Python as one script."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = with_path(workplace) | {"PATH": path}
    python = ""
    for block in blocks(page, "python", "bash"):
        text = concrete(textwrap.dedent(block.text), workplace)
        if block.language == "python" and block.mark in ("", "soak") and not block.file:
            python += text + "\n"
        elif block.language == "bash" and block.mark == "soak":
            subprocess.run(["bash", "-euo", "pipefail", "-c", text], cwd=workplace, env=environment, check=True)
    if python:
        (workplace / "page.py").write_text("from __future__ import annotations\n" + python)
        subprocess.run([sys.executable, "page.py"], cwd=workplace, env=environment, check=True)


def test_what_is_not_run_is_little_and_says_why() -> None:
    exempt = [block for page in PAGES for block in blocks(page, "python", "bash", "console") if block.mark == "not run"]
    print(f"{len(exempt)} blocks are not run:", *(f"  {block}: {block.why}" for block in exempt), sep="\n")
    assert all(block.why for block in exempt), exempt
    assert not [page for page in PAGES if "@@" in page.read_text()]  # a figure that is still to come
    assert len(exempt) <= MOST_NOT_RUN


@pytest.mark.parametrize("page", generated.pages(), ids=lambda page: page.name)
def test_generated_parts_are_fresh_and_no_page_shows_raw_directives(page: Path) -> None:
    text = page.read_text()
    assert generated.filled(text, page) == text, "run `make docs` and commit what it renews"
    assert not re.search(r"^(```|:::)\s*\{|^\.\. auto", re.sub(r"<!-- .*?-->", "", text, flags=re.DOTALL), re.MULTILINE)
    parts = ("<!-- site: eval-rst", "<!-- public: ", "<!-- help: ", "<!-- code: ", "<!-- presets -->")
    assert sum(map(text.count, parts)) == text.count("<!-- end -->") or "table: " in text


def test_the_site_gets_directives_in_the_place_of_tables() -> None:
    directive = ".. autoclass:: rlhf_ray.store.Event\n   :members:\n"
    page = f"before\n\n<!-- site: eval-rst\n{directive}-->\n<!-- end -->\n\nafter\n"
    filled = generated.filled(page, ROOT / "docs" / "reference" / "store.md")
    assert "| [`Event`](../../rlhf_ray/store/" in filled
    assert generated.for_the_site(filled) == f"before\n\n```{{eval-rst}}\n{directive}```\n\nafter\n"
    hidden = "<!-- site: toctree\n:hidden:\n\ncli\n-->\n\n<!-- site: toctree\n:hidden:\n\nstore\n-->\n"
    assert generated.for_the_site(hidden) == hidden.replace("<!-- site: toctree", "```{toctree}").replace("-->", "```")


def test_the_workflow_publishes_what_make_docs_builds() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "docs.yml").read_text())
    steps = workflow["jobs"]["build"]["steps"]
    assert any(step.get("run") == "make docs" for step in steps)
    (upload,) = [step for step in steps if step.get("uses", "").startswith("actions/upload-pages-artifact")]
    assert f" {upload['with']['path']}" in (ROOT / "Makefile").read_text()
    assert workflow["permissions"]["pages"] == "write"


def anchors(page: Path) -> list[str]:
    """Those that GitHub gives a page's headings."""
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    heads = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", head) for head in re.findall(r"^#+ (.+)$", prose, re.MULTILINE)]
    return [re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads]


@pytest.mark.parametrize(
    "page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *generated.pages()], ids=lambda page: page.name
)
def test_links_lead_somewhere_on_github_too(page: Path) -> None:
    prose = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert "://" in target or file.exists(), target
        assert not anchor or file.suffix != ".md" or anchor in anchors(file), target


def test_each_built_in_part_is_named_in_the_help_and_in_the_docs() -> None:
    registries = [TEACHERS, GATHERERS, SELECTIONS, LABEL_RATES, NETWORKS, LOSSES, METHODS]
    page = (ROOT / "docs" / "your_own_parts.md").read_text()
    for registry in registries:
        group, _, name = registry.setting.partition(".")
        help_text = generated.documented(type(getattr(Experiment(), group)))[name]
        for part in registry.parts:
            assert part in help_text, f"{registry.setting}: the help does not name {part}"
            assert f"`{part}`" in page, f"{registry.setting}: docs/your_own_parts.md does not name {part}"
