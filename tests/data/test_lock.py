"""One writer per folder, in other processes and in this one, and after sudden deaths."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlhf_ray.data.lock import Lock, LockedError

HOLD = "import sys; from rlhf_ray.data.lock import Lock; lock = Lock(sys.argv[1]); print(flush=True); "
"""A program that takes the lock of a folder, says so, and goes on with what follows."""


def holder(folder: Path, then: str = "sys.stdin.read()") -> subprocess.Popen[str]:
    """Start a process that holds the lock of ``folder``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + then, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_another_process_is_named_and_a_killed_one_lets_go(tmp_path):
    folder = tmp_path / "run"
    process = holder(folder)
    with pytest.raises(LockedError) as refused:
        Lock(folder)
    message = str(refused.value)
    assert message.startswith(f"{folder} is being written by process {process.pid} on {os.uname().nodename}, for ")
    assert f"stop it with `kill {process.pid}`, or give another folder." in message
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / ".run.lock").exists()
    with Lock(folder):
        pass
    assert not list(tmp_path.iterdir())


def test_a_child_that_outlives_a_killed_process_holds_nothing(tmp_path):
    process = holder(tmp_path / "run", "import os, time; os.fork() or print(os.getpid(), flush=True); time.sleep(60)")
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.kill()
    process.wait()
    try:
        os.kill(child, 0)
        Lock(tmp_path / "run").release()
    finally:
        os.kill(child, signal.SIGKILL)


def test_this_process_is_a_writer_too_under_any_name_of_the_folder(tmp_path):
    (tmp_path / "link").symlink_to(tmp_path / "run")
    with Lock(tmp_path / "run"), pytest.raises(LockedError, match=f"by process {os.getpid()} "):
        Lock(tmp_path / "link")
    Lock(tmp_path / "link").release()


def test_folders_above_that_it_makes_go_unless_something_was_written(tmp_path):
    with Lock(tmp_path / "a" / "b" / "run"):
        pass
    assert not list(tmp_path.iterdir())
    with Lock(tmp_path / "a" / "b" / "run"):
        (tmp_path / "a" / "b" / "run").mkdir()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["run"]


def test_who_takes_the_lock_while_it_is_released_has_the_only_one(tmp_path, monkeypatch):
    first = Lock(tmp_path / "run")
    real = os.open

    def late(*arguments, **keywords):
        """Open the file just before its holder deletes it."""
        monkeypatch.setattr(os, "open", real)
        descriptor = real(*arguments, **keywords)
        first.release()
        return descriptor

    monkeypatch.setattr(os, "open", late)
    with Lock(tmp_path / "run"), pytest.raises(LockedError):
        Lock(tmp_path / "run")
