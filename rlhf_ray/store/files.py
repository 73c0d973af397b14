"""The store's file layer: atomic files on local disk, or on any file system that pyarrow or fsspec supports."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.fs

from rlhf_ray.data.atomic import flush, left_over, whole_file
from rlhf_ray.data.errors import SettingError
from rlhf_ray.data.lock import Lock
from rlhf_ray.data.strays import without_strays

FOLDERS = ("labels", "clips")
AMENDMENTS, LAST = "amendments", "last"
"""Folders of the copies of events that take others back, and of the marker (`Contents.marker`)."""
NUMBERED = re.compile(r"(?:(?:labels|clips|amendments)-)?(\d+)-[0-9a-f]{32}\.(?:parquet|arrow)")
"""The name of a segment or a pack, quarantined or not."""
MARKED = re.compile(r"(\d{12})-(\d{12})(-weights)?")
"""The name of a marker."""

Write = Callable[[BinaryIO], object]


def open_files(path: Path | str) -> Files:
    """Open the files below ``path``: a folder, or a URL that pyarrow (``s3://bucket/folder``) or fsspec supports.

    Raises:
        SettingError: neither supports the URL.
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
                f"Can't open the preference store {_without_keys(text)!r} ({error}): name a folder, or a URL that pyarrow supports "
                "(s3://, gs://, hdfs://) or for which an fsspec file system is installed."
            ) from error
        system = pa.fs.PyFileSystem(pa.fs.FSSpecHandler(handler))
    if isinstance(system, pa.fs.LocalFileSystem):
        return LocalFiles(Path(root))
    return RemoteFiles(system, root.rstrip("/"), text)


def lock_store(path: Path | str) -> Lock | contextlib.nullcontext[None]:
    """Return the lock of a store, held: one process at a time asks questions about it. A store at a URL has none.

    Answers may come from several processes: `PreferenceStore` loses none.

    Raises:
        LockedError: another process asks.
    """
    return contextlib.nullcontext() if "://" in str(path) else Lock(path, "or use another store")


def _without_keys(url: str) -> str:
    return re.sub(r"//[^/@]*@", "//", url)


def number_of(name: str) -> int:
    """Return the sequence number in the name of a segment or pack, quarantined or not; 0 for other names."""
    match = NUMBERED.fullmatch(name.rpartition("/")[2])
    return int(match.group(1)) if match else 0


def _ours(name: str) -> bool:
    """Return whether a store gives files such names. File systems and cloud folders add others (``._x``, ``x (copy)``)."""
    return bool(NUMBERED.fullmatch(name) or MARKED.fullmatch(name))


class LocalFiles:
    """A local or mounted folder. File names are relative to the store and use slashes.

    Attributes:
        root: the folder.
    """

    def __init__(self, root: Path):
        self.root = root

    def make(self) -> None:
        """Create the store's folders if missing."""
        folders = (*FOLDERS, AMENDMENTS, LAST)
        if not all((self.root / folder).is_dir() for folder in folders):
            with _explained(f"creating folders in {self.root}", "free space or repair the disk, then repeat"):
                for folder in folders:
                    (self.root / folder).mkdir(parents=True, exist_ok=True)
                flush(self.root)

    def exists(self, name: str) -> bool:
        """Return whether the file exists."""
        return (self.root / name).exists()

    def list(self, folder: str) -> list[str]:
        """Return the names of the store's own files in ``folder``, sorted; an empty list if the folder is missing."""
        try:
            return sorted(f"{folder}/{name}" for name in os.listdir(self.root / folder) if _ours(name))
        except FileNotFoundError:
            return []

    def size(self, name: str) -> int:
        """Return the file's size in bytes."""
        return (self.root / name).stat().st_size

    def read(self, name: str) -> bytes:
        """Return the file's content."""
        return (self.root / name).read_bytes()

    def map(self, name: str) -> Any:
        """Open the file as a memory-mapped pyarrow file."""
        return pa.memory_map(str(self.root / name))

    def forget(self, name: str) -> None:
        """Drop cached copies of the file, so that `map` reads the original."""

    def write(self, name: str, write: Write) -> None:
        """Let ``write`` fill a file. The file gets its name once it is complete and durable."""
        file = self.root / name
        remedy = "acknowledged labels are safe; free space or repair the disk, then repeat"
        with _explained(f"writing {file}", remedy), whole_file(file) as sink:
            write(sink)

    def mark(self, name: str) -> None:
        """Leave an empty file of this name in ``last/``, in place of those with a lower one. Doesn't wait for the disk.

        Logs nothing and raises nothing if it fails: the marker is then older than the last event.
        """
        folder = self.root / LAST
        with contextlib.suppress(OSError):
            os.close(os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o666))
            for earlier in os.listdir(folder):
                if _ours(earlier) and earlier < name:
                    os.unlink(folder / earlier)

    def delete(self, name: str) -> None:
        """Delete the file if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.root / name)

    def quarantine(self, name: str) -> None:
        """Move the file to ``quarantine/FOLDER-NAME`` if it exists."""
        target = self.root / "quarantine" / name.replace("/", "-")
        with contextlib.suppress(FileNotFoundError):
            target.parent.mkdir(exist_ok=True)
            os.replace(self.root / name, target)
            flush(target.parent)

    def settle(self) -> None:
        """Make durable what a dead writer may have renamed last, and delete its unfinished files."""
        for folder in (self.root, *(self.root / name for name in (*FOLDERS, AMENDMENTS))):
            for name in os.listdir(folder):
                if left_over(name):
                    with contextlib.suppress(OSError):
                        os.unlink(folder / name)
            with _explained(f"flushing {folder}", "repair the disk, then repeat"):
                flush(folder)


class RemoteFiles:
    """A folder in an object store or any other pyarrow file system. Writes become visible atomically.

    Packs are copied once to ``$XDG_CACHE_HOME/rlhf_ray/store`` (default ``~/.cache``) and mapped from there. A pack's name
    contains a hash of its content, so copies never go stale; the cache may be deleted at any time. `LocalFiles` documents the
    methods.

    Attributes:
        root: the URL, without credentials.
    """

    def __init__(self, system: Any, root: str, url: str):
        self.root = _without_keys(url)  # appears in messages
        self._system, self._folder = system, root
        caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        self._cache = caches / "rlhf_ray" / "store" / hashlib.sha256(url.encode()).hexdigest()[:16]

    def make(self) -> None:
        pass  # the first file creates its folder

    def exists(self, name: str) -> bool:
        self._renew()
        return bool(self._system.get_file_info(f"{self._folder}/{name}").is_file)

    def list(self, folder: str) -> list[str]:
        self._renew()
        selector = pa.fs.FileSelector(f"{self._folder}/{folder}", allow_not_found=True)
        infos = self._system.get_file_info(selector)
        return sorted(f"{folder}/{info.base_name}" for info in infos if info.is_file and _ours(info.base_name))

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
        remedy = "acknowledged labels are safe; check the connection and permissions, then repeat"
        with _explained(f"writing {self.root}/{name}", remedy), self._system.open_output_stream(self._at(name)) as sink:
            sink.write(buffer.getbuffer())

    def mark(self, name: str) -> None:
        with contextlib.suppress(OSError):
            with self._system.open_output_stream(self._at(f"{LAST}/{name}")) as sink:
                sink.write(b"\n")  # some object stores take an empty object for a folder
            for earlier in self.list(LAST):
                if earlier < f"{LAST}/{name}":
                    self._system.delete_file(f"{self._folder}/{earlier}")

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
        """Return the path of a new file, after creating its folder."""
        path = f"{self._folder}/{name}"
        if self._system.type_name not in ("s3", "gcs", "abfs"):  # these have no folders
            self._system.create_dir(path.rpartition("/")[0], recursive=True)
        return path

    def _renew(self) -> None:
        """Clear fsspec's cached listings."""
        if isinstance(self._system, pa.fs.PyFileSystem):
            self._system.handler.fs.invalidate_cache()


