"""The file system below the store: whole files or none, on local disk or wherever pyarrow or fsspec reaches."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.fs

from rlhf_ray.data.atomic import flush, left_over, whole_file
from rlhf_ray.data.errors import SettingError

FOLDERS = ("labels", "clips")
NUMBERED = re.compile(r"(\d+)-[0-9a-f]{32}\.(?:parquet|arrow)$")
"""The name of a segment or a pack."""

Write = Callable[[BinaryIO], object]


def open_files(path: Path | str) -> Files:
    """The files below ``path``: a folder, or a URL that pyarrow (``s3://bucket/folder``) or fsspec knows.

    Raises:
        SettingError: neither knows the URL.
    """
    text = str(path)
    if "://" not in text:
        return LocalFiles(Path(path))
    try:
        system, root = pa.fs.FileSystem.from_uri(text)
    except pa.ArrowInvalid:
        import fsspec

        try:
            handler, root = fsspec.core.url_to_fs(text)
        except (ValueError, ImportError) as error:
            raise SettingError(
                f"The preference store is {_without_keys(text)!r}, which can't be opened ({error}): name a folder, or a URL that "
                "pyarrow knows (s3://, gs://, hdfs://) or for which a file system of fsspec is installed."
            ) from error
        system = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(handler))
    if isinstance(system, pa.fs.LocalFileSystem):
        return LocalFiles(Path(root))
    return RemoteFiles(system, root.rstrip("/"), text)


def _without_keys(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def number_of(name: str) -> int:
    """The number that a segment's or pack's name, quarantined or not, holds; 0 for any other name."""
    found = NUMBERED.search(name)
    return int(found.group(1)) if found else 0


class LocalFiles:
    """A folder of this machine, or one that is mounted. Names are relative to the store, with slashes.

    Attributes:
        root: the folder.
    """

    def __init__(self, root: Path):
        self.root = root

    def make(self) -> None:
        """Make the store's folders where they are missing."""
        if not all((self.root / folder).is_dir() for folder in FOLDERS):
            with _explained(f"making folders in {self.root}", "free space or mend the disk, then repeat"):
                for folder in FOLDERS:
                    (self.root / folder).mkdir(parents=True, exist_ok=True)
                flush(self.root)

    def exists(self, name: str) -> bool:
        """Whether the file is there."""
        return (self.root / name).exists()

    def list(self, folder: str) -> list[str]:
        """The names of the files in ``folder``, sorted; nothing when it is not there."""
        try:
            return sorted(f"{folder}/{name}" for name in os.listdir(self.root / folder) if not name.startswith(".tmp-"))
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """Bytes of the file."""
        return (self.root / name).stat().st_size

    def read(self, name: str) -> bytes:
        """All of the file."""
        return (self.root / name).read_bytes()

    def map(self, name: str) -> Any:
        """The file as a memory-mapped pyarrow file."""
        return pa.memory_map(str(self.root / name))

    def forget(self, name: str) -> None:
        """Drop what is kept of the file elsewhere, so that `map` takes it from its origin."""

    def write(self, name: str, write: Write) -> None:
        """Let ``write`` fill a file that has its name when it is whole and durable, and not before."""
        file = self.root / name
        remedy = "what was acknowledged is safe; free space or mend the disk, then repeat"
        with _explained(f"writing {file}", remedy), whole_file(file) as sink:
            write(sink)

    def delete(self, name: str) -> None:
        """Delete the file; nothing when it is gone."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.root / name)

    def quarantine(self, name: str) -> None:
        """Move the file to ``quarantine/FOLDER-NAME``; nothing when it is gone."""
        target = self.root / "quarantine" / name.replace("/", "-")
        with contextlib.suppress(FileNotFoundError):
            target.parent.mkdir(exist_ok=True)
            os.replace(self.root / name, target)
            flush(target.parent)

    def settle(self) -> None:
        """Make durable what a writer that died may have renamed last, and drop what it left unfinished."""
        for folder in (self.root, *(self.root / name for name in FOLDERS)):
            for name in os.listdir(folder):
                if left_over(name):
                    with contextlib.suppress(OSError):
                        os.unlink(folder / name)
            with _explained(f"flushing {folder}", "mend the disk, then repeat"):
                flush(folder)


class RemoteFiles:
    """A folder of an object store or of any other pyarrow file system. A write becomes visible as a whole.

    Packs are copied once to ``$XDG_CACHE_HOME/rlhf_ray/store`` (``~/.cache`` unless set) and mapped from there. Their names
    tell their content, so that the copies never go stale; the folder may be deleted at any time. Methods are those of `LocalFiles`.

    Attributes:
        root: the URL.
    """

    def __init__(self, system: Any, root: str, url: str):
        self.root = _without_keys(url)  # messages show it
        self._system, self._folder = system, root
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._cache = caches / "rlhf_ray" / "store" / hashlib.sha256(url.encode()).hexdigest()[:16]

    def make(self) -> None:
        pass  # folders come with the first file

    def exists(self, name: str) -> bool:
        self._renew()
        return bool(self._system.get_file_info(f"{self._folder}/{name}").is_file)

    def list(self, folder: str) -> list[str]:
        self._renew()
        selector = pa.fs.FileSelector(f"{self._folder}/{folder}", allow_not_found=True)
        return sorted(f"{folder}/{info.base_name}" for info in self._system.get_file_info(selector) if info.is_file)

    def size(self, name: str) -> int:
        return int(self._system.get_file_info(f"{self._folder}/{name}").size)

    def read(self, name: str) -> bytes:
        with self._system.open_input_file(f"{self._folder}/{name}") as file:
            return bytes(file.read())

    def map(self, name: str) -> Any:
        copy = self._cache / name
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            LocalFiles(self._cache).write(name, lambda sink: sink.write(self.read(name)))
        return pa.memory_map(str(copy))

    def forget(self, name: str) -> None:
        (self._cache / name).unlink(missing_ok=True)

    def write(self, name: str, write: Write) -> None:
        buffer = io.BytesIO()
        write(buffer)
        remedy = "what was acknowledged is safe; see to the connection and the rights, then repeat"
        with _explained(f"writing {self.root}/{name}", remedy), self._system.open_output_stream(self._at(name)) as sink:
            sink.write(buffer.getbuffer())

    def delete(self, name: str) -> None:
        self.forget(name)
        with contextlib.suppress(FileNotFoundError):
            self._system.delete_file(f"{self._folder}/{name}")

    def quarantine(self, name: str) -> None:
        self.forget(name)
        with contextlib.suppress(FileNotFoundError):
            self._system.move(f"{self._folder}/{name}", self._at(f"quarantine/{name.replace('/', '-')}"))

    def settle(self) -> None:
        pass

    def _at(self, name: str) -> str:
        """The path of a file that is to be made, in a folder that is there."""
        path = f"{self._folder}/{name}"
        if self._system.type_name not in ("s3", "gcs", "abfs"):  # which have no folders
            self._system.create_dir(path.rpartition("/")[0], recursive=True)
        return path

    def _renew(self) -> None:
        """Have fsspec look again, which keeps listings otherwise."""
        if isinstance(self._system, pa.fs.PyFileSystem):
            self._system.handler.fs.invalidate_cache()


Files: TypeAlias = LocalFiles | RemoteFiles
"""What the store asks of a file system."""


@contextlib.contextmanager
def _explained(doing: str, remedy: str) -> Iterator[None]:
    """An `OSError` in here says what was being done, and what to do now."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, f"{doing}: {error.strerror or error} ({remedy})") from error


def store_of(path: str) -> str:
    """Where the store is: ``path``, or a folder in it if that is a run's."""
    inside = Path(path) / "preferences"
    return str(inside) if (inside / "store.json").exists() else path
