"""Commands that fail, and programs in processes of their own. Not a test itself."""

import subprocess
import sys
from typing import Any

import pytest

from rlhf_ray import cli


def fails_with(capsys: pytest.CaptureFixture[str], *words: object) -> str:
    """What a command prints on standard error when it ends with exit code 2."""
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    assert ended.value.code == 2
    return capsys.readouterr().err


def run_python(
    program: str, *arguments: object, timeout: float = 300, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own, with these options of `subprocess.run`; it has to end well."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