Files: TypeAlias = LocalFiles | RemoteFiles
"""The two file layers."""


@contextlib.contextmanager
def _explained(doing: str, remedy: str) -> Iterator[None]:
    """Add the failed operation and the remedy to an `OSError` raised inside."""
    try:
        yield
    except OSError as error:
        raise type(error)(error.errno, f"{doing}: {error.strerror or error} ({remedy})") from error


def store_of(path: str) -> str:
    """Return the store's path: ``path``, or the store inside it if ``path`` is a run folder."""
    inside = Path(path) / "preferences"
    return str(inside) if (inside / "store.json").exists() else path


def claim(folder: Path) -> None:
    """Create the folder for a new store. Refuse a folder that holds anything else."""
    if folder.exists() and any(not file.name.startswith(".tmp-") for file in without_strays(folder.iterdir())):
        raise ValueError(
            f"{folder} is neither empty nor a preference store (it has no store.json); name another folder."
        )
    folder.mkdir(parents=True, exist_ok=True)


def copy_file(source: Files, target: Files, name: str) -> None:
    """Copy a file, as a hard link if possible. Replaces the target's."""
    if isinstance(source, LocalFiles) and isinstance(target, LocalFiles):
        old, new = source.root / name, target.root / name
        if new.exists() and new.samefile(old):
            return
        new.unlink(missing_ok=True)
        try:
            os.link(old, new)
            return
        except FileNotFoundError:
            raise
        except OSError:  # another disk, or a file system without hard links
            pass
    content = source.read(name)
    target.write(name, lambda sink: sink.write(content))


WEIGHTS = "annotators.json"
"""Annotator weights: the one file that is rewritten."""


def read_weights(files: Files, *, were_set: bool) -> dict[str, float]:
    """Return the weights that were set, by annotator.

    Args:
        files: the store's files.
        were_set: whether weights were ever set.

    Raises:
        ValueError: the file is damaged or, although weights were set, missing.
    """
    if not files.exists(WEIGHTS):
        if were_set:
            raise ValueError(
                f"{files.root}/{WEIGHTS} is missing, and weights of annotators were set: restore it, or set the weights again."
            )
        return {}
    try:
        content = json.loads(files.read(WEIGHTS))
        weights = {str(name): float(weight) for name, weight in content["weights"].items()}
        if content.keys() - {"weights", "sha256"} or content.get("sha256", _hash_of(weights)) != _hash_of(weights):
            raise ValueError("its content doesn't match its sha256")
        for name, weight in weights.items():
            check_weight(name, weight)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{files.root}/{WEIGHTS} is damaged ({error!r}); repair it, or delete it and set the weights again."
        ) from error
    return weights


def write_weights(files: Files, weights: Mapping[str, float]) -> None:
    """Replace all weights, durably."""
    content = json.dumps({"weights": dict(weights), "sha256": _hash_of(weights)}, indent=2, sort_keys=True) + "\n"
    files.write(WEIGHTS, lambda sink: sink.write(content.encode()))


def _hash_of(weights: Mapping[str, float]) -> str:
    text = json.dumps({name: float(weight) for name, weight in weights.items()}, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def check_weight(annotator: str, weight: float) -> None:
    """Raise `ValueError` unless the annotator's name and weight are valid."""
    if not annotator:
        raise ValueError("The annotator's name is empty; name the annotator to weigh.")
    if not (math.isfinite(weight) and weight >= 0):
        raise ValueError(f"The weight of {annotator!r} is {weight}; it must be a finite number, 0 (excluded) or more.")
