"""A process that ends without a chance to say so."""

from __future__ import annotations

import subprocess
import sys

import pytest

ENDS = {
    "os._exit": "import os; os._exit(3)",
    "a crash": "import ctypes; ctypes.string_at(0)",
    "SIGKILL": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
}


def said(end: str) -> str:
    program = (
        f"from rlhf_ray.runs import last_words\nlast_words.begin()\nlast_words.on_sudden_end('resume with\\n X')\n{end}"
    )
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False).stderr


@pytest.mark.parametrize("end", ENDS.values(), ids=ENDS.keys())
def test_a_sudden_end_has_a_line(end: str) -> None:
    assert said(end) == "resume with X\n"


@pytest.mark.parametrize(
    "end", ["", "import sys; sys.exit(1)", "from rlhf_ray.runs.interruption import leave; leave(0)"]
)
def test_an_orderly_end_has_none(end: str) -> None:
    assert said(end) == ""
