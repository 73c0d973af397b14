"""What goes wrong is one line that says what, where and what to do; a trace is for those who ask for it."""

import errno
import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray import cli
from rlhf_ray.data.checkpoints import save_checkpoint
from rlhf_ray.data.errors import FaultyEnvironmentError
from rlhf_ray.data.failures import DEBUG, cause, explain
from rlhf_ray.runs.folder import RunFolder
from rlhf_ray.settings import Experiment, SettingError


class WrapperError(RuntimeError):
    """As Ray's: its text is a trace."""

    def __init__(self, inner: Exception, trace: str = "Traceback …\n  many lines\n"):
        super().__init__(trace)
        self.cause = inner


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        cli.main([str(word) for word in words])
    printed = capsys.readouterr()
    assert printed.out == ""
    assert isinstance(ended.value.code, int)
    return ended.value.code, printed.err


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    """A run with one checkpoint, after iteration 7."""
    made = RunFolder.create(tmp_path / "run", Experiment())
    save_checkpoint(made.checkpoints, 7, lambda path: (path / "state").write_text("weights"), unlisted="preferences")
    made.metrics.write_text(json.dumps({"iteration": 7, "env_steps": 10, "comparisons": 3}) + "\n")
    return made


def test_the_cause_is_found_in_whatever_it_is_wrapped():
    fault = FaultyEnvironmentError("Environment x, step 3: …")
    outer = RuntimeError("sampling failed")
    outer.__cause__ = WrapperError(fault)
    assert cause(outer) is fault
    assert cause(WrapperError(SettingError("seed is -1"))).args == ("seed is -1",)
    told = RuntimeError("a message of its own")
    told.__cause__ = KeyError("detail")
    assert cause(told) is told


def test_what_a_users_own_code_raises_is_told_with_its_place(tmp_path):
    own = tmp_path / "mine.py"
    scope: dict[str, Any] = {"decode": json.JSONDecoder().decode}
    exec(compile("def answer(text):\n    return decode(text)\n", str(own), "exec"), scope)
    with pytest.raises(json.JSONDecodeError) as raised:
        scope["answer"]("{")
    line = f"{own}, line 2, in answer, raised JSONDecodeError: Expecting property name"
    assert explain(raised.value).startswith(line)
    assert "\n" not in explain(raised.value)
    trace = "".join(traceback.format_exception(raised.value))
    assert explain(WrapperError(raised.value.with_traceback(None), trace)).startswith(line)
    ours = f'  File "{cli.__file__}", line 9, in main\n'
    assert explain(WrapperError(raised.value, ours + trace + ours)).startswith(
        line
    )  # ours called it, and it called ours
    scope["decode"] = explain  # ours, and nothing around it but this program
    with pytest.raises(AttributeError) as of_ours:
        scope["answer"]("{")
    assert explain(of_ours.value).startswith("unexpected AttributeError")


def test_a_disk_error_names_file_and_remedy():
    full = OSError(errno.ENOSPC, "No space left on device", "/runs/a/metrics.jsonl")
    assert explain(WrapperError(full)) == (
        "/runs/a/metrics.jsonl: No space left on device. Please free some space there and repeat the command; a training "
        "run continues with `rlhf-ray train --resume RUN`."
    )
    stored = OSError(
        errno.ENOSPC, "writing /runs/a/preferences/clips/1.arrow: No space left on device (free space, then repeat)"
    )
    assert explain(WrapperError(stored)) == (
        "writing /runs/a/preferences/clips/1.arrow: No space left on device (free space, then repeat). A training run continues "
        "with `rlhf-ray train --resume RUN`."
    )
    assert "Make it writable" in explain(OSError(errno.EROFS, "Read-only file system", "/runs/a"))
    assert explain(ValueError("odd\nthing")).startswith("unexpected ValueError: odd. --debug shows the traceback")


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["evaluate", "RUN", "--episodes", "0"], 2, "--episodes is 0; it must be 1 or more"),
        (["train", "pendulum", "--evaluation-episodes", "0"], 2, "evaluation_episodes is 0"),
        (["train", "pendulum", "--cores", "0"], 2, "cores is 0; it must be 1 or more"),
        (["train", "pendulum", "--run-dir", "/proc/run"], 2, "--run-dir is /proc/run, which can't be created"),
        (["train", "RUN/config.json"], 2, "config.json (truncated or not JSON"),
        (["evaluate", "RUN"], 2, "Can't read settings from"),
        (["train", "--resume", "RUN"], 2, "run.json is missing: restore it"),
    ],
)
def test_a_mistake_is_one_line(capsys, folder, words, code, said):
    folder.config.write_text('{"environment": "Pend')
    folder.run.unlink()
    ended, printed = run(capsys, *(word.replace("RUN", str(folder.path)) for word in words))
    assert printed.startswith("rlhf-ray: ")
    assert said in printed
    assert printed.count("\n") == 1
    assert ended == code


def test_damaged_checkpoints_are_not_called_missing_ones(capsys, folder):
    (folder.checkpoints / "00000007" / "state").write_text("rubbish")
    for words in (["evaluate", folder.path], ["record", folder.path, "--out", folder.path / "x.npz"]):
        _, printed = run(capsys, *words)
        assert "are damaged; files are missing or changed (00000007: state)" in printed
    shutil.rmtree(folder.checkpoints)
    assert "has no policy yet" in run(capsys, "evaluate", folder.path)[1]


def test_a_folder_that_could_not_be_begun_is_not_left(tmp_path, monkeypatch):
    def full(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("rlhf_ray.runs.folder.save_experiment", full)
        with pytest.raises(OSError, match=r"No space left on device: .*config.json"):
            RunFolder.create(tmp_path / "run", Experiment())
    RunFolder.create(tmp_path / "run", Experiment())


def test_a_trace_is_for_those_who_ask(capsys, monkeypatch):
    monkeypatch.setenv(DEBUG, "0")
    assert "Traceback" not in run(capsys, "evaluate", "/nowhere")[1]
    assert "Traceback" in run(capsys, "evaluate", "/nowhere", "--debug")[1]
    assert "Traceback" in run(capsys, "evaluate", "/nowhere")[1]  # by the environment variable, which processes inherit


def test_whoever_reads_may_stop_reading():
    program = (
        f'{sys.executable} -c \'from rlhf_ray.cli import main; main(["train", "pendulum", "--help"])\' | head -n 1'
    )
    finished = subprocess.run(
        ["bash", "-c", program], capture_output=True, text=True, timeout=100, env=dict(os.environ)
    )
    assert finished.stderr == ""
    assert finished.stdout.count("\n") == 1
