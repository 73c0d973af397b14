"""Files and folders that are whole or not there, and those that are nobody's."""

import contextlib
import errno
import os
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf_ray.data.atomic import append, find_folder, left_over, whole_file, whole_folder, write_text
from rlhf_ray.data.strays import is_empty, stray


def save(path: Path, number: int) -> None:
    with whole_folder(path) as folder:
        (folder / "number").write_text(str(number))
        (folder / f"only {number}").touch()


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Files can't get larger than 5 kB: to the process as good as a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_000, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "file"
    write_text(path, "before")

    def interrupted() -> None:
        with whole_file(path) as sink:
            sink.write(b"half")
            sink.flush()
            assert path.read_text() == "before"
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_text() == "before"
    write_text(path, "§ after")
    assert path.read_bytes().decode() == "§ after"
    assert names(tmp_path) == ["file"]


def test_a_secret_is_never_readable_by_others(tmp_path):
    path = tmp_path / "secret"
    path.touch(mode=0o644)
    with whole_file(path, mode=0o600) as sink:
        (temporary,) = tmp_path.glob(".tmp-*")
        assert stat.S_IMODE(temporary.stat().st_mode) == 0o600
        sink.write(b"token")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_cannot_be_written_is_named(tmp_path):
    path, line = tmp_path / "file", tmp_path / "lines"
    line.write_text("first\n")
    for write, named in ((lambda: write_text(path, "x" * 10_000), path), (lambda: append(line, bytes(9_000)), line)):
        with full_disk(), pytest.raises(OSError, match="File too large") as error:
            write()
        assert error.value.filename == str(named)
    with pytest.raises(OSError, match="No such file") as error:
        write_text(tmp_path / "nowhere" / "file", "text")
    assert (error.value.errno, error.value.filename) == (errno.ENOENT, str(tmp_path / "nowhere" / "file"))
    assert names(tmp_path) == ["lines"]
    assert line.read_text() == "first\n"


def test_a_file_being_written_is_not_left_over(tmp_path):
    with whole_file(tmp_path / "file"):
        (temporary,) = names(tmp_path)
        assert not left_over(temporary)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    assert left_over(temporary.replace(f"-{os.getpid()}-", f"-{pid}-"))


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "saved"
    for number in (1, 2):
        save(path, number)

    def fail(error: type[BaseException]) -> None:
        with whole_folder(path) as folder:
            (folder / "number").write_text("3")
            raise error

    for kind in (ArithmeticError, KeyboardInterrupt):
        with pytest.raises(kind):
            fail(kind)
        assert names(path) == ["number", "only 2"]
        assert (path / "number").read_text() == "2"
    (tmp_path / ".tmp-saved").mkdir()  # of a process that was killed
    (tmp_path / ".tmp-saved" / "half").touch()
    save(path, 4)
    assert names(path) == ["number", "only 4"]
    assert names(tmp_path) == ["saved"]


def test_it_is_found_where_a_process_was_killed_between_the_two_renames(tmp_path):
    path = tmp_path / "saved"
    save(path, 1)
    path.rename(tmp_path / ".old-saved")
    assert (find_folder(path) / "number").read_text() == "1"
    save(path, 2)
    assert (find_folder(path) / "number").read_text() == "2"
    assert names(tmp_path) == ["saved"]


def test_what_was_there_can_be_kept(tmp_path):
    path = tmp_path / "saved"
    save(path, 1)
    with whole_folder(path, keep_old=tmp_path / "before") as folder:
        (folder / "number").write_text("2")
    assert (tmp_path / "before" / "number").read_text() == "1"
    assert (path / "number").read_text() == "2"
    assert names(tmp_path) == ["before", "saved"]


@pytest.mark.parametrize(
    "name",
    [".DS_Store", "._a.png", "desktop.ini", "Thumbs.db", "ehthumbs.db", "Icon\r", ".nfs000000a1", "@eaDir",
     "a (conflicted copy 2026-11-28).csv", "a (Ada's conflicted copy).csv", "a.sync-conflict-20261128-1-ABC.csv"],
)  # fmt: skip
def test_strays(name):
    assert stray(name)


@pytest.mark.parametrize(
    "name", ["a.csv", ".tmp-host-1-0a", ".git", ".env", "_a", "x._y", "thumbs.dbx", "conflict.csv"]
)
def test_files_of_people(name, tmp_path):
    assert not stray(name)
    (tmp_path / "Thumbs.db").touch()
    assert is_empty(tmp_path)
    (tmp_path / name).touch()
    assert not is_empty(tmp_path)
