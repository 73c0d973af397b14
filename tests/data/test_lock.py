"""One writer per folder, in other processes and in this one, and after sudden deaths."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock, LockedError

HOLD = "import sys; from rlhf_ray.data.lock import Lock; lock = Lock(sys.argv[1]); print(flush=True); "
"""A program that takes the lock of a folder, says so, and goes on with what follows."""


OTHER = """
import os, sys
from rlhf_ray.data.lock import Lock
if os.getuid() == 0:
    os.setuid(65534)
try:
    Lock(sys.argv[1]).release()
    print("got it")
except Exception as error:
    print(type(error).__name__, error)
"""
"""A program that tries the lock of a folder without root's rights."""


def holder(folder: Path, then: str = "sys.stdin.read()") -> subprocess.Popen[str]:
    """Start a process that holds the lock of ``folder``."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD + then, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
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


@pytest.mark.parametrize("kind", ["link", "second name", "file", "folder", "pipe"])
def test_what_is_no_lock_file_stays_as_it_is(tmp_path, kind):
    (tmp_path / "precious").write_text("precious")
    file = tmp_path / ".run.lock"
    made = {
        "link": lambda: file.symlink_to(tmp_path / "precious"),
        "second name": lambda: file.hardlink_to(tmp_path / "precious"),
        "file": lambda: file.write_text("precious"),
        "folder": file.mkdir,
        "pipe": lambda: os.mkfifo(file),
    }
    made[kind]()
    with pytest.raises(SettingError, match=rf"run can't be locked: {file} is no lock file .*Remove it if"):
        Lock(tmp_path / "run")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_folder_stays_locked_under_another_name(tmp_path):
    (tmp_path / "run").mkdir()
    with Lock(tmp_path / "run"):
        (tmp_path / "run").rename(tmp_path / "moved")
        with pytest.raises(LockedError):
            Lock(tmp_path / "moved")
    Lock(tmp_path / "moved").release()
    assert [path.name for path in tmp_path.iterdir()] == ["moved"]


def test_users_of_other_rights_have_one_lock():
    with tempfile.TemporaryDirectory() as made:
        above = Path(made)
        run = above / "run"
        run.mkdir()
        run.chmod(0o777)

        def other():
            return subprocess.run([sys.executable, "-c", OTHER, run], capture_output=True, text=True).stdout

        first = Lock(run)
        above.chmod(0o555)  # others can't write beside the folder
        assert f"LockedError {run} is being written by process {os.getpid()} " in other()
        above.chmod(0o1777)
        (above / ".run.lock").chmod(0o444)
        assert f"LockedError {run} is being written by process {os.getpid()} " in other()
        first._close()  # as when killed
        assert (above / ".run.lock").exists()
        assert other() == "got it\n"
        above.chmod(0o755)
