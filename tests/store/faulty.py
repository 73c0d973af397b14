"""A disk that fails or dies at a chosen moment, for the tests. Not a test itself."""

from __future__ import annotations

import io
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlhf_ray.data import atomic, checkpoints
from rlhf_ray.store import files


class PowerCutError(BaseException):
    """The process ends here. No `except Exception` or `OSError` may catch it."""


class FaultyDisk:
    """Stands in for `os` and `open` of the store's file layer; counts what is done and fails at operation ``at``.

    With ``error`` every operation from then on, as long as `failing`, raises that `OSError`. Without, the power goes at that
    moment (a write has got some way), and `lose` then does to the folder what that may do to what was not flushed: contents
    shortened, names never given, deletions undone.
    """

    def __init__(self, at: int, rng: random.Random, error: OSError | None = None):
        self.at, self.rng, self.error = at, rng, error
        self.done = 0
        self.failing = True
        self._unflushed: dict[str, int] = {}  # path: bytes that are safe
        self._renamed: list[tuple[str, str]] = []  # folder, path: since the folder's last flush
        self._deleted: list[tuple[str, str, bytes]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (files, atomic):
            monkeypatch.setattr(module, "os", self)
        monkeypatch.setattr(atomic, "open", self.open, raising=False)

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def step(self) -> None:
        self.done += 1
        if self.error is None:
            if 0 <= self.at <= self.done:  # and nothing is cleared away afterwards
                raise PowerCutError
        elif self.failing and self.done >= self.at:
            raise type(self.error)(*self.error.args)

    def open(self, path: Path | str, mode: Any, opener: object = None) -> Any:
        if isinstance(mode, int):
            return os.open(path, mode)
        self.step()
        self._unflushed[str(path)] = 0
        return _File(self, path)

    def fsync(self, descriptor: int) -> None:
        self.step()
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        self._unflushed.pop(path, None)
        self._renamed = [one for one in self._renamed if one[0] != path]
        self._deleted = [one for one in self._deleted if one[0] != path]

    def replace(self, source: Path, target: Path) -> None:
        self.step()
        os.replace(source, target)
        assert str(source) not in self._unflushed, "named before it was flushed"
        self._renamed.append((str(Path(target).parent), str(target)))

    def unlink(self, path: Path | str) -> None:
        self.step()
        content = Path(path).read_bytes()
        os.unlink(path)
        self._deleted.append((str(Path(path).parent), str(path), content))

    def lose(self) -> None:
        """What a power cut may do."""
        self.at = -1
        for path in self._unflushed:
            if os.path.exists(path):
                os.truncate(path, self.rng.randrange(os.path.getsize(path) + 1))
        for _, path, content in self._deleted:
            if self.rng.random() < 0.5:
                Path(path).write_bytes(content)
        for _, path in self._renamed:
            if self.rng.random() < 0.5:
                Path(path).unlink(missing_ok=True)


class _File(io.FileIO):
    """A file opened for writing on a `FaultyDisk`."""

    def __init__(self, disk: FaultyDisk, path: Path | str):
        super().__init__(str(path), "wb")
        self._disk = disk

    def write(self, data: Any) -> int:
        content = bytes(data)
        try:
            self._disk.step()
        except BaseException:
            super().write(content[: self._disk.rng.randrange(len(content) + 1)])
            raise
        return super().write(content)


class FaultyRun(FaultyDisk):
    """A `FaultyDisk` that also holds what `save_checkpoint` writes, renames and deletes in folders below ``root``."""

    def __init__(self, at: int, rng: random.Random, root: Path):
        super().__init__(at, rng)
        self._root = root
        self._flushed = set[str]()
        self._moved: list[tuple[Path, Path]] = []  # from, to: since the folder's last flush
        self._removed: list[tuple[Path, bytes]] = []

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().install(monkeypatch)
        for module in (atomic, checkpoints):
            monkeypatch.setattr(module, "shutil", self)
        for name in ("write_bytes", "write_text"):
            monkeypatch.setattr(Path, name, self._writing(getattr(Path, name)))
        monkeypatch.setattr(Path, "rename", lambda source, target: self.rename(source, target))

    def _writing(self, write: Callable[[Path, Any], int]) -> Callable[[Path, Any], int]:
        def counted(path: Path, content: Any) -> int:
            try:
                self.step()
            except BaseException:
                write(path, content[: self.rng.randrange(len(content) + 1)])
                raise
            return write(path, content)

        return counted

    def link(self, source: Path, target: Path) -> None:
        self.step()
        os.link(source, target)

    def fsync(self, descriptor: int) -> None:
        super().fsync(descriptor)
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        self._flushed.add(str(path))
        self._moved = [one for one in self._moved if one[1].parent != path]
        self._removed = [one for one in self._removed if path not in one[0].parents]

    def rename(self, source: Path, target: Path) -> None:
        self.step()
        for path in [source, *source.rglob("*")] if source.name.startswith(".tmp-") else []:
            assert str(path) in self._flushed, "named before it was flushed"
        os.rename(source, target)
        self._moved.append((source, target))

    def rmtree(self, folder: Path, ignore_errors: bool = False) -> None:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.step()
                self._removed.append((path, path.read_bytes()))
                os.unlink(path)
        shutil.rmtree(folder, ignore_errors)

    def lose(self) -> None:
        super().lose()
        for source, target in reversed(self._moved):
            if self.rng.random() < 0.5 and not source.exists():  # nothing has taken its place
                os.rename(target, source)
        for path in sorted(self._root.rglob(".tmp-*/**/*")):
            if path.is_file() and str(path) not in self._flushed:
                if path.stat().st_nlink > 1:  # the content is also another file's, which is safe; the name is not
                    path.unlink()
                else:
                    os.truncate(path, self.rng.randrange(path.stat().st_size + 1))
        for path, content in self._removed:
            if self.rng.random() < 0.5:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)
