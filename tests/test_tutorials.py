"""The tutorials about rewards and agents, word for word: their commands and their Python, in a folder that holds nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.test_docs import ROOT, Block, blocks
from tests.whole_runs import with_path

TUTORIALS: dict[str, tuple[str, ...]] = {
    "interpret_agent.md": ("# What goes on inside an agent?", "## From CueRun to the finding"),
    "agent_report.md": ("## Recordings", "## Your own agent"),
    "interpret_reward.md": (
        "## From a model to a finding",
        "## Your own counterfactuals",
        "## An equivalent reward that is easier to read",
    ),
}
"""Pages, in the order in which they are read, and their sections that need nothing but what the pages made before."""
ELSEWHERE = "table.npz"
"""Something that the reader has and no page makes: blocks with it are left out."""


def told(page: str) -> list[Block]:
    """The code of a tutorial, in its order; JSON blocks are the file that the next command names."""
    path = ROOT / "docs" / page
    found, heads, code = blocks(path, "bash", "python", "json"), {}, False
    for number, line in enumerate(path.read_text().splitlines()):
        code ^= line.startswith("```")
        if not code and re.match("##? ", line):
            heads[number] = line in TUTORIALS[page]

    def inside(block: Block) -> bool:
        return heads[max(number for number in heads if number < block.line)]

    return [block for block in found if inside(block) and ELSEWHERE not in block.text]


def test_tutorials_have_the_code_that_they_run() -> None:
    for page, sections in TUTORIALS.items():
        assert all(section in (ROOT / "docs" / page).read_text().splitlines() for section in sections)
        assert told(page)
    assert sum(block.language == "python" for block in told("interpret_agent.md")) == 5


@pytest.mark.soak
@pytest.mark.timeout(7200)
def test_tutorials_run_from_a_clean_folder(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "examples" / "worlds", tmp_path / "worlds")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = with_path() | {"PATH": path}
    for page in TUTORIALS:
        script = ""
        for block in told(page):
            if block.language == "bash":
                subprocess.run(
                    ["bash", "-euo", "pipefail", "-c", block.text], cwd=tmp_path, env=environment, check=True
                )
            elif block.language == "json":
                (tmp_path / "edits.json").write_text(block.text)
            elif block.file:
                (tmp_path / block.file).write_text(block.text)
            else:
                script += block.text
        (tmp_path / "page.py").write_text(script)
        subprocess.run([sys.executable, "page.py"], cwd=tmp_path, env=environment, check=True)
